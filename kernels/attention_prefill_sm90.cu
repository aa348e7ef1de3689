// Prefill attention on Hopper: wgmma fed by the copy engine, dense or as a ragged batch over KV pages of 8 tokens or more.
//
// A block owns 128 query rows of one head. Warpgroup 0 is the producer: one warp keeps two stages of K and of V filled
// (KEYS rows each; with pages, a lane a page). Warpgroups 1 and 2 own 64 rows each: scores S = Q K^T in registers, softmax in
// f32 base 2, P in registers as the A operand of O += P V. The S of the next tile and the P V of this one run on the tensor
// cores while the softmax of the next runs beside them. Keys are walked from the last tile back, so that the tiles of the
// diagonal come first. Blocks with the most keys start first; the heads of a group are neighbours and share K and V in L2.
// Semantics, NaN included, are those of attention_prefill.cu; a tile that needs a mask is checked for values that are not
// finite by the two warpgroups together. No mask tensor.
// KEYS is 128 up to D 128, 64 at D 256. Shared memory: (128 + 4*KEYS) * 2D bytes and barriers. sm_90a only; empty elsewhere.
// Paper: Shah et al. 2024 (FlashAttention-3).
#include "epilogue.cuh"
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

template <class T, int D, int KEYS, bool PAGED>
__device__ __forceinline__ void prefill(const CUtensorMap& qmap, const CUtensorMap& kmap, const CUtensorMap& vmap, const Params& p) {
#ifdef SEAFAN_HOPPER
  constexpr int STAGES = 2, BLOCKS = D / 64, QB = ROWS * 128, KB = KEYS * 128, Q = BLOCKS * QB, TILE = BLOCKS * KB;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t q_full, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  __shared__ int bad[KEYS];
  unsigned char* qs = shared + (1024 - shared_address(shared) % 1024) % 1024;
  unsigned char* kring = qs + Q;
  unsigned char* vring = kring + STAGES * TILE;
  const int group = threadIdx.x / 128;
  const int head = blockIdx.x, kv_head = head / (p.hq / p.hk);
  if (threadIdx.x == 0) {
    barrier_init(&q_full, 1);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(k_full + i, 1);
      barrier_init(v_full + i, 1);
      barrier_init(k_empty + i, 2);
      barrier_init(v_empty + i, 2);
    }
    barrier_init_fence();
    prefetch_map(&qmap);
    prefetch_map(&kmap);
    prefetch_map(&vmap);
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
    registers_give<24>();
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    if (lane == 0) {
      barrier_expect(&q_full, Q);
      for (int i = 0; i < BLOCKS; i++) {
        if (PAGED) copy_tensor3(qs + i * QB, &qmap, &q_full, i * 64, head, (int)q_first + row0);
        else copy_tensor4(qs + i * QB, &qmap, &q_full, i * 64, head, row0, request);
      }
    }
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
      fill(kring + slot * TILE, kmap, k_full + slot, key0);
      barrier_wait(v_empty + slot, (it / STAGES & 1) ^ 1);
      fill(vring + slot * TILE, vmap, v_full + slot, key0);
    }
    return;
  }
  registers_take<240>();
  const int wg = group - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool leader = threadIdx.x % 128 == 0;
  const int i0 = row0 + wg * 64 + warp * 16 + g;
  float o[D / 2], s[KEYS / 2], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, c[2];
  uint32_t pf[KEYS / 16][4];
#pragma unroll
  for (int i = 0; i < D / 2; i++) o[i] = 0;
  const float scale2 = p.scale * LOG2E;

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
      Wgmma<T, KEYS, 0>::shared(s, descriptor(a + j / 4 * QB + j % 4 * 32), descriptor(b + j / 4 * KB + j % 4 * 32), j);
    wgmma_commit();
  };
  // Zeroes what is not finite in a tile of V and notes its rows. Both warpgroups take part. Mostly nothing is: words of two
  // numbers are looked at, whose exponents of ones carry into their signs.
  auto cleanse = [&](int slot) {
    constexpr uint32_t EXPONENTS = Exponents<T>::MASK, ONE = EXPONENTS & ~(EXPONENTS << 1);
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
    for (int part = thread; part < TILE / 16; part += 256) {
      T* v = (T*)(vring + slot * TILE + part * 16);
      Pack<T> x = load16(v);
      bool dirty = false;
#pragma unroll
      for (int e = 0; e < 8; e++)
        if (!isfinite(to_float(x.v[e]))) x.v[e] = from_float<T>(0.f), dirty = true;
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
      for (int i = 0; i < KEYS / 2; i++) s[i] = p.softcap * tanhf(s[i] * p.scale / p.softcap) / p.scale;
    }
    if (partial(key0)) {
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
      c[r] = x == -INFINITY ? 1.f : power2((m[r] - x) * scale2);
      m[r] = x;
      const float base = x == -INFINITY ? 0.f : x * scale2;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) {
        s[4 * i + 2 * r] = power2(s[4 * i + 2 * r] * scale2 - base);
        s[4 * i + 2 * r + 1] = power2(s[4 * i + 2 * r + 1] * scale2 - base);
        sum += s[4 * i + 2 * r] + s[4 * i + 2 * r + 1];
      }
      l[r] = l[r] * c[r] + sum;
    }
  };
  auto pack = [&]() {
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) pf[j][e] = pack2<T>(s[8 * j + 2 * e], s[8 * j + 2 * e + 1]);
  };
  auto values = [&](int slot) {
    const uint32_t b = shared_address(vring + slot * TILE);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) Wgmma<T, D, 1>::mixed(o, pf[j], descriptor(b + j * 2048, KB), 1);
    wgmma_commit();
  };
  // Rows that see a key whose value was not finite become NaN.
  auto taint = [&](int key0) {
    for (int r = 0; r < 2; r++)
      for (int j = 0; j < KEYS; j++)
        if (bad[j] && sees(i0 + r * 8, key0 + j)) l[r] = NAN;
  };

  auto ready = [&](int it) {  // V of step it has arrived and is clean
    const int slot = it % STAGES, key0 = (tile0 + tiles - 1 - it) * KEYS;
    barrier_wait(v_full + slot, it / STAGES & 1);
    if (partial(key0) && cleanse(slot)) taint(key0);
  };
  barrier_wait(&q_full, 0);
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
#pragma unroll
  for (int r = 0; r < 2; r++) {
    l[r] += __shfl_xor_sync(~0u, l[r], 1);
    l[r] += __shfl_xor_sync(~0u, l[r], 2);
    const int i = i0 + r * 8;
    float top = m[r] * scale2, factor = 1;  // base 2
    if (p.sinks && m[r] > -INFINITY) {
      const float sink = p.sinks[head] * LOG2E, x = fmaxf(top, sink);
      factor = exp2f(top - x);
      l[r] = l[r] * factor + exp2f(sink - x);
      top = x;
    }
    factor = l[r] == 0 ? 0.f : factor / l[r];
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

#define PREFILL(T, D, KEYS)                                                                                                     \
  extern "C" __global__ void __launch_bounds__(384, 1) attention_prefill_sm90_dense_##T##_##D(                                  \
      const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, const __grid_constant__ Params p) { \
    prefill<T, D, KEYS, false>(q, k, v, p);                                                                                     \
  }                                                                                                                             \
  extern "C" __global__ void __launch_bounds__(384, 1) attention_prefill_sm90_paged_##T##_##D(                                  \
      const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, const __grid_constant__ Params p) { \
    prefill<T, D, KEYS, true>(q, k, v, p);                                                                                      \
  }
#define PREFILLS(T)                                                                                                             \
  PREFILL(T, 64, 128)                                                                                                           \
  PREFILL(T, 128, 128)                                                                                                          \
  PREFILL(T, 256, 64)
PREFILLS(bf16)
PREFILLS(f16)
