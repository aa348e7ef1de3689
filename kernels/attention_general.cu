// Attention for what the kernels on matrix units do not take: f32, any head dim of q and k and another of v, keys and values
// in a narrower type than q (bf16, E4M3 with a step a kv head), masks with lengths, packed sequences without pages, and lse
// of pages. Prefill and decode alike: a row has the same bits whatever shares its launch. And the merge of two states.
//
// A block owns 32 rows of one kv head: row f of a request is query token f / G and query head f % G of the group. It walks
// the keys in tiles of 32 (at multiples of 32); thread (ty, tx) of 16 by 16 owns rows ty and ty+16 with keys tx and tx+16
// of the scores, and columns 4tx..4tx+3 of each 64 of the output, in registers. Parts of 64 elements of q, k and then v pass
// through shared memory in f32; products are FMA, scores, softmax (base e) and sums f32.
// A weight of -1 marks a key that the row must not see: its value is not touched, so what memory holds there never enters.
// Causal is bottom-right: query i of Lq sees key j when j <= i + Lk - Lq, and with a window W when j >= i + Lk - Lq - W.
// A row without keys gives 0 and lse -Inf, sinks or not.
// Dense by strides (kv_len: keys of each request), packed (kv_indptr) or paged. tile_batch and tile_index map blockIdx.x to a
// request and a tile of its rows; a negative request has nothing to do, request `batch` is the tokens behind the last one.
// Shared memory: 22 KiB. Any alignment, D and Dv up to 1024. Any arch. Paper: Dao 2023 (FlashAttention-2).
#include "e4m3.cuh"

namespace {
constexpr int ROWS = 32, KEYS = 32, PART = 64, THREADS = 256;
enum Mode { DENSE, PACKED, PAGED };

struct Params {
  void* out;   // packed [T,Hq,Dv]
  float* lse;  // dense [B,Hq,Lq], else [Hq,T], or null
  const void* q;
  const void* k;
  const void* v;
  const int* qo_indptr;  // packed, paged: [B+1], in tokens
  const int* kv_indptr;  // packed: [B+1], in tokens
  const int* tile_batch;
  const int* tile_index;
  const int* page_indptr;
  const int* page_indices;
  const int* last_page_len;
  const int* kv_len;    // dense: [B] or null
  const uint8_t* mask;  // dense, nonzero keeps, by strides, or null
  const void* sinks;    // [Hq] in the type of q, or f32 when sinks_wide, or null
  const float* k_steps; // [Hk], of E4M3
  const float* v_steps;
  long q_request_stride, q_token_stride, k_request_stride, k_token_stride, v_request_stride, v_token_stride;  // elements
  long mask_request_stride, mask_head_stride, mask_row_stride;
  int mode, batch, hq, hk, d, dv, lq, lk, tokens, page_log2, window, causal, sinks_wide;
  float scale, softcap;
};
}  // namespace

// PARTS of 64 elements are the most that v has.
template <class T, class KV, int PARTS> __device__ __forceinline__ void attend(const Params& p) {
  __shared__ __align__(16) float qs[ROWS][PART + 4], kv[KEYS][PART + 4], ps[ROWS][KEYS + 4];
  __shared__ long place[KEYS];  // token of each key in k and v, -1 beyond the length
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int kv_head = blockIdx.y, group = p.hq / p.hk;
  grid_wait();
  int request, tile, lq, lk;
  long q_first, k_first = 0;  // tokens
  const T* q = (const T*)p.q;
  const KV* k = (const KV*)p.k + (long)kv_head * p.d;
  const KV* v = (const KV*)p.v + (long)kv_head * p.dv;
  if (p.mode == DENSE) {
    const int tiles = (p.lq * group + ROWS - 1) / ROWS;
    request = blockIdx.x / tiles;
    tile = blockIdx.x % tiles;
    lq = p.lq, lk = p.kv_len ? p.kv_len[request] : p.lk;
    q_first = (long)request * p.lq;
    q += request * p.q_request_stride, k += request * p.k_request_stride, v += request * p.v_request_stride;
  } else {
    request = p.tile_batch[blockIdx.x];
    if (request < 0) return;
    tile = p.tile_index[blockIdx.x];
    q_first = p.qo_indptr[request];
    q += q_first * p.q_token_stride;
    if (request == p.batch) {
      lq = p.tokens - (int)q_first, lk = 0;
    } else {
      lq = p.qo_indptr[request + 1] - (int)q_first;
      if (p.mode == PACKED) {
        k_first = p.kv_indptr[request];
        lk = p.kv_indptr[request + 1] - (int)k_first;
      } else {
        const int pages = p.page_indptr[request + 1] - p.page_indptr[request];
        lk = pages > 0 ? ((pages - 1) << p.page_log2) + p.last_page_len[request] : 0;
      }
    }
  }
  const int row0 = tile * ROWS, rows = lq * group;
  if (row0 >= rows) return;
  const int shift = lk - lq, token0 = row0 / group, last = (min(row0 + ROWS, rows) - 1) / group;
  const int end = p.causal ? max(0, min(lk, last + shift + 1)) : lk;
  const int low = p.window >= 0 ? max(0, token0 + shift - p.window) : 0;
  const int first = low / KEYS * KEYS;
  const float k_step = p.k_steps ? p.k_steps[kv_head] : 1.f, v_step = p.v_steps ? p.v_steps[kv_head] : 1.f;

  auto load_q = [&](int d0) {
    for (int e = threadIdx.x; e < ROWS * PART; e += THREADS) {
      const int row = e / PART, c = e % PART, f = row0 + row;
      float x = 0;
      if (f < rows && d0 + c < p.d) x = to_float(q[f / group * p.q_token_stride + (long)(kv_head * group + f % group) * p.d + d0 + c]);
      qs[row][c] = x;
    }
  };
  auto load_kv = [&](const KV* from, long stride, int width, int d0, float step) {
    for (int e = threadIdx.x; e < KEYS * PART; e += THREADS) {
      const int row = e / PART, c = e % PART;
      float x = 0;
      if (place[row] >= 0 && d0 + c < width) x = to_float(from[place[row] * stride + d0 + c]);
      if constexpr (sizeof(KV) == 1) x *= step;
      kv[row][c] = x;
    }
  };
  auto sees = [&](int f, int key) {
    const int i = f / group;
    bool live = f < rows && key < lk && (!p.causal || key <= i + shift) && (p.window < 0 || key >= i + shift - p.window);
    if (p.mask && live)
      live = p.mask[request * p.mask_request_stride + (kv_head * group + f % group) * p.mask_head_stride + i * p.mask_row_stride + key];
    return live;
  };

  float o[PARTS][2][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < PARTS; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) o[i][r][0] = o[i][r][1] = o[i][r][2] = o[i][r][3] = 0;

#pragma unroll 1
  for (int key0 = first; key0 < end; key0 += KEYS) {
    __syncthreads();
    if (threadIdx.x < KEYS) {
      const int key = key0 + threadIdx.x;
      long at = -1;
      if (key < lk) {
        at = k_first + key;
        if (p.mode == PAGED) at = ((long)p.page_indices[p.page_indptr[request] + (key >> p.page_log2)] << p.page_log2) + (key & ((1 << p.page_log2) - 1));
      }
      place[threadIdx.x] = at;
    }
    float s[2][2] = {};
#pragma unroll 1
    for (int d0 = 0; d0 < p.d; d0 += PART) {
      __syncthreads();
      if (key0 == first || p.d > PART) load_q(d0);
      load_kv(k, p.k_token_stride, p.d, d0, k_step);
      __syncthreads();
      const int width = min(PART, p.d - d0);
      float u[2][2] = {};  // a sum a part
#pragma unroll 4
      for (int c = 0; c < width; c += 4) {
        float4 a[2], b[2];
#pragma unroll
        for (int r = 0; r < 2; r++) a[r] = *(const float4*)&qs[ty + 16 * r][c], b[r] = *(const float4*)&kv[tx + 16 * r][c];
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
          for (int j = 0; j < 2; j++) {
            u[r][j] = fmaf(a[r].x, b[j].x, u[r][j]);
            u[r][j] = fmaf(a[r].y, b[j].y, u[r][j]);
            u[r][j] = fmaf(a[r].z, b[j].z, u[r][j]);
            u[r][j] = fmaf(a[r].w, b[j].w, u[r][j]);
          }
      }
#pragma unroll
      for (int r = 0; r < 2; r++) s[r][0] += u[r][0], s[r][1] += u[r][1];
    }
    float c[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      bool live[2];
      float x = m[r], sum = 0;
#pragma unroll
      for (int j = 0; j < 2; j++) {
        live[j] = sees(row0 + ty + 16 * r, key0 + tx + 16 * j);
        s[r][j] *= p.scale;
        if (p.softcap > 0) s[r][j] = p.softcap * tanhf(s[r][j] / p.softcap);
        if (live[j]) x = fmaxf(x, s[r][j]);
      }
#pragma unroll
      for (int w = 8; w; w >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, w));
      c[r] = x == -INFINITY ? 1.f : expf(m[r] - x);
      m[r] = x;
      const float base = x == -INFINITY ? 0.f : x;
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const float w = expf(s[r][j] - base);
        ps[ty + 16 * r][tx + 16 * j] = live[j] ? w : -1.f;
        sum += live[j] ? w : 0.f;
      }
#pragma unroll
      for (int w = 8; w; w >>= 1) sum += __shfl_xor_sync(~0u, sum, w);
      l[r] = l[r] * c[r] + sum;
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      if (part * PART >= p.dv) break;
      __syncthreads();
      load_kv(v, p.v_token_stride, p.dv, part * PART, v_step);
      __syncthreads();
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[part][r][e] *= c[r];
#pragma unroll 2
      for (int key = 0; key < KEYS; key += 4) {
        float w[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++) *(float4*)w[r] = *(const float4*)&ps[ty + 16 * r][key];
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float4 x = *(const float4*)&kv[key + e][4 * tx];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            if (w[r][e] < 0) continue;
            o[part][r][0] = fmaf(w[r][e], x.x, o[part][r][0]);
            o[part][r][1] = fmaf(w[r][e], x.y, o[part][r][1]);
            o[part][r][2] = fmaf(w[r][e], x.z, o[part][r][2]);
            o[part][r][3] = fmaf(w[r][e], x.w, o[part][r][3]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int f = row0 + ty + 16 * r;
    if (f >= rows) continue;
    const int i = f / group, head = kv_head * group + f % group;
    float factor = 1;
    if (p.sinks && m[r] > -INFINITY) {
      const float sink = p.sinks_wide ? ((const float*)p.sinks)[head] : to_float(((const T*)p.sinks)[head]), x = fmaxf(m[r], sink);
      factor = expf(m[r] - x);
      l[r] = l[r] * factor + expf(sink - x);
      m[r] = x;
    }
    factor = l[r] == 0 ? 0.f : factor / l[r];
    T* out = (T*)p.out + ((q_first + i) * p.hq + head) * p.dv;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int at = part * PART + 4 * tx + e;
        if (at < p.dv) out[at] = from_float<T>(o[part][r][e] * factor);
      }
    if (p.lse && tx == 0)
      p.lse[p.mode == DENSE ? ((long)request * p.hq + head) * p.lq + i : (long)head * p.tokens + q_first + i] = l[r] == 0 ? -INFINITY : m[r] + logf(l[r]);
  }
}

// A block owns row r of out [B,L,H,Dv]; lse [B,H,L], of each state in the type of out or in f32.
template <class T>
__device__ __forceinline__ void merge(T* out, float* lse, const T* a, const void* lse_a, const T* b, const void* lse_b, int wide_a, int wide_b, int length, int heads, int dv) {
  grid_wait();
  const long r = blockIdx.x, h = r % heads, i = r / heads % length, at = (r / heads / length * heads + h) * length + i;
  const float x = wide_a ? ((const float*)lse_a)[at] : to_float(((const T*)lse_a)[at]), y = wide_b ? ((const float*)lse_b)[at] : to_float(((const T*)lse_b)[at]);
  const float m = fmaxf(x, y);
  const float u = x == -INFINITY ? 0.f : expf(x - m), v = y == -INFINITY ? 0.f : expf(y - m), sum = u + v;
  for (int e = threadIdx.x; e < dv; e += blockDim.x) {
    float z = 0;
    if (x != -INFINITY) z += u / sum * to_float(a[r * dv + e]);
    if (y != -INFINITY) z += v / sum * to_float(b[r * dv + e]);
    out[r * dv + e] = from_float<T>(z);
  }
  if (lse && threadIdx.x == 0) lse[at] = m == -INFINITY ? m : m + logf(sum);
}

#define GENERAL(T, KV)                                                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_general_##T##_##KV##_256(const __grid_constant__ Params p) {   \
    attend<T, KV, 4>(p);                                                                                                         \
  }                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_general_##T##_##KV##_1024(const __grid_constant__ Params p) {  \
    attend<T, KV, 16>(p);                                                                                                        \
  }
#define MERGE(T)                                                                                                                 \
  extern "C" __global__ void attention_merge_states_##T(T* out, float* lse, const T* a, const void* lse_a, const T* b, const void* lse_b, int wide_a, int wide_b, \
                                                        int length, int heads, int dv) {                                         \
    merge<T>(out, lse, a, lse_a, b, lse_b, wide_a, wide_b, length, heads, dv);                                                   \
  }
GENERAL(bf16, bf16)
GENERAL(bf16, e4m3)
GENERAL(f16, f16)
GENERAL(f16, bf16)
GENERAL(f16, e4m3)
GENERAL(f32, f32)
GENERAL(f32, bf16)
GENERAL(f32, e4m3)
MERGE(bf16)
MERGE(f16)
MERGE(f32)
