// y[M,N] = x[M,K] w[N,K]^T on Hopper for M up to 64: the time is that of reading w once, so w is what streams.
//
// The roles are swapped: 256 rows of w are the rows of the wgmma tile and the COLS (8, 16, 32 or 64) tokens its columns.
// The work, (row tile, step of 64 k), is cut into equal runs, one for each block of a grid of up to all multiprocessors. One
// producer thread keeps a ring of stages filled (w 32 KB and x COLS*128 bytes a stage, about 200 KB in flight). Two
// warpgroups own 128 rows each, as two tiles of 64. A row tile that spans several blocks is summed in f32 by the block that
// has its first step, in order of the blocks: the others write theirs to the scratch at the start of their run and raise a
// flag, which the reader lowers. The cuts depend on N, K and the number of blocks, not on M, so a token's sums do not
// depend on how many tokens share the launch.
// With DUAL, w is [2F,K]: each warpgroup holds 64 rows of the first half and the matching 64 of the second, and y[M,F] is
// silu(first) * second. Epilogue: + bias[N], + residual[M,N], one rounding (or f32 out). K a multiple of 8, rows aligned
// to 16 bytes. Shared memory: the ring. sm_90a only; empty elsewhere.
// Design read: Osama et al. 2023 (Stream-K).
#include "hopper.cuh"

namespace {
struct Params {
  void* y;
  const void* bias;
  const void* residual;
  float* scratch;  // [blocks][256][COLS]
  int* flags;      // [blocks], zero before and after
  long y_stride, residual_stride;
  int m, n, k;  // n counts columns of y
  int f32_out;
};
}  // namespace

template <class T, int COLS, int STAGES, bool DUAL>
__device__ __forceinline__ void gemm_stream(const CUtensorMap& xmap, const CUtensorMap& wmap, const Params& p) {
#ifdef SEAFAN_HOPPER
  constexpr int ROWS = 256, BK = 64, W = ROWS * BK * 2, X = COLS * BK * 2, STAGE = W + X, OUT = DUAL ? ROWS / 2 : ROWS;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t full[STAGES], empty[STAGES];
  unsigned char* ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
  const int group = threadIdx.x / 128;
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
  const int steps = (p.k + BK - 1) / BK, tiles = (p.n + OUT - 1) / OUT;
  const long total = (long)tiles * steps, blocks = gridDim.x;
  const long first = total * blockIdx.x / blocks, end = total * (blockIdx.x + 1) / blocks;
  if (group == 0) {
    registers_give<40>();
    if (threadIdx.x == 0) {
      int at = 0;
      bool waited = false;
      for (long unit = first; unit < end; unit++, at++) {
        const int slot = at % STAGES, tile = unit / steps, k = unit % steps * BK;
        barrier_wait(empty + slot, (at / STAGES & 1) ^ 1);
        unsigned char* w = ring + slot * STAGE;
        barrier_expect(full + slot, STAGE);
        const int row = tile * OUT;
        // Weights never depend on the launch in front: their loads start before it has ended.
        if (DUAL) {
          copy_tensor2(w, &wmap, full + slot, k, row);
          copy_tensor2(w + W / 4, &wmap, full + slot, k, p.n + row);
          copy_tensor2(w + W / 2, &wmap, full + slot, k, row + 64);
          copy_tensor2(w + 3 * W / 4, &wmap, full + slot, k, p.n + row + 64);
        } else {
          copy_tensor2(w, &wmap, full + slot, k, row);
          copy_tensor2(w + W / 2, &wmap, full + slot, k, row + 128);
        }
        if (!waited) {
          grid_wait();
          waited = true;
        }
        copy_tensor2(w + W, &xmap, full + slot, k, 0);
      }
    }
  } else {
    registers_take<232>();
    grid_wait();
    const int wg = group - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int at = 0;
    const int mine = wg * 128 + threadIdx.x % 128;
    // The flag follows the partial sums some steps later: by then they are written, and the fence does not stop the stream.
    bool owed = false;
    auto pay = [&]() {
      __threadfence();
      asm volatile("bar.sync 1, 256;" ::: "memory");
      if (mine == 0) atomicExch(p.flags + blockIdx.x, 1);
      owed = false;
    };
    for (long unit = first; unit < end;) {
      const int tile = unit / steps;
      const bool owner = unit % steps == 0;
      const long stop = min(end, (long)(tile + 1) * steps);
      float d[2][COLS / 2];
      const long begin = unit;
      int last = -1;
      for (; unit < stop; unit++, at++) {
        const int slot = at % STAGES;
        barrier_wait(full + slot, at / STAGES & 1);
        const uint32_t w = shared_address(ring + slot * STAGE) + wg * (W / 2), x = shared_address(ring + slot * STAGE) + W;
        wgmma_pin(d[0]);
        wgmma_pin(d[1]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
          for (int j = 0; j < BK / 16; j++)
            Wgmma<T, COLS, 0>::shared(d[i], descriptor(w + i * (W / 4) + j * 32), descriptor(x + j * 32), unit != begin || j);
        wgmma_commit();
        wgmma_pin(d[0]);
        wgmma_pin(d[1]);
        if (last >= 0) {
          wgmma_wait<1>();
          if (threadIdx.x % 128 == 0) barrier_arrive(empty + last);
        }
        last = slot;
        if (owed && unit == begin + 3) pay();
      }
      if (owed) pay();
      wgmma_wait<0>();
      wgmma_pin(d[0]);
      wgmma_pin(d[1]);
      if (threadIdx.x % 128 == 0) barrier_arrive(empty + last);

      // Scratch in the order of the registers, so that every access is a run of 128 threads.
      constexpr int PARTS = COLS;  // floats of a thread
      if (!owner) {
        float* s = p.scratch + (long)blockIdx.x * ROWS * COLS + mine;
#pragma unroll
        for (int i = 0; i < PARTS; i++) s[i * 256] = d[i / (COLS / 2)][i % (COLS / 2)];
        owed = true;
        if (unit == end) pay();
        continue;
      }
      // The blocks behind this one that share the tile.
      const int past = (((long)(tile + 1) * steps) * blocks + total - 1) / total;  // the first block that starts at or behind its end
      const int helpers = past - (int)blockIdx.x - 1;
      if (helpers > 0) {
        if (mine < helpers) {
          while (atomicAdd(p.flags + blockIdx.x + 1 + mine, 0) == 0) __nanosleep(20);
          atomicExch(p.flags + blockIdx.x + 1 + mine, 0);
          __threadfence();
        }
        asm volatile("bar.sync 1, 256;" ::: "memory");
        const float* s = p.scratch + ((long)blockIdx.x + 1) * ROWS * COLS + mine;
#pragma unroll(COLS <= 16 ? 8 : 2)
        for (int h = 0; h < helpers; h++, s += ROWS * COLS) {
#pragma unroll
          for (int i = 0; i < PARTS; i++) d[i / (COLS / 2)][i % (COLS / 2)] += __ldcg(s + i * 256);
        }
      }
#pragma unroll
      for (int i = 0; i < (DUAL ? 1 : 2); i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int c = tile * OUT + (DUAL ? wg * 64 : wg * 128 + i * 64) + warp * 16 + g + half * 8;
          if (c >= p.n) continue;
          const float bias = p.bias ? to_float(((const T*)p.bias)[c]) : 0.f;
#pragma unroll
          for (int j = 0; j < COLS / 4; j++) {
            const int r = j / 2 * 8 + 2 * t + j % 2, at = j / 2 * 4 + half * 2 + j % 2;
            if (r >= p.m) continue;
            float u = d[i][at];
            if (DUAL) u = u / (1.f + __expf(-u)) * d[1][at];
            u += bias;
            if (p.residual) u += to_float(((const T*)p.residual)[(long)r * p.residual_stride + c]);
            if (p.f32_out) ((float*)p.y)[(long)r * p.y_stride + c] = u;
            else ((T*)p.y)[(long)r * p.y_stride + c] = from_float<T>(u);
          }
        }
    }
  }
#endif
}

#define STREAM(T, COLS, STAGES)                                                                                               \
  extern "C" __global__ void __launch_bounds__(384, 1) gemm_stream_sm90_##T##_##COLS(const __grid_constant__ CUtensorMap x,   \
                                                                                    const __grid_constant__ CUtensorMap w,    \
                                                                                    const __grid_constant__ Params p) {       \
    gemm_stream<T, COLS, STAGES, false>(x, w, p);                                                                             \
  }                                                                                                                           \
  extern "C" __global__ void __launch_bounds__(384, 1) gemm_stream_sm90_##T##_##COLS##_swiglu(const __grid_constant__ CUtensorMap x, \
                                                                                             const __grid_constant__ CUtensorMap w,  \
                                                                                             const __grid_constant__ Params p) {     \
    gemm_stream<T, COLS, STAGES, true>(x, w, p);                                                                              \
  }
#define STREAMS(T)                                                                                                            \
  STREAM(T, 8, 6)                                                                                                             \
  STREAM(T, 16, 6)                                                                                                            \
  STREAM(T, 32, 6)                                                                                                            \
  STREAM(T, 64, 5)
STREAMS(bf16)
STREAMS(f16)
