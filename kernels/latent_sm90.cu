// Attention over latents on Hopper: queries [T,H,576] that meet the latents themselves (see latent_query), one kv head in pages
// [pages,page_size,576] of which the first 512 numbers of a row are its value too: a row is read once for both.
//
// A row is a query token and a head, row token*H + head of its request; a block owns 64 of them. Warpgroup 0 is the producer:
// one warp keeps two stages of 64 keys filled (72 KB each, a lane a page and 64 columns). Warpgroups 1 and 2 share the rows:
// each makes the scores with 32 of the keys (wgmma m64n32), they exchange the maxima of the rows and then the weights in
// shared memory, and each owns 256 columns of the output (wgmma m64n256, weights from registers, keys as the values). The
// scores of the next keys run beside the products of these. Softmax in f32, base 2.
// Split (requests of one token): grid (chunks, row tiles, requests); the keys of a request are cut by its length and the number
// of heads alone, into chunk_of(length) keys; a chunk writes its sums unscaled with maximum and denominator, latent_merge adds them in order. Whole
// (requests of several tokens): tile_batch and tile_index map blockIdx.x to request and row tile, a negative request has no
// work. Causal is bottom-right. Keys behind a row's last one never enter: a tile that needs a mask is cleansed of what is not
// finite, and rows that see such a key become NaN. Pages of 8 keys or more. latent_merge also writes zeros to the rows behind the last request.
// Shared memory: 3 * 72 KB + 8 KB and 1 KB. sm_90a only; empty elsewhere.
// Papers: DeepSeek-AI 2024 (DeepSeek-V2), Shah et al. 2024 (FlashAttention-3).
#include "hopper.cuh"

namespace {
constexpr int KEYS = 64, V = 512, MOST_CHUNKS = 32;

struct Params {
  void* out;             // [T,H,512]
  float* sums;           // split: [R,chunks,H,512]
  float* tops;           // split: [R,chunks,H,2], maximum times scale in base 2 and denominator
  const int* qo_indptr;  // [R+1]
  const int* tile_batch;
  const int* tile_index;
  const int* page_indptr;
  const int* page_indices;
  const int* last_page_len;
  int heads, chunks, least, page_log2, tokens, requests;
  float scale;
  int pad;
};

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Keys of a chunk of a request: `least` or more, whole tiles, at most MOST_CHUNKS of them.
__device__ __forceinline__ int chunk_of(int length, int least) {
  const int chunks = min(MOST_CHUNKS, max(1, (length + least - 1) / least));
  return ((length + chunks - 1) / chunks + KEYS - 1) / KEYS * KEYS;
}
__device__ __forceinline__ int length_of(const Params& p, int request, int& first_page, int& pages) {
  first_page = p.page_indptr[request];
  pages = p.page_indptr[request + 1] - first_page;
  return pages > 0 ? ((pages - 1) << p.page_log2) + p.last_page_len[request] : 0;
}
}  // namespace

template <class T, bool SPLIT> __device__ __forceinline__ void attend(const CUtensorMap& qmap, const CUtensorMap& kmap, const Params& p) {
#ifdef SEAFAN_HOPPER
  constexpr int ROWS = 64, D = 576, STAGES = 2, BLOCKS = D / 64, BLOCK = 64 * 128, TILE = BLOCKS * BLOCK;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t q_full, full[STAGES], empty[STAGES];
  __shared__ float stat[2][ROWS];
  __shared__ int bad[KEYS], any_bad;
  unsigned char* qs = shared + (1024 - shared_address(shared) % 1024) % 1024;
  unsigned char* ring = qs + TILE;
  unsigned char* ps = ring + STAGES * TILE;
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    barrier_init(&q_full, 1);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, 2);
    }
    barrier_init_fence();
    prefetch_map(&qmap);
    prefetch_map(&kmap);
  }
  __syncthreads();
  grid_wait();
  const int request = SPLIT ? blockIdx.z : p.tile_batch[blockIdx.x];
  if (request < 0) return;
  const int q_first = p.qo_indptr[request], lq = p.qo_indptr[request + 1] - q_first;
  if (SPLIT && lq != 1) return;
  int first_page, pages;
  const int lk = length_of(p, request, first_page, pages);
  const int row0 = (SPLIT ? blockIdx.y : p.tile_index[blockIdx.x]) * ROWS, rows = lq * p.heads;
  if (row0 >= rows) return;
  const int shift = lk - lq, last_row = min(row0 + ROWS, rows) - 1;
  int low = 0, end = max(0, min(lk, last_row / p.heads + shift + 1));
  int chunk = lk;
  if (SPLIT) {
    chunk = chunk_of(lk, p.least);
    low = blockIdx.x * chunk;
    end = min(end, low + chunk);
    if (low >= end && blockIdx.x > 0) return;
  }
  const int tiles = (end - low + KEYS - 1) / KEYS;

  if (group == 0) {
    registers_give<24>();
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    if (lane == 0) barrier_expect(&q_full, TILE);
    __syncwarp();
    if (lane < BLOCKS) copy_tensor2(qs + lane * BLOCK, &qmap, &q_full, lane * 64, q_first * p.heads + row0);
    const int box = min(KEYS, 1 << p.page_log2), boxes = KEYS / box;
    for (int it = 0; it < tiles; it++) {
      const int slot = it % STAGES, key0 = low + (tiles - 1 - it) * KEYS;
      barrier_wait(empty + slot, (it / STAGES & 1) ^ 1);
      if (lane == 0) barrier_expect(full + slot, TILE);
      __syncwarp();
      for (int i = lane; i < boxes * BLOCKS; i += 32) {
        const int part = i / BLOCKS, block = i % BLOCKS, key = key0 + part * box;
        const int page = p.page_indices[first_page + min(key >> p.page_log2, pages - 1)];  // behind the end: the last page again
        copy_tensor2(ring + slot * TILE + block * BLOCK + part * box * 128, &kmap, full + slot, block * 64, (page << p.page_log2) + (key & ((1 << p.page_log2) - 1)));
      }
    }
    return;
  }
  registers_take<240>();
  const int wg = group - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int r0 = warp * 16 + g;  // and r0 + 8
  const bool leader = threadIdx.x % 128 == 0;
  const float scale2 = p.scale * 1.4426950408889634f;
  int limit[2];  // the first key that the row does not see
#pragma unroll
  for (int r = 0; r < 2; r++) limit[r] = min(end, (row0 + r0 + r * 8) / p.heads + shift + 1);
  const int sure = min(end, row0 / p.heads + shift + 1);  // all rows see the keys in front
  float o[128], s[16], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, c[2];
  uint32_t pf[4][4];
#pragma unroll
  for (int i = 0; i < 128; i++) o[i] = 0;

  auto both = [](int name) { asm volatile("bar.sync %0, 256;" ::"r"(name) : "memory"); };
  // Zeroes what is not finite in a tile and notes its rows. Both warpgroups take part.
  auto cleanse = [&](int slot) {
    const int thread = threadIdx.x - 128;
    both(1);
    if (thread == 0) any_bad = 0;
    if (thread < KEYS) bad[thread] = 0;
    both(1);
    for (int part = thread; part < TILE / 16; part += 256) {
      T* v = (T*)(ring + slot * TILE + part * 16);
      Pack<T> x = load16(v);
      bool dirty = false;
#pragma unroll
      for (int e = 0; e < 8; e++)
        if (!isfinite(to_float(x.v[e]))) x.v[e] = from_float<T>(0.f), dirty = true;
      if (dirty) {
        store16(v, x);
        bad[part % (BLOCK / 16) / 8] = any_bad = 1;
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    both(1);
  };
  auto arrived = [&](int it) {
    const int slot = it % STAGES, key0 = low + (tiles - 1 - it) * KEYS;
    barrier_wait(full + slot, it / STAGES & 1);
    if (key0 + KEYS <= sure) return;
    cleanse(slot);
    if (!any_bad) return;
#pragma unroll
    for (int r = 0; r < 2; r++)
      for (int j = 0; j < KEYS; j++)
        if (bad[j] && key0 + j < limit[r]) l[r] = NAN;
  };
  auto scores = [&](int slot) {
    uint32_t a = shared_address(qs), b = shared_address(ring + slot * TILE) + wg * (KEYS / 2) * 128;
    asm volatile("" : "+r"(a), "+r"(b));  // 72 descriptors are made where they are used, not kept
    wgmma_pin(s);
    wgmma_pin(o);
    wgmma_pin(pf);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < D / 16; j++)
      Wgmma<T, KEYS / 2, 0>::shared(s, descriptor(a + j / 4 * BLOCK + j % 4 * 32), descriptor(b + j / 4 * BLOCK + j % 4 * 32), j);
    wgmma_commit();
  };
  auto values = [&](int slot) {
    const uint32_t b = shared_address(ring + slot * TILE) + wg * 4 * BLOCK;
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) Wgmma<T, 256, 1>::mixed(o, pf[j], descriptor(b + j * 2048, BLOCK), 1);
    wgmma_commit();
  };
  // Weights of this warpgroup's keys to shared memory; c is the factor of what was summed before.
  auto softmax = [&](int key0) {
    if (key0 + KEYS > sure) {
#pragma unroll
      for (int i = 0; i < 16; i++)
        if (key0 + wg * 32 + i / 4 * 8 + 2 * t + i % 2 >= limit[i / 2 % 2]) s[i] = -INFINITY;
    }
    float x[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      x[r] = m[r];
#pragma unroll
      for (int i = 0; i < 4; i++) x[r] = fmaxf(x[r], fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
      x[r] = fmaxf(x[r], __shfl_xor_sync(~0u, x[r], 1));
      x[r] = fmaxf(x[r], __shfl_xor_sync(~0u, x[r], 2));
      if (t == 0) stat[wg][r0 + r * 8] = x[r];
    }
    both(2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      x[r] = fmaxf(x[r], stat[wg ^ 1][r0 + r * 8]);
      c[r] = x[r] == -INFINITY ? 1.f : power2((m[r] - x[r]) * scale2);
      m[r] = x[r];
      const float base = x[r] == -INFINITY ? 0.f : x[r] * scale2;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float u = power2(s[4 * i + 2 * r] * scale2 - base), v = power2(s[4 * i + 2 * r + 1] * scale2 - base);
        sum += u + v;
        const int row = r0 + r * 8;
        *(uint32_t*)(ps + row * 128 + ((wg * 4 + i) ^ (row & 7)) * 16 + t * 4) = pack2<T>(u, v);
      }
      l[r] = l[r] * c[r] + sum;
    }
    both(3);
  };
  auto fetch = [&]() {
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 4; j++) ldmatrix4(pf[j], shared_address(ps) + row * 128 + ((j * 2 + lane / 16) ^ (row & 7)) * 16);
  };
  barrier_wait(&q_full, 0);
  if (tiles > 0) {
    arrived(0);
    scores(0);
    wgmma_wait<0>();
    wgmma_pin(s);
    softmax(low + (tiles - 1) * KEYS);
    fetch();
    for (int it = 1; it < tiles; it++) {
      const int slot = it % STAGES, old = (it - 1) % STAGES;
      arrived(it);
      scores(slot);
      values(old);
      wgmma_wait<1>();
      wgmma_pin(s);
      softmax(low + (tiles - 1 - it) * KEYS);
      wgmma_wait<0>();
      wgmma_pin(o);
      if (leader) barrier_arrive(empty + old);
      if (__any_sync(~0u, c[0] != 1.f || c[1] != 1.f)) {  // most tiles leave the maxima as they are
#pragma unroll
        for (int i = 0; i < 32; i++) o[4 * i] *= c[0], o[4 * i + 1] *= c[0], o[4 * i + 2] *= c[1], o[4 * i + 3] *= c[1];
      }
      fetch();
    }
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
  }
  both(2);
  if (t == 0) stat[wg][r0] = l[0], stat[wg][r0 + 8] = l[1];
  both(3);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = row0 + r0 + r * 8;
    if (row >= rows) continue;
    const float total = stat[0][r0 + r * 8] + stat[1][r0 + r * 8];
    if (SPLIT && chunk < lk) {
      const long at = ((long)request * p.chunks + blockIdx.x) * p.heads + row;
      float* sums = p.sums + at * V + wg * 256;
#pragma unroll
      for (int j = 0; j < 32; j++) *(float2*)(sums + j * 8 + 2 * t) = make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
      if (wg == 0 && t == 0) p.tops[2 * at] = m[r] * scale2, p.tops[2 * at + 1] = total;
      continue;
    }
    const float factor = total == 0 ? 0.f : 1 / total;
    T* out = (T*)p.out + ((long)q_first * p.heads + row) * V + wg * 256;
#pragma unroll
    for (int j = 0; j < 32; j++) *(uint32_t*)(out + j * 8 + 2 * t) = pack2<T>(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
  }
#endif
}

// A block owns a head of a request of one token; those of request R write zeros to the rows behind the last request.
template <class T> __device__ __forceinline__ void merge(const Params& p) {
  const int head = blockIdx.x, request = blockIdx.y;
  grid_wait();
  const int q_first = p.qo_indptr[request];
  if (request == p.requests) {
    for (long t = q_first; t < p.tokens; t++) *(uint2*)((T*)p.out + (t * p.heads + head) * V + threadIdx.x * 4) = make_uint2(0, 0);
    return;
  }
  if (p.qo_indptr[request + 1] - q_first != 1) return;
  int first_page, pages;
  const int lk = length_of(p, request, first_page, pages), chunk = chunk_of(lk, p.least), chunks = (lk + chunk - 1) / max(chunk, 1);
  if (chunks < 2) return;
  const long at = (long)request * p.chunks * p.heads + head;
  float top = -INFINITY;
  for (int c = 0; c < chunks; c++) top = fmaxf(top, p.tops[2 * (at + (long)c * p.heads)]);
  float4 s = make_float4(0, 0, 0, 0);
  float total = 0;
#pragma unroll 4
  for (int c = 0; c < chunks; c++) {
    const long i = at + (long)c * p.heads;
    const float w = power2(p.tops[2 * i] - top);
    const float4 v = *(const float4*)(p.sums + i * V + threadIdx.x * 4);
    total += w * p.tops[2 * i + 1];
    s.x += w * v.x, s.y += w * v.y, s.z += w * v.z, s.w += w * v.w;
  }
  const float f = 1 / total;
  T* out = (T*)p.out + ((long)q_first * p.heads + head) * V + threadIdx.x * 4;
  *(uint2*)out = make_uint2(pack2<T>(s.x * f, s.y * f), pack2<T>(s.z * f, s.w * f));
}

#define LATENT(T)                                                                                                              \
  extern "C" __global__ void __launch_bounds__(384, 1) latent_attention_sm90_split_##T(const __grid_constant__ CUtensorMap q,  \
      const __grid_constant__ CUtensorMap k, const __grid_constant__ Params p) { attend<T, true>(q, k, p); }                   \
  extern "C" __global__ void __launch_bounds__(384, 1) latent_attention_sm90_##T(const __grid_constant__ CUtensorMap q,        \
      const __grid_constant__ CUtensorMap k, const __grid_constant__ Params p) { attend<T, false>(q, k, p); }                  \
  extern "C" __global__ void __launch_bounds__(128) latent_merge_##T(const __grid_constant__ Params p) { merge<T>(p); }
LATENT(bf16)
LATENT(f16)
