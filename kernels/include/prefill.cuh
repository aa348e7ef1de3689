// Prefill attention by mma.sync: the body that attention_prefill.cu (keys and values in the type of q) and
// attention_prefill_e4m3.cu (E4M3 codes with a step a kv head) share. See attention_prefill.cu for what a block and a warp own.
#pragma once
#include "e4m3.cuh"
#include "mma.cuh"

namespace {
constexpr int ROWS = 64, KEYS = 64;
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

struct Params {
  void* out;   // packed [T,Hq,D]
  float* lse;  // dense [B,Hq,Lq], ragged [Hq,T], or null
  const void* q;
  const void* k;
  const void* v;
  const int* qo_indptr;   // ragged: [B+1], in tokens
  const int* tile_batch;  // ragged: [tiles]
  const int* tile_index;
  const int* page_indptr;  // ragged: pages
  const int* page_indices;
  const int* last_page_len;
  const uint8_t* mask;  // dense, nonzero keeps, by strides, or null
  const float* sinks;   // [Hq] or null
  const float* k_steps; // [Hk], of E4M3
  const float* v_steps;
  long q_request_stride, q_token_stride, kv_request_stride, kv_token_stride;  // elements
  long mask_request_stride, mask_head_stride, mask_row_stride;
  int hq, hk, d, lq, lk, tokens, page_log2, window;  // window: keys seen besides the own one, or -1
  int causal;
  float scale, softcap;
};

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
}  // namespace

// 16 codes as 16 numbers of T, which holds every value of E4M3.
template <class T> __device__ __forceinline__ void widen16(T* to, const uint4& codes) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t out[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(words[i / 2] >> 16 * (i % 2)), __NV_E4M3);
    const float2 x = __half22float2(__half2(h));
    out[i] = pack2<T>(x.x, x.y);
  }
  ((uint4*)to)[0] = make_uint4(out[0], out[1], out[2], out[3]);
  ((uint4*)to)[1] = make_uint4(out[4], out[5], out[6], out[7]);
}

// Heads of d <= D elements: the kernel's missing ones are zeros.
template <class T, class KV, int D, bool PAGED> __device__ __forceinline__ void prefill(const Params& p) {
  constexpr bool CODES = sizeof(KV) == 1;
  constexpr int LINE = 2 * D + 16, CHUNKS = D / 8, TILE = KEYS * LINE;
  constexpr int PER = 16 / sizeof(KV), PARTS = D / PER, IN = D * sizeof(KV) + 16;  // of a row as it lies in memory
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int bad[KEYS];
  __shared__ int any_bad;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int head = blockIdx.y, kv_head = head / (p.hq / p.hk);
  grid_wait();
  int request, tile, lq, lk;
  long q_first;  // token of the request's first query
  if (PAGED) {
    request = p.tile_batch[blockIdx.x];
    if (request < 0) return;
    tile = p.tile_index[blockIdx.x];
    q_first = p.qo_indptr[request];
    lq = p.qo_indptr[request + 1] - q_first;
    const int pages = p.page_indptr[request + 1] - p.page_indptr[request];
    lk = pages > 0 ? ((pages - 1) << p.page_log2) + p.last_page_len[request] : 0;
  } else {
    const int tiles = (p.lq + ROWS - 1) / ROWS;
    request = blockIdx.x / tiles;
    tile = tiles - 1 - blockIdx.x % tiles;  // the longest rows first
    lq = p.lq, lk = p.lk;
    q_first = (long)request * p.lq;
  }
  const int row0 = tile * ROWS;
  if (row0 >= lq) return;
  const int shift = lk - lq;  // query i stands at key i + shift
  const int last_row = min(row0 + ROWS, lq) - 1;
  const int end = p.causal ? max(0, min(lk, last_row + shift + 1)) : lk;
  const int low = p.window >= 0 ? max(0, row0 + shift - p.window) : 0;
  const int first = low / KEYS * KEYS;

  // The query, with codes the tile that they were turned to, and the ring.
  const uint32_t qs = shared_address(shared), wide = qs + ROWS * LINE, ring = wide + (CODES ? 2 * TILE : 0);
  const float scale = CODES ? p.scale * p.k_steps[kv_head] : p.scale;
  const T* q = (const T*)p.q + (PAGED ? q_first * p.q_token_stride : request * p.q_request_stride) + (long)head * p.d;
#pragma unroll
  for (int i = 0; i < ROWS * CHUNKS / 128; i++) {
    const int part = i * 128 + threadIdx.x, row = part / CHUNKS, chunk = part % CHUNKS;
    const bool live = row0 + row < lq && chunk * 8 < p.d;
    copy_async16(qs + row * LINE + chunk * 16, live ? q + (row0 + row) * p.q_token_stride + chunk * 8 : q, live);
  }
  auto issue = [&](int key0, int slot) {
    const uint32_t stage = ring + slot * 2 * KEYS * IN;
#pragma unroll 4
    for (int i = 0; i < KEYS * PARTS / 128; i++) {
      const int part = i * 128 + threadIdx.x, row = part / PARTS, chunk = part % PARTS, key = key0 + row;
      const bool live = key < lk && chunk * PER < p.d;
      long at = 0;
      if (live) {
        if (PAGED) {
          const long page = p.page_indices[p.page_indptr[request] + (key >> p.page_log2)];
          at = ((page << p.page_log2) + (key & ((1 << p.page_log2) - 1))) * p.kv_token_stride;
        } else {
          at = request * p.kv_request_stride + key * p.kv_token_stride;
        }
        at += (long)kv_head * p.d + chunk * PER;
      }
      copy_async16(stage + row * IN + chunk * 16, (const KV*)p.k + at, live);
      copy_async16(stage + KEYS * IN + row * IN + chunk * 16, (const KV*)p.v + at, live);
    }
  };
  if (first < end) issue(first, 0);
  copy_commit();

  constexpr bool KEEP = D <= 128;  // the query in registers; wider heads read it from shared memory for every tile
  uint32_t qf[KEEP ? D / 16 : 1][4];
  const uint32_t qa = qs + (warp * 16 + lane % 16) * LINE + lane / 16 * 16;
  float o[D / 8][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < D / 8; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
  const float scale2 = scale * LOG2E;
  const int i0 = row0 + warp * 16 + g;  // this thread's rows: i0 and i0 + 8

  for (int key0 = first, slot = 0; key0 < end; key0 += KEYS, slot ^= 1) {
    if (key0 + KEYS < end) issue(key0 + KEYS, slot ^ 1);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    const uint32_t ks = CODES ? wide : ring + slot * 2 * TILE, vs = ks + TILE;
    if (CODES) {
#pragma unroll 2
      for (int part = threadIdx.x; part < 2 * KEYS * PARTS; part += 128) {
        const int row = part / PARTS, chunk = part % PARTS;  // of keys, then of values
        widen16((T*)(shared + (wide - qs) + row * LINE + chunk * 32), *(const uint4*)(shared + (ring - qs) + slot * 2 * KEYS * IN + row * IN + chunk * 16));
      }
      __syncthreads();
    }
    if (KEEP && key0 == first) {
#pragma unroll
      for (int j = 0; j < D / 16; j++) ldmatrix4(qf[KEEP ? j : 0], qa + j * 32);
    }
    // Some row of the block does not see some key of the tile.
    const bool partial = p.mask || key0 + KEYS > lk || (p.causal && key0 + KEYS - 1 > row0 + shift) || (p.window >= 0 && key0 < last_row + shift - p.window);
    if (partial) {
      if (threadIdx.x == 0) any_bad = 0;
      if (threadIdx.x < KEYS) bad[threadIdx.x] = 0;
      __syncthreads();
      unsigned char* values = shared + (vs - qs);
      for (int part = threadIdx.x; part < KEYS * CHUNKS; part += 128) {
        T* c = (T*)(values + part / CHUNKS * LINE + part % CHUNKS * 16);
        for (int e = 0; e < 8; e++)
          if (!isfinite(to_float(c[e]))) {
            c[e] = from_float<T>(0.f);
            bad[part / CHUNKS] = any_bad = 1;
          }
      }
      __syncthreads();
    }
    float s[KEYS / 8][4] = {};
    const uint32_t ka = ks + ((lane & 7) + (lane >> 4) * 8) * LINE + (lane >> 3 & 1) * 16;
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      if constexpr (!KEEP) ldmatrix4(qf[0], qa + j * 32);
#pragma unroll
      for (int n = 0; n < KEYS / 16; n++) {
        uint32_t b[4];
        ldmatrix4(b, ka + n * 16 * LINE + j * 32);
        mma16816<T>(s[2 * n], qf[KEEP ? j : 0], b[0], b[1]);
        mma16816<T>(s[2 * n + 1], qf[KEEP ? j : 0], b[2], b[3]);
      }
    }
    auto sees = [&](int i, int key) {
      bool live = key < lk && (!p.causal || key <= i + shift) && (p.window < 0 || key >= i + shift - p.window);
      if (p.mask && live) live = i < lq && p.mask[request * p.mask_request_stride + head * p.mask_head_stride + i * p.mask_row_stride + key];
      return live;
    };
    float x[2] = {m[0], m[1]};
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float u = s[n][e] * scale2;
        if (p.softcap > 0) u = p.softcap * LOG2E * tanhf(s[n][e] * scale / p.softcap);
        if (partial && !sees(i0 + e / 2 * 8, key0 + n * 8 + 2 * t + e % 2)) u = -INFINITY;
        s[n][e] = u;
        x[e / 2] = fmaxf(x[e / 2], u);
      }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      x[r] = fmaxf(x[r], __shfl_xor_sync(~0u, x[r], 1));
      x[r] = fmaxf(x[r], __shfl_xor_sync(~0u, x[r], 2));
      const float c = x[r] == -INFINITY ? 1.f : power2(m[r] - x[r]);
      m[r] = x[r];
      l[r] *= c;
#pragma unroll
      for (int i = 0; i < D / 8; i++) o[i][2 * r] *= c, o[i][2 * r + 1] *= c;
    }
    const float base[2] = {m[0] == -INFINITY ? 0.f : m[0], m[1] == -INFINITY ? 0.f : m[1]};
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        s[n][e] = power2(s[n][e] - base[e / 2]);
        l[e / 2] += s[n][e];
      }
    const uint32_t va = vs + (lane & 15) * LINE + (lane >> 4) * 16;
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
      const uint32_t pf[4] = {pack2<T>(s[2 * n][0], s[2 * n][1]), pack2<T>(s[2 * n][2], s[2 * n][3]), pack2<T>(s[2 * n + 1][0], s[2 * n + 1][1]),
                              pack2<T>(s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
      for (int j = 0; j < D / 16; j++) {
        uint32_t b[4];
        ldmatrix4_trans(b, va + n * 16 * LINE + j * 32);
        mma16816<T>(o[2 * j], pf, b[0], b[1]);
        mma16816<T>(o[2 * j + 1], pf, b[2], b[3]);
      }
    }
    if (partial && any_bad) {
      for (int r = 0; r < 2; r++)
        for (int j = 0; j < KEYS; j++)
          if (bad[j] && sees(i0 + r * 8, key0 + j)) l[r] = NAN;
    }
    __syncthreads();
  }
  copy_wait<0>();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    l[r] += __shfl_xor_sync(~0u, l[r], 1);
    l[r] += __shfl_xor_sync(~0u, l[r], 2);
    const int i = i0 + r * 8;
    float c = 1;
    if (p.sinks && m[r] > -INFINITY) {
      const float sink = p.sinks[head] * LOG2E, x = fmaxf(m[r], sink);
      c = exp2f(m[r] - x);
      l[r] = l[r] * c + exp2f(sink - x);
      m[r] = x;
    }
    if (i >= lq) continue;
    c = l[r] == 0 ? 0.f : c / l[r];
    if (CODES) c *= p.v_steps[kv_head];
    T* out = (T*)p.out + ((q_first + i) * p.hq + head) * p.d;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      if (j * 8 < p.d) *(uint32_t*)(out + j * 8 + 2 * t) = pack2<T>(o[j][2 * r] * c, o[j][2 * r + 1] * c);
    if (p.lse && t == 0)
      p.lse[PAGED ? (long)head * p.tokens + q_first + i : ((long)request * p.hq + head) * p.lq + i] = l[r] == 0 ? -INFINITY : (m[r] + log2f(l[r])) * LN2;
  }
}

