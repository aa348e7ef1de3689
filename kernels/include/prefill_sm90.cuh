// Prefill attention by wgmma: the body that attention_prefill_sm90.cu (keys and values in the type of q, by the copy engine) and
// attention_prefill_sm90_e4m3.cu (E4M3 codes) share. See the first for what a block and a warpgroup own.
#pragma once
#include <type_traits>
#include "epilogue.cuh"
#include "fp8.cuh"
#include "hopper.cuh"

namespace {
constexpr int ROWS = 128;
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

struct Params {
  void* out;   // packed [T,Hq,D]
  float* lse;  // dense [B,Hq,Lq], ragged [Hq,T], or null
  const int* qo_indptr;   // ragged: [B+1], in tokens
  const int* tile_batch;  // ragged: [tiles]
  const int* tile_index;
  const int* page_indptr;  // ragged: pages
  const int* page_indices;
  const int* last_page_len;
  const float* sinks;  // [Hq] or null
  int hq, hk, lq, lk, tokens, page_log2, window;
  int causal;
  float scale, softcap;
};

// Where keys and values come from: tensors of the type of q, or pages of E4M3 codes, value = step * code.
struct Maps {
  const CUtensorMap &k, &v;
};
struct Pools {
  const uint8_t *k, *v;           // [tokens of the pool,Hk,D]
  const float *k_steps, *v_steps;  // [Hk]
};

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class T> struct Exponents {  // of two numbers in a word
  static constexpr uint32_t MASK = 0x7f807f80u;
};
template <> struct Exponents<f16> {
  static constexpr uint32_t MASK = 0x7c007c00u;
};
}  // namespace

#ifdef SEAFAN_HOPPER
// The producer warpgroup over pages of codes: copies 16 codes a thread at a time to a ring of its own, RAW tiles of keys and of
// values in turn, and widens what it copied itself to f16 into the tiles that the tensor cores read. From keys on there are zeros.
// A warp turns 8 rows at a time, so that 8 lanes store to 8 different places of the swizzle.
template <int D, int KEYS, int RAW, class Find, class Free, class Filled>
__device__ __forceinline__ void widen_tiles(const Pools& pools, int heads, int head, int keys, int first_key, int tiles, uint32_t ring, const Find& find, const Free& free, const Filled& filled) {
  constexpr int COLS = D / 64, ROWS_EACH = KEYS / 32, BYTES = KEYS * D, KB = KEYS * 128;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t own = ring + threadIdx.x * 16;
  auto issue = [&](int n) {
    const uint8_t* from = (n % 2 ? pools.v : pools.k) + head * D + lane / 8 * 16;
    const int key = first_key - n / 2 * KEYS + warp * (KEYS / 4) + lane % 8;
    uint32_t at[ROWS_EACH];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; r++) at[r] = key + r * 8 < keys ? find(key + r * 8) : 0;
#pragma unroll
    for (int i = 0; i < ROWS_EACH * COLS; i++)
      copy_async16(own + n % RAW * BYTES + i * 2048, from + (uint64_t)at[i / COLS] * (uint32_t)(heads * D) + i % COLS * 64, key + i / COLS * 8 < keys);
  };
#pragma unroll
  for (int n = 0; n < RAW - 1; n++) {
    if (n < 2 * tiles) issue(n);
    copy_commit();
  }
  for (int n = 0; n < 2 * tiles; n++) {
    if (n + RAW - 1 < 2 * tiles) issue(n + RAW - 1);
    copy_commit();
    copy_wait<RAW - 1>();
    unsigned char* to = free(n / 2, n % 2) + (warp * (KEYS / 4) + lane % 8) * 128;
    const int first = ((lane / 8 * 2) ^ (lane % 8)) * 16;
#pragma unroll
    for (int i = 0; i < ROWS_EACH * COLS; i++) {
      uint32_t codes[4], x[8];
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3]) : "r"(own + n % RAW * BYTES + i * 2048) : "memory");
#pragma unroll
      for (int j = 0; j < 8; j++) x[j] = fp8_widen<f16>(codes[j / 2] >> 16 * (j % 2));
      unsigned char* row = to + i / COLS * 1024 + i % COLS * KB;
      *(uint4*)(row + first) = make_uint4(x[0], x[1], x[2], x[3]);
      *(uint4*)(row + (first ^ 16)) = make_uint4(x[4], x[5], x[6], x[7]);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) filled(n / 2, n % 2);
  }
}

// A warpgroup turns its 64 rows of the query, BLOCKS tiles `block` bytes apart, from T to f16 where they lie, and notes by what
// their scores are to be multiplied, which is not negative. A row of bf16 is multiplied by the power of two that brings its
// largest magnitude below 2^15: what f16 lacks lies 2^-39 below that magnitude.
template <class T, int BLOCKS> __device__ __forceinline__ void narrow_query(unsigned char* tile, int block, float* scales, float scale) {
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t x[BLOCKS][4], top = 0;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
      *(uint4*)x[b] = *(const uint4*)(tile + b * block + (i * 128 + thread) * 16);
#pragma unroll
      for (int e = 0; e < 4; e++) top = __vmaxu2(top, x[b][e] & 0x7fff7fff);
    }
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) top = __vmaxu2(top, __shfl_xor_sync(~0u, top, lanes));
    const uint32_t exponent = max(max(top & 0xffff, top >> 16) >> 7, 15u);  // bf16's 8 bits
    const uint32_t sign = __float_as_uint(scale) & 0x80000000;
    const float factor = __uint_as_float((268 - exponent) << 23 | sign);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        x[b][e] = std::is_same<T, f16>::value ? x[b][e] ^ (sign | sign >> 16)
                                              : pack2<f16>(__uint_as_float(x[b][e] << 16) * factor, __uint_as_float(x[b][e] & 0xffff0000) * factor);
      *(uint4*)(tile + b * block + (i * 128 + thread) * 16) = *(const uint4*)x[b];
    }
    if (thread % 8 == 0) scales[i * 16 + thread / 8] = fabsf(scale) * (std::is_same<T, f16>::value ? 1 : __uint_as_float((exponent - 14) << 23));
  }
}
#endif

template <class T, int D, int KEYS, bool PAGED, class Source>
__device__ __forceinline__ void prefill(const CUtensorMap& qmap, const Source& source, const Params& p) {
#ifdef SEAFAN_HOPPER
  constexpr bool CODES = std::is_same<Source, Pools>::value;
  typedef typename std::conditional<CODES, f16, T>::type W;  // of the products
  constexpr int STAGES = 2, RAW = D > 128 ? 2 : 4, BLOCKS = D / 64, QB = ROWS * 128, KB = KEYS * 128, Q = BLOCKS * QB, TILE = BLOCKS * KB;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t q_full, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  __shared__ int bad[KEYS];
  __shared__ float scales[CODES ? ROWS : 1];
  unsigned char* qs = shared + (1024 - shared_address(shared) % 1024) % 1024;
  unsigned char* kring = qs + Q;
  unsigned char* vring = kring + STAGES * TILE;
  const int group = threadIdx.x / 128;
  const int head = blockIdx.x, kv_head = head / (p.hq / p.hk);
  if (threadIdx.x == 0) {
    barrier_init(&q_full, 1);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(k_full + i, CODES ? 4 : 1);
      barrier_init(v_full + i, CODES ? 4 : 1);
      barrier_init(k_empty + i, 2);
      barrier_init(v_empty + i, 2);
    }
    barrier_init_fence();
    prefetch_map(&qmap);
    if constexpr (!CODES) {
      prefetch_map(&source.k);
      prefetch_map(&source.v);
    }
  }
  __syncthreads();
  grid_wait();
  int request, tile, lq, lk, first_page = 0, pages = 0;
  long q_first;
  if (PAGED) {
    const int at = gridDim.y - 1 - blockIdx.y;  // a request's longest rows first
    request = p.tile_batch[at];
    if (request < 0) return;
    tile = p.tile_index[at];
    q_first = p.qo_indptr[request];
    lq = p.qo_indptr[request + 1] - q_first;
    first_page = p.page_indptr[request];
    pages = p.page_indptr[request + 1] - first_page;
    lk = pages > 0 ? ((pages - 1) << p.page_log2) + p.last_page_len[request] : 0;
  } else {
    request = blockIdx.z;
    tile = gridDim.y - 1 - blockIdx.y;
    lq = p.lq, lk = p.lk;
    q_first = (long)request * p.lq;
  }
  const int row0 = tile * ROWS;
  if (row0 >= lq) return;
  const int shift = lk - lq, last_row = min(row0 + ROWS, lq) - 1;
  const int end = p.causal ? max(0, min(lk, last_row + shift + 1)) : lk;
  const int low = p.window >= 0 ? max(0, row0 + shift - p.window) : 0;
  const int tile0 = low / KEYS, tiles = end > low ? (end + KEYS - 1) / KEYS - tile0 : 0;

  if (group == 0) {
    registers_give<CODES ? 40 : 24>();
    if (!CODES && threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    if (lane == 0) {
      barrier_expect(&q_full, Q);
      for (int i = 0; i < BLOCKS; i++) {
        if (PAGED) copy_tensor3(qs + i * QB, &qmap, &q_full, i * 64, head, (int)q_first + row0);
        else copy_tensor4(qs + i * QB, &qmap, &q_full, i * 64, head, row0, request);
      }
    }
    if constexpr (CODES) {
      auto find = [&](int key) { return (p.page_indices[first_page + (key >> p.page_log2)] << p.page_log2) + (key & ((1 << p.page_log2) - 1)); };
      auto free = [&](int it, bool values) {
        barrier_wait((values ? v_empty : k_empty) + it % STAGES, (it / STAGES & 1) ^ 1);
        return (values ? vring : kring) + it % STAGES * TILE;
      };
      auto filled = [&](int it, bool values) { barrier_arrive((values ? v_full : k_full) + it % STAGES); };
      widen_tiles<D, KEYS, RAW>(source, p.hk, kv_head, lk, (tile0 + tiles - 1) * KEYS, tiles, shared_address(vring + STAGES * TILE), find, free, filled);
      return;
    } else {
      auto fill = [&](unsigned char* to, const CUtensorMap& map, uint64_t* full, int key0) {
        if (lane == 0) barrier_expect(full, TILE);
        __syncwarp();
        if (!PAGED) {
          if (lane < BLOCKS) copy_tensor4(to + lane * KB, &map, full, lane * 64, kv_head, key0, request);
          return;
        }
        const int box = min(KEYS, 1 << p.page_log2), boxes = KEYS / box;
        for (int i = lane; i < boxes * BLOCKS; i += 32) {
          const int part = i / BLOCKS, block = i % BLOCKS, key = key0 + part * box;
          const int page = p.page_indices[first_page + min(key >> p.page_log2, pages - 1)];  // behind the end: the last page again
          copy_tensor3(to + block * KB + part * box * 128, &map, full, block * 64, kv_head, (page << p.page_log2) + (key & ((1 << p.page_log2) - 1)));
        }
      };
      for (int it = 0; it < tiles; it++) {
        const int slot = it % STAGES, key0 = (tile0 + tiles - 1 - it) * KEYS;
        barrier_wait(k_empty + slot, (it / STAGES & 1) ^ 1);
        fill(kring + slot * TILE, source.k, k_full + slot, key0);
        barrier_wait(v_empty + slot, (it / STAGES & 1) ^ 1);
        fill(vring + slot * TILE, source.v, v_full + slot, key0);
      }
    }
    return;
  }
  registers_take<CODES ? 232 : 240>();
  const int wg = group - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool leader = threadIdx.x % 128 == 0;
  auto first_row = [&] {  // of this thread's two, worked out where it is wanted: a register less on the way
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return row0 + (thread - 128) / 32 * 16 + thread % 32 / 4;
  };
  float o[D / 2], s[KEYS / 2], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, c[2];
  uint32_t pf[KEYS / 16][4];
#pragma unroll
  for (int i = 0; i < D / 2; i++) o[i] = 0;
  barrier_wait(&q_full, 0);
  if constexpr (CODES) {
    narrow_query<T, BLOCKS>(qs + wg * (QB / 2), QB, scales + wg * 64, source.k_steps[kv_head] * p.scale);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(wg + 2) : "memory");
  }
  auto scale = [&](int r) { return CODES ? scales[wg * 64 + warp * 16 + g + r * 8] : p.scale; };
  const float scale2[2] = {(p.softcap > 0 ? 1 : scale(0)) * LOG2E, (p.softcap > 0 ? 1 : scale(1)) * LOG2E};  // of what softmax finds

  auto sees = [&](int i, int key) { return key < lk && (!p.causal || key <= i + shift) && (p.window < 0 || key >= i + shift - p.window); };
  auto partial = [&](int key0) {
    return key0 + KEYS > lk || (p.causal && key0 + KEYS - 1 > row0 + shift) || (p.window >= 0 && key0 < last_row + shift - p.window);
  };
  auto scores = [&](int slot) {
    const uint32_t a = shared_address(qs) + wg * (QB / 2), b = shared_address(kring + slot * TILE);
    // All registers of both products are settled before either starts.
    wgmma_pin(s);
    wgmma_pin(o);
    wgmma_pin(pf);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < D / 16; j++)
      Wgmma<W, KEYS, 0>::shared(s, descriptor(a + j / 4 * QB + j % 4 * 32), descriptor(b + j / 4 * KB + j % 4 * 32), j);
    wgmma_commit();
  };
  // Zeroes what is not finite in a tile of V and notes its rows. Both warpgroups take part. Mostly nothing is: words of two
  // numbers are looked at, whose exponents of ones carry into their signs.
  auto cleanse = [&](int slot) {
    constexpr uint32_t EXPONENTS = Exponents<W>::MASK, ONE = EXPONENTS & ~(EXPONENTS << 1);
    const int thread = threadIdx.x - 128;
    const uint4* words = (const uint4*)(vring + slot * TILE);
    uint32_t found = 0;
#pragma unroll 4
    for (int part = thread; part < TILE / 16; part += 256) {
      const uint4 w = words[part];
      found |= (((w.x & EXPONENTS) + ONE) | ((w.y & EXPONENTS) + ONE) | ((w.z & EXPONENTS) + ONE) | ((w.w & EXPONENTS) + ONE)) & 0x80008000u;
    }
    int dirty_tile;
    asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbar.red.or.pred q, 1, 256, p;\n\tselp.s32 %0, 1, 0, q;\n\t}" : "=r"(dirty_tile) : "r"(found) : "memory");
    if (!dirty_tile) return false;
    if (thread < KEYS) bad[thread] = 0;
    asm volatile("bar.sync 1, 256;" ::: "memory");
#pragma unroll 1
    for (int part = thread; part < TILE / 16; part += 256) {
      W* v = (W*)(vring + slot * TILE + part * 16);
      Pack<W> x = load16(v);
      bool dirty = false;
#pragma unroll
      for (int e = 0; e < 8; e++)
        if (!isfinite(to_float(x.v[e]))) x.v[e] = from_float<W>(0.f), dirty = true;
      if (dirty) {
        store16(v, x);
        bad[part % (KB / 16) / 8] = 1;
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync 1, 256;" ::: "memory");
    return true;
  };
  auto softmax = [&](int key0) {
    if (p.softcap > 0) {
#pragma unroll
      for (int i = 0; i < KEYS / 2; i++) s[i] = p.softcap * tanhf(s[i] * scale(i / 2 % 2) / p.softcap);
    }
    if (partial(key0)) {
      const int i0 = first_row();
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (!sees(i0 + e / 2 * 8, key0 + i * 8 + 2 * t + e % 2)) s[4 * i + e] = -INFINITY;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float x = m[r];
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) x = fmaxf(x, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
      c[r] = x == -INFINITY ? 1.f : power2((m[r] - x) * scale2[r]);
      m[r] = x;
      const float base = x == -INFINITY ? 0.f : x * scale2[r];
      float sum = 0;
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) {
        s[4 * i + 2 * r] = power2(s[4 * i + 2 * r] * scale2[r] - base);
        s[4 * i + 2 * r + 1] = power2(s[4 * i + 2 * r + 1] * scale2[r] - base);
        sum += s[4 * i + 2 * r] + s[4 * i + 2 * r + 1];
      }
      l[r] = l[r] * c[r] + sum;
    }
  };
  auto pack = [&]() {
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) pf[j][e] = pack2<W>(s[8 * j + 2 * e], s[8 * j + 2 * e + 1]);
  };
  auto values = [&](int slot) {
    const uint32_t b = shared_address(vring + slot * TILE);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) Wgmma<W, D, 1>::mixed(o, pf[j], descriptor(b + j * 2048, KB), 1);
    wgmma_commit();
  };
  // Rows that see a key whose value was not finite become NaN.
  auto taint = [&](int key0) {
    const int i0 = first_row();
    for (int r = 0; r < 2; r++)
#pragma unroll 1
      for (int j = 0; j < KEYS; j++)
        if (bad[j] && sees(i0 + r * 8, key0 + j)) l[r] = NAN;
  };

  auto ready = [&](int it) {  // V of step it has arrived and is clean
    const int slot = it % STAGES, key0 = (tile0 + tiles - 1 - it) * KEYS;
    barrier_wait(v_full + slot, it / STAGES & 1);
    if (partial(key0) && cleanse(slot)) taint(key0);
  };
  if (tiles > 0) {
    barrier_wait(k_full, 0);
    scores(0);
    wgmma_wait<0>();
    wgmma_pin(s);
    if (leader) barrier_arrive(k_empty);
    softmax((tile0 + tiles - 1) * KEYS);
    pack();
    for (int it = 1; it < tiles; it++) {
      const int slot = it % STAGES, old = (it - 1) % STAGES;
      ready(it - 1);
      barrier_wait(k_full + slot, it / STAGES & 1);
      scores(slot);
      values(old);
      wgmma_wait<1>();
      wgmma_pin(s);
      if (leader) barrier_arrive(k_empty + slot);
      softmax((tile0 + tiles - 1 - it) * KEYS);
      wgmma_wait<0>();
      wgmma_pin(o);
      if (leader) barrier_arrive(v_empty + old);
#pragma unroll
      for (int i = 0; i < D / 8; i++) o[4 * i] *= c[0], o[4 * i + 1] *= c[0], o[4 * i + 2] *= c[1], o[4 * i + 3] *= c[1];
      pack();
    }
    ready(tiles - 1);
    wgmma_pin(o);
    wgmma_pin(pf);
    values((tiles - 1) % STAGES);
    wgmma_wait<0>();
    wgmma_pin(o);
  }
  const int i0 = first_row();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    l[r] += __shfl_xor_sync(~0u, l[r], 1);
    l[r] += __shfl_xor_sync(~0u, l[r], 2);
    const int i = i0 + r * 8;
    float top = m[r] * scale2[r], factor = 1;  // base 2
    if (p.sinks && m[r] > -INFINITY) {
      const float sink = p.sinks[head] * LOG2E, x = fmaxf(top, sink);
      factor = exp2f(top - x);
      l[r] = l[r] * factor + exp2f(sink - x);
      top = x;
    }
    factor = l[r] == 0 ? 0.f : factor / l[r];
    if constexpr (CODES) factor *= source.v_steps[kv_head];
    T* out = (T*)p.out + ((q_first + i) * p.hq + head) * D + 8 * t;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
      uint32_t v[4];
#pragma unroll
      for (int q = 0; q < 4; q++) v[q] = pack2<T>(o[16 * j + 4 * q + 2 * r] * factor, o[16 * j + 4 * q + 2 * r + 1] * factor);
      transpose4(v, t);
      if (i < lq) *(uint4*)(out + 32 * j) = make_uint4(v[0], v[1], v[2], v[3]);
    }
    if (p.lse && t == 0 && i < lq)
      p.lse[PAGED ? (long)head * p.tokens + q_first + i : ((long)request * p.hq + head) * p.lq + i] = l[r] == 0 ? -INFINITY : (top + log2f(l[r])) * LN2;
  }
#endif
}
