// The loop of products of few rows on Hopper, whose time is that of reading w once. Kernels differ in what multiplies a stage.
//
// The roles are swapped: 256 rows of w are the rows of the wgmma tile and the COLS tokens its columns. The work, (row tile,
// step along k), is cut into equal runs, one for each block of a grid of up to all multiprocessors. One warp keeps a ring of
// stages filled (w 256 rows of 128 bytes, and x). Two warpgroups own 128 rows each, as two tiles of 64. A row tile that spans
// several blocks is summed in f32 by the block that has its first step, in order of the blocks: the others write theirs to
// the scratch at the start of their run and raise a flag, which the reader lowers. The cuts depend on N, K and the number of
// blocks, not on M, so a token's sums do not depend on how many tokens share the launch.
// A block takes at most half of a multiprocessor where its ring is short: the next launch then fills its ring with weights
// while this one ends.
// With DUAL, w is [2F,K]: each warpgroup holds 64 rows of the first half and the matching 64 of the second, and y[M,F] is
// silu(first) * second.
// Design read: Osama et al. 2023 (Stream-K).
#pragma once
#include "fp8.cuh"
#include "wgmma_fp8.cuh"

namespace {
struct Params {
  Sink sink;
  Steps steps;
  float* scratch;  // [blocks][256][COLS]
  int* flags;      // [blocks], zero before and after
  int m, n, k;     // n counts columns of y
  int early;       // w may be read before the launch in front has ended
};
}  // namespace

#ifdef SEAFAN_HOPPER
__device__ __forceinline__ void launch_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Math has BK, the k of a stage; XTILES, the boxes of 128 bytes that x comes in; Bias, its type; STEPS, whether operands are codes; step(d, w, x, release,
// of_w, of_x), which adds a stage's product to d and calls release when it no longer reads the stage; and dispatch(out, f), which
// calls f with the types of the result and of the residual.
template <class Math, int COLS, int STAGES, bool DUAL>
__device__ __forceinline__ void stream(const CUtensorMap& xmap, const CUtensorMap& wmap, const Params& p) {
  constexpr int ROWS = 256, BK = Math::BK, W = ROWS * 128, X = Math::XTILES * COLS * 128, STAGE = W + X, OUT = DUAL ? ROWS / 2 : ROWS;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t full[STAGES], empty[STAGES];
  __shared__ float x_steps[Math::STEPS ? COLS : 1];
  unsigned char* ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
  if (threadIdx.x == 0) {
    prefetch_map(&xmap);
    prefetch_map(&wmap);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, 2);
    }
    barrier_init_fence();
  }
  __syncthreads();
  launch_next();
  const int steps = (p.k + BK - 1) / BK, tiles = (p.n + OUT - 1) / OUT;
  const int total = tiles * steps, blocks = gridDim.x;
  const int first = (long)total * blockIdx.x / blocks, end = (long)total * (blockIdx.x + 1) / blocks;
  if (threadIdx.x >= 256) {
    if (threadIdx.x == 256) {
      auto load_w = [&](int unit, int slot) {
        unsigned char* w = ring + slot * STAGE;
        const int row = unit / steps * OUT, k = unit % steps * BK;
        barrier_expect(full + slot, STAGE);
        if (DUAL) {
          copy_tensor2(w, &wmap, full + slot, k, row);
          copy_tensor2(w + W / 4, &wmap, full + slot, k, p.n + row);
          copy_tensor2(w + W / 2, &wmap, full + slot, k, row + 64);
          copy_tensor2(w + 3 * W / 4, &wmap, full + slot, k, p.n + row + 64);
        } else {
          copy_tensor2(w, &wmap, full + slot, k, row);
        }
      };
      auto load_x = [&](int unit, int slot) {
#pragma unroll
        for (int i = 0; i < Math::XTILES; i++)
          copy_tensor2(ring + slot * STAGE + W + i * COLS * 128, &xmap, full + slot, unit % steps * BK + i * (BK / Math::XTILES), 0);
      };
      // Weights never depend on the launch in front: a ring of them is on its way before it has ended.
      const int primed = min(end, first + STAGES);
      if (!p.early) wait_previous();
      for (int unit = first; unit < primed; unit++) load_w(unit, unit - first);
      if (p.early) wait_previous();
      for (int unit = first; unit < primed; unit++) load_x(unit, unit - first);
      int slot = 0, parity = 0;
      for (int unit = primed; unit < end; unit++) {
        barrier_wait(empty + slot, parity);
        load_w(unit, slot);
        load_x(unit, slot);
        if (++slot == STAGES) slot = 0, parity ^= 1;
      }
    }
    return;
  }
  wait_previous();
  if (Math::STEPS) {
    if (threadIdx.x < COLS) x_steps[threadIdx.x] = p.steps.x && threadIdx.x < p.m ? p.steps.x[(long)threadIdx.x * p.steps.x_row] : 1.f;
    asm volatile("bar.sync 1, 256;" ::: "memory");
  }
  const int wg = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int mine = threadIdx.x;
  int slot = 0, parity = 0;
  // The flag follows the partial sums some steps later: by then they are written, and the fence does not stop the stream.
  bool owed = false;
  auto pay = [&]() {
    __threadfence();
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (mine == 0) atomicExch(p.flags + blockIdx.x, 1);
    owed = false;
  };
  float amax = 0.f;
  for (int unit = first; unit < end;) {
    const int tile = unit / steps;
    const bool owner = unit % steps == 0;
    const int stop = min(end, (tile + 1) * steps), begin = unit;
    float d[2][COLS / 2];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < COLS / 2; j++) d[i][j] = 0.f;
    // Of the steps that change along k: rows of w by blocks of 128, and rows of x.
    const float* wk = p.steps.wk ? p.steps.wk + (DUAL ? tile : 2 * tile + wg) * (long)p.steps.wk_row + begin % steps : nullptr;
    const float* xk = p.steps.xk ? p.steps.xk + begin % steps : nullptr;
    for (; unit < stop; unit++) {
      barrier_wait(full + slot, parity);
      const uint32_t w = shared_address(ring + slot * STAGE) + wg * (W / 2), x = shared_address(ring + slot * STAGE) + W;
      Math::step(d, w, x, [&]() { if (threadIdx.x % 128 == 0) barrier_arrive(empty + slot); }, [&](int i) { return wk ? wk[DUAL ? i * (p.n / 128) * (long)p.steps.wk_row : 0] : 1.f; },
                 [&](int j) { return xk ? xk[min(j / 2 * 8 + 2 * t + j % 2, p.m - 1) * (long)p.steps.xk_row] : 1.f; });
      if (Math::STEPS && wk) wk++;
      if (Math::STEPS && xk) xk++;
      if (++slot == STAGES) slot = 0, parity ^= 1;
      if (owed && unit == begin + 3) pay();
    }
    if (owed) pay();

    // Scratch in the order of the registers, so that every access is a run of 256 threads.
    if (!owner) {
      float* s = p.scratch + (long)blockIdx.x * ROWS * COLS + mine;
#pragma unroll
      for (int i = 0; i < COLS; i++) s[i * 256] = d[i / (COLS / 2)][i % (COLS / 2)];
      owed = true;
      if (unit == end) pay();
      continue;
    }
    // The blocks behind this one that share the tile.
    const int past = ((long)(tile + 1) * steps * blocks + total - 1) / total;  // the first block that starts at or behind its end
    const int helpers = past - (int)blockIdx.x - 1;
    if (helpers > 0) {
      if (mine < helpers) {
        while (atomicAdd(p.flags + blockIdx.x + 1 + mine, 0) == 0) __nanosleep(20);
        atomicExch(p.flags + blockIdx.x + 1 + mine, 0);
        __threadfence();
      }
      asm volatile("bar.sync 1, 256;" ::: "memory");
      const float* s = p.scratch + ((long)blockIdx.x + 1) * ROWS * COLS + mine;
#pragma unroll(COLS <= 16 ? 4 : 1)
      for (int h = 0; h < helpers; h++, s += ROWS * COLS) {
#pragma unroll
        for (int i = 0; i < COLS; i++) d[i / (COLS / 2)][i % (COLS / 2)] += __ldcg(s + i * 256);
      }
    }
    auto finish = [&](auto out, auto residual) {
      typedef decltype(out) Out;
      typedef decltype(residual) Residual;
      constexpr int TILES = DUAL ? 1 : 2, CHUNK = COLS == 64 && !Math::STEPS ? 1 : COLS / 4 < 4 ? COLS / 4 : 4;
      // What is read comes in front of the first store: y may be the residual, so a load would wait for the store before it.
      float fw[2][2], bias[TILES][2];
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int c = tile * OUT + (DUAL ? wg * 64 : wg * 128 + i * 64) + warp * 16 + g + half * 8;
          if (Math::STEPS) fw[i][half] = p.steps.w && c < p.n ? p.steps.w[(long)(c + (DUAL && i ? p.n : 0)) * p.steps.w_row] : 1.f;
          if (i < TILES) bias[i][half] = p.sink.bias && c < p.n ? to_float(((const typename Math::Bias*)p.sink.bias)[c]) : 0.f;
        }
#pragma unroll
      for (int j0 = 0; j0 < COLS / 4; j0 += CHUNK) {
        int t2 = 2 * t;
        asm volatile("" : "+r"(t2));  // addresses of one chunk are not kept for the next
        float e[TILES][2][CHUNK];
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
          for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
              const int c = tile * OUT + (DUAL ? wg * 64 : wg * 128 + i * 64) + warp * 16 + g + half * 8;
              const int r = (j0 + j) / 2 * 8 + t2 + j % 2;
              e[i][half][j] = p.sink.residual && r < p.m && c < p.n ? to_float(((const Residual*)p.sink.residual)[r * p.sink.residual_stride + c]) : 0.f;
            }
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int c = tile * OUT + (DUAL ? wg * 64 : wg * 128 + i * 64) + warp * 16 + g + half * 8;
            if (c >= p.n) continue;
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
              const int r = (j0 + j) / 2 * 8 + t2 + j % 2, at = (j0 + j) / 2 * 4 + half * 2 + j % 2;
              if (r >= p.m) continue;
              float u = d[i][at], v = DUAL ? d[1][at] : 0.f;
              if (Math::STEPS) {
                const float fx = x_steps[r];
                u *= fx * fw[i][half], v *= fx * fw[1][half];
              }
              if (DUAL) u = u / (1.f + __expf(-u)) * v;
              u += bias[i][half];
              u += e[i][half][j];
              if (Math::STEPS) amax = fmaxf(amax, fabsf(u));
              put<Out>(p.sink, r * p.sink.stride + c, u);
            }
          }
      }
    };
    Math::dispatch(p.sink.out, finish);
  }
  if (Math::STEPS) put_amax(p.sink, amax);
}
#endif
