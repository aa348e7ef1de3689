// y[M,N] = x[M,K] w[N,K]^T of 8-bit floats in any mix on Hopper: wgmma fed by the copy engine, for M above 64.
//
// A persistent block walks tiles of 128 rows by BN columns (256 or 128). Warpgroup 0 is the producer: one thread keeps a
// ring of stages of 128 k filled (x 16 KB, w BN*128 bytes). Warpgroups 1 and 2 own 64 rows each and all BN columns. The tensor
// cores add up 128 columns over 128 k into 64 registers, in fewer bits than a float has; these partial sums are added in f32
// to the accumulators while the other warpgroup's products run. A cluster of two blocks owns two row tiles of one column
// tile: each block loads half of the w tile and multicasts it to both.
// With DUAL, w is [2F,K] and the tile holds BN/2 rows of its first half and BN/2 of its second: y[M,F] =
// silu(x w1^T) * (x w2^T) comes out of the accumulators of one thread.
// With BLOCK, partial sums are scaled by the steps of 1 x 128 of x and 128 x 128 of w. Epilogue: steps of rows and columns, +
// bias[N] (f32), + residual[M,N] of the result's type, one rounding to bf16, f16 or f32; or to E4M3 codes with a step of their
// own and the amax of what was rounded. Rows aligned to 16 bytes. Shared memory: 4 stages of 48 KB (BN 256) or 6 of 32 KB
// (BN 128), 20 KB of results, steps and bias, and barriers. sm_90a only; empty elsewhere.
// Design read: DeepGEMM (promotion of partial sums), CUTLASS's cooperative warp-specialised kernel.
#include "epilogue.cuh"
#include "fp8.cuh"
#include "tiles.cuh"
#include "wgmma_fp8.cuh"

namespace {
struct Params {
  Sink sink;
  Steps steps;
  int m, n, k;  // n counts columns of y
};
template <int N> struct Bytes {
  static constexpr int value = N;
};
}  // namespace

template <class A, class B, int BN, int STAGES, int CLUSTER, bool DUAL, bool BLOCK>
__device__ __forceinline__ void gemm(const CUtensorMap& xmap, const CUtensorMap& wmap, const Params& p) {
#ifdef SEAFAN_HOPPER
  constexpr int BK = 128, PARTS = BN / 128;
  typedef Tiles<BN, BK, CLUSTER, DUAL> Tile;
  constexpr int X = Tile::X, STAGE = Tile::STAGE, OUT = Tile::OUT;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t full[STAGES], empty[STAGES];
  __shared__ __align__(16) float columns_of[4 * BN];
  unsigned char* ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
  const int group = threadIdx.x / 128;
  const int rank = CLUSTER > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
    prefetch_map(&xmap);
    prefetch_map(&wmap);
    ring_init(full, empty, CLUSTER);
  }
  if (CLUSTER > 1) cluster_sync(); else __syncthreads();
  grid_wait();
  const Tile tiles(p.m, p.n, rank);
  const int count = tiles.count(), steps = (p.k + BK - 1) / BK;
  if (group == 0) {
    registers_give<40>();
    if (threadIdx.x == 0) {
      int slot = 0, parity = 1;
      auto next = [&]() {
        if (++slot == STAGES) slot = 0, parity ^= 1;
      };
      for (int tile = blockIdx.x / CLUSTER; tile < count; tile += gridDim.x / CLUSTER) {
        int row, column;
        tiles.place(tile, row, column);
        for (int s = 0; s < steps; s++, next()) {
          barrier_wait(empty + slot, parity);
          unsigned char* a = ring + slot * STAGE;
          tiles.load(a, a + X, full + slot, xmap, wmap, s, row, column);
        }
      }
      // The last stages must be consumed before a block of the cluster may go: its partner still writes to it.
      for (int i = 0; i < STAGES; i++, next()) barrier_wait(empty + slot, parity);
    }
  } else {
    registers_take<232>();
    const int wg = group - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int slot = 0, parity = 0;
    float amax = 0.f;
    for (int tile = blockIdx.x / CLUSTER; tile < count; tile += gridDim.x / CLUSTER) {
      int row, column;
      tiles.place(tile, row, column);
      const int r0 = row + wg * 64 + warp * 16 + g;
      float d[PARTS][64];
#pragma unroll
      for (int h = 0; h < PARTS; h++)
#pragma unroll
        for (int i = 0; i < 64; i++) d[h][i] = 0.f;
      // Steps that change along k: two rows of x, and each 64 columns of the tile.
      int x0, x1, w0, w1;
      if (BLOCK) {
        x0 = min(r0, p.m - 1) * p.steps.xk_row, x1 = min(r0 + 8, p.m - 1) * p.steps.xk_row, w0 = column / 128 * p.steps.wk_row;
        // From the tile's first half to its second; columns behind the last read the steps of the first.
        w1 = w0 + (DUAL ? p.n / 128 * p.steps.wk_row : column + BN / 2 < p.n ? BN / 2 / 128 * p.steps.wk_row : 0);
      }
      // What the epilogue takes is on its way during the products, where registers are left: with BLOCK there is little of it. With
      // DUAL the tile's columns are two stretches of w.
      float fx[2], fw_mine[BN / 128], bias_mine[BN / 128];
      auto take = [&]() {
#pragma unroll
        for (int half = 0; half < 2; half++) fx[half] = p.steps.x ? p.steps.x[(long)min(r0 + half * 8, p.m - 1) * p.steps.x_row] : 1.f;
#pragma unroll
        for (int i = 0; i < BN / 128; i++) {
          const int at = threadIdx.x % 128 + i * 128, c = column + (DUAL ? at % OUT : at);
          fw_mine[i] = p.steps.w && c < p.n ? p.steps.w[(long)(c + (at >= OUT ? p.n : 0)) * p.steps.w_row] : 1.f;
          bias_mine[i] = p.sink.bias && c < p.n && at < OUT ? ((const float*)p.sink.bias)[c] : 0.f;
        }
      };
      if (!BLOCK) take();
      for (int s = 0; s < steps; s++) {
        float fx0 = 1.f, fx1 = 1.f, fw[2] = {1.f, 1.f};
        if (BLOCK) {
          if (p.steps.xk) fx0 = p.steps.xk[x0 + s], fx1 = p.steps.xk[x1 + s];
          if (p.steps.wk) fw[0] = p.steps.wk[w0 + s], fw[1] = p.steps.wk[w1 + s];
        }
        barrier_wait(full + slot, parity);
        const uint64_t a = descriptor(shared_address(ring + slot * STAGE) + wg * (X / 2)), b = descriptor(shared_address(ring + slot * STAGE) + X);
#pragma unroll
        for (int h = 0; h < PARTS; h++) {
          float part[64];
          wgmma_fence();
#pragma unroll
          for (int j = 0; j < BK / 32; j++) Wgmma8<A, B, 128>::shared(part, a + j * 32 / 16, b + (h * 128 * BK + j * 32) / 16, j);
          wgmma_commit();
          wgmma_pin(part);
          wgmma_wait<0>();
          wgmma_pin(part);
          if (h == PARTS - 1 && threadIdx.x % 128 < CLUSTER) {
            if (CLUSTER > 1) barrier_arrive_remote(empty + slot, threadIdx.x % 128); else barrier_arrive(empty + slot);
          }
#pragma unroll
          for (int i = 0; i < 64; i++) {
            if (BLOCK) {
              const float f = fw[PARTS == 2 ? h : i / 32];
              d[h][i] += part[i] * (i % 4 < 2 ? fx0 * f : fx1 * f);
            } else {
              d[h][i] += part[i];
            }
          }
        }
        if (++slot == STAGES) slot = 0, parity ^= 1;
      }
      if (BLOCK) take();
      // Steps and bias of the tile's columns, for this warpgroup.
      float* of_columns = columns_of + wg * 2 * BN;
      asm volatile("bar.sync %0, 128;" ::"r"(wg + 1) : "memory");
#pragma unroll
      for (int i = 0; i < BN / 128; i++) {
        of_columns[threadIdx.x % 128 + i * 128] = fw_mine[i];
        of_columns[BN + threadIdx.x % 128 + i * 128] = bias_mine[i];
      }
      asm volatile("bar.sync %0, 128;" ::"r"(wg + 1) : "memory");
      // Whole packs of 8 columns of 16 bits, as in gemm_sm90.cu: lane t of four has columns 8t to 8t+7 of every 32 in memory, and 2t,
      // 2t+1 of every 8 in its accumulators.
      auto finish_packed = [&](auto out) {
        typedef decltype(out) T;
        constexpr int PACKS = OUT / 32, BATCH = 2;
        T* y = (T*)p.sink.y + r0 * p.sink.stride + column + 8 * t;
        uint32_t x[BATCH][2][4];  // of the residual
#pragma unroll
        for (int j = 0; j < PACKS; j++) {
          uint32_t v[2][4];
          if (p.sink.residual && j % BATCH == 0) {
#pragma unroll
            for (int i = 0; i < BATCH; i++)
#pragma unroll
              for (int half = 0; half < 2; half++) {
                const long r = r0 + half * 8, c = column + 32 * (j + i) + 8 * t;
                const uint4 e = r < p.m && c < p.n ? *(const uint4*)((const T*)p.sink.residual + r * p.sink.residual_stride + c) : make_uint4(0, 0, 0, 0);
                x[i][half][0] = e.x, x[i][half][1] = e.y, x[i][half][2] = e.z, x[i][half][3] = e.w;
              }
          }
          if (p.sink.residual) transpose4(x[j % BATCH][0], t), transpose4(x[j % BATCH][1], t);
#pragma unroll
          for (int q = 0; q < 4; q++) {
            const int c = 32 * j + 8 * q + 2 * t;
            const float2 fw = *(const float2*)(of_columns + c), bias = *(const float2*)(of_columns + BN + c);
            const float2 fw1 = DUAL ? *(const float2*)(of_columns + BN / 2 + c) : fw;
#pragma unroll
            for (int half = 0; half < 2; half++) {
              const int at = 4 * (4 * j + q) + 2 * half, up = at + BN / 4;
              float a = d[at / 64][at % 64] * (fx[half] * fw.x), b = d[at / 64][at % 64 + 1] * (fx[half] * fw.y);
              if (DUAL) {
                a = silu(a) * (d[up / 64][up % 64] * (fx[half] * fw1.x));
                b = silu(b) * (d[up / 64][up % 64 + 1] * (fx[half] * fw1.y));
              }
              a += bias.x, b += bias.y;
              if (p.sink.residual) {
                const T* of = (const T*)&x[j % BATCH][half][q];
                a += to_float(of[0]), b += to_float(of[1]);
              }
              v[half][q] = pack2<T>(a, b);
            }
          }
#pragma unroll
          for (int half = 0; half < 2; half++) {
            transpose4(v[half], t);
            if (r0 + half * 8 < p.m && column + 32 * j + 8 * t < p.n) *(uint4*)(y + half * 8 * p.sink.stride + 32 * j) = make_uint4(v[half][0], v[half][1], v[half][2], v[half][3]);
          }
        }
      };
      // Others: a warp's 16 rows pass through its 2 KB of shared memory, chunks of 16 bytes swizzled, and leave as lines.
      auto finish = [&](auto out, auto size) {
        typedef decltype(out) Out;
        constexpr int SIZE = decltype(size)::value, WIDTH = OUT < 128 / SIZE ? OUT : 128 / SIZE, LINE = WIDTH * SIZE, MASK = LINE / 16 - 1, BATCH = 4;
        unsigned char* stage = ring + STAGES * STAGE + (wg * 4 + warp) * 2048;
        int first = lane;
        asm volatile("" : "+r"(first));  // no addresses of this in registers during the products
#pragma unroll
        for (int c0 = 0; c0 < OUT; c0 += WIDTH) {
          __syncwarp();
#pragma unroll
          for (int i0 = 0; i0 < WIDTH / 8; i0 += BATCH) {
            // What is read comes some columns at a time, in front of what is written.
            float e[BATCH][2][2];
#pragma unroll
            for (int i = 0; i < BATCH; i++)
#pragma unroll
              for (int k = 0; k < 2; k++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                  const int r = r0 + half * 8, c = column + c0 + (i0 + i) * 8 + 2 * t + k;
                  e[i][k][half] = p.sink.residual && c < p.n && r < p.m ? to_float(((const typename Residual<Out>::T*)p.sink.residual)[r * p.sink.residual_stride + c]) : 0.f;
                }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
              const int c = c0 + (i0 + i) * 8 + 2 * t;
              const float2 fw = *(const float2*)(of_columns + c), bias = *(const float2*)(of_columns + BN + c);
              const float2 fw1 = DUAL ? *(const float2*)(of_columns + BN / 2 + c) : fw;
#pragma unroll
              for (int half = 0; half < 2; half++) {
                float u[2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                  const int at = (c0 / 8 + i0 + i) * 4 + 2 * half + k;
                  u[k] = d[at / 64][at % 64] * (fx[half] * (k ? fw.y : fw.x));
                  if (DUAL) u[k] = __fdividef(u[k], 1.f + __expf(-u[k])) * (d[(at + BN / 4) / 64][(at + BN / 4) % 64] * (fx[half] * (k ? fw1.y : fw1.x)));
                  u[k] += k ? bias.y : bias.x;
                  u[k] += e[i][k][half];
                  if (column + c + k < p.n && r0 + half * 8 < p.m) amax = fmaxf(amax, fabsf(u[k]));
                }
                const int line = g + half * 8, byte = ((i0 + i) * 8 + 2 * t) * SIZE;
                put2<Out>(p.sink, stage + line * LINE + ((byte / 16 ^ (line & MASK)) * 16 + byte % 16), u[0], u[1]);
              }
            }
          }
          __syncwarp();
#pragma unroll
          for (int part = first; part < LINE; part += 32) {  // 16 rows of LINE / 16 chunks
            const int line = part / (LINE / 16), chunk = part % (LINE / 16), r = row + wg * 64 + warp * 16 + line, c = column + c0 + chunk * (16 / SIZE);
            if (r >= p.m || c >= p.n) continue;
            const uint4 v = *(const uint4*)(stage + line * LINE + (chunk ^ (line & MASK)) * 16);
            unsigned char* y = (unsigned char*)p.sink.y + (r * p.sink.stride + c) * SIZE;
            if (c + 16 / SIZE <= p.n && (size_t)y % 16 == 0) {
              *(uint4*)y = v;
            } else {
              for (int k = 0; k < 16 / SIZE && c + k < p.n; k++)
                for (int q = 0; q < SIZE; q++) y[k * SIZE + q] = ((const unsigned char*)&v)[k * SIZE + q];
            }
          }
        }
      };
      const bool packed = p.sink.out <= 1 && !p.sink.amax && p.n % 8 == 0 && p.sink.stride % 8 == 0 && (uint64_t)p.sink.y % 16 == 0 &&
                          p.sink.residual_stride % 8 == 0 && (uint64_t)p.sink.residual % 16 == 0;
      if (packed && p.sink.out == 0) finish_packed(bf16());
      else if (packed) finish_packed(f16());
      else if (p.sink.out == 0) finish(bf16(), Bytes<2>());
      else if (p.sink.out == 1) finish(f16(), Bytes<2>());
      else if (p.sink.out == 2) finish(float(), Bytes<4>());
      else finish(Codes(), Bytes<1>());
    }
    put_amax(p.sink, amax);
  }
  if (CLUSTER > 1) cluster_sync();
#endif
}

#define GEMM(A, B, BN, STAGES, CLUSTER, DUAL, BLOCK, NAME)                                                                    \
  extern "C" __global__ void __launch_bounds__(384, 1) fp8_gemm_sm90_##A##_##B##_##NAME(const __grid_constant__ CUtensorMap x,  \
                                                                               const __grid_constant__ CUtensorMap w,         \
                                                                               const __grid_constant__ Params p) {            \
    gemm<A, B, BN, STAGES, CLUSTER, DUAL, BLOCK>(x, w, p);                                                                    \
  }
#define GEMMS(A, B)                                              \
  GEMM(A, B, 256, 4, 2, false, false, 256_pair)                  \
  GEMM(A, B, 256, 4, 2, false, true, 256_pair_block)             \
  GEMM(A, B, 128, 6, 1, false, false, 128)                       \
  GEMM(A, B, 128, 6, 1, false, true, 128_block)
GEMMS(e4m3, e4m3)
GEMMS(e4m3, e5m2)
GEMMS(e5m2, e4m3)
GEMMS(e5m2, e5m2)
GEMM(e4m3, e4m3, 256, 4, 2, true, false, 256_pair_swiglu)
GEMM(e4m3, e4m3, 256, 4, 2, true, true, 256_pair_block_swiglu)
GEMM(e4m3, e4m3, 128, 6, 1, true, false, 128_swiglu)
GEMM(e4m3, e4m3, 128, 6, 1, true, true, 128_block_swiglu)
