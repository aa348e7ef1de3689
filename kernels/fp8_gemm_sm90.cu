// y[M,N] = x[M,K] w[N,K]^T of 8-bit floats in any mix on Hopper: wgmma fed by the copy engine, for M above 64.
//
// A persistent block walks tiles of 128 rows by BN columns (256, 224 or 128). Warpgroup 0 is the producer: one thread keeps a
// ring of stages of 128 k filled (x 16 KB, w BN*128 bytes). Warpgroups 1 and 2 own 64 rows each and all BN columns. The tensor
// cores add up 128 columns over 128 k into 64 registers, in fewer bits than a float has; these partial sums are added in f32
// to the accumulators while the other warpgroup's products run. A cluster of two blocks owns two row tiles of one column
// tile: each block loads half of the w tile and multicasts it to both.
// With DUAL, w is [2F,K] and the tile holds BN/2 rows of its first half and BN/2 of its second: y[M,F] =
// silu(x w1^T) * (x w2^T) comes out of the accumulators of one thread.
// With BLOCK, partial sums are scaled by the steps of 1 x 128 of x and 128 x 128 of w. Epilogue: steps of rows and columns, +
// bias[N] (f32), + residual[M,N] of the result's type, one rounding to bf16, f16 or f32; or to E4M3 codes with a step of their
// own and the amax of what was rounded. Rows aligned to 16 bytes. Shared memory: 4 stages of 48 KB (BN 256) or 44 (BN 224), or
// 6 of 32 KB (BN 128), 16 KB for results that do not leave from registers, at most 5 KB of steps and bias, and barriers.
// sm_90a only; empty elsewhere.
// Design read: DeepGEMM (promotion of partial sums), CUTLASS's cooperative warp-specialised kernel.
#include "epilogue.cuh"
#include "fp8.cuh"
#include "pick.cuh"
#include "tiles.cuh"
#include "wgmma_fp8.cuh"

namespace {
struct Params {
  Sink sink;
  Steps steps;
  int m, n, k;  // n counts columns of y
};
template <int SIZE> struct Bits { typedef uint32_t T; };
template <> struct Bits<2> { typedef uint16_t T; };
template <> struct Bits<1> { typedef uint8_t T; };
}  // namespace

template <class A, class B, int BN, int STAGES, int CLUSTER, bool DUAL, bool BLOCK>
__device__ __forceinline__ void gemm(const CUtensorMap& xmap, const CUtensorMap& wmap, const Params& p) {
#ifdef SEAFAN_HOPPER
  constexpr int BK = 128, PARTS = BN > 128 ? 2 : 1, PART = BN / PARTS;
  static_assert(!BLOCK || PART == 128, "a step of w is of 128 columns");
  typedef Tiles<BN, BK, CLUSTER, DUAL> Tile;
  constexpr int X = Tile::X, STAGE = Tile::STAGE, OUT = Tile::OUT;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t full[STAGES], empty[STAGES];
  __shared__ __align__(16) float ends[2 * (2 * BN + 64)];
  unsigned char* ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
  const int group = threadIdx.x / 128;
  const int rank = blockIdx.x % CLUSTER;
  if (threadIdx.x == 0) {
    prefetch_map(&xmap);
    prefetch_map(&wmap);
    ring_init(full, empty, CLUSTER);
  }
  if (CLUSTER > 1) cluster_sync(); else __syncthreads();
  grid_wait();
  const int steps = (p.k + BK - 1) / BK;
  if (group == 0) {
    registers_give<40>();
    if (threadIdx.x == 0) {
      int slot = 0, parity = 1;
      auto next = [&]() {
        if (++slot == STAGES) slot = 0, parity ^= 1;
      };
      const Tile tiles(p.m, p.n, rank);
      for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += gridDim.x / CLUSTER) {
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
    const int wg = __shfl_sync(~0u, group - 1, 0);
    int slot = 0, parity = 0;
    float amax = 0.f;
    const Tile tiles(p.m, p.n, rank);
    for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += gridDim.x / CLUSTER) {
      int row, column;
      tiles.place(tile, row, column);
      float d[BN / 2];
#pragma unroll
      for (int i = 0; i < BN / 2; i++) d[i] = 0.f;
      // Steps that change along k: two rows of x, and each 64 columns of the tile.
      int x0, x1, w0, w1;
      if (BLOCK) {
        const int r0 = row + wg * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        x0 = min(r0, p.m - 1) * p.steps.xk_row, x1 = min(r0 + 8, p.m - 1) * p.steps.xk_row, w0 = column / 128 * p.steps.wk_row;
        // From the tile's first half to its second; columns behind the last read the steps of the first.
        w1 = w0 + (DUAL ? p.n / 128 * p.steps.wk_row : column + BN / 2 < p.n ? BN / 2 / 128 * p.steps.wk_row : 0);
      }
      // What the end of the tile takes comes during the products: steps and bias of the columns, steps of this warpgroup's rows. With DUAL
      // the tile's columns are two stretches of w.
      auto copy = [](float* to, const float* from) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
      };
      float *const of_columns = ends + wg * (2 * BN + 64), *const of_rows = of_columns + 2 * BN;
      asm volatile("bar.sync %0, 128;" ::"r"(wg + 1) : "memory");
      for (int at = threadIdx.x % 128; at < BN; at += 128) {
        const int c = column + (DUAL ? at % OUT : at);
        if (p.steps.w && c < p.n) copy(of_columns + at, p.steps.w + (long)(c + (at >= OUT ? p.n : 0)) * p.steps.w_row); else of_columns[at] = 1.f;
        if (p.sink.bias && c < p.n) copy(of_columns + BN + at, (const float*)p.sink.bias + c); else of_columns[BN + at] = 0.f;
      }
      if (threadIdx.x % 128 < 64) {
        float* to = of_rows + threadIdx.x % 128;
        if (p.steps.x) copy(to, p.steps.x + (long)min(row + wg * 64 + (int)threadIdx.x % 128, p.m - 1) * p.steps.x_row); else *to = 1.f;
      }
      Settled a, b;
      auto ready = [&]() {  // of a step, before the products in front of it are waited for
        barrier_wait(full + slot, parity);
        a.set(ring + slot * STAGE + wg * (X / 2)), b.set(ring + slot * STAGE + X);
      };
      // Steps of 128 k come during the products of the 128 k in front.
      float of_k[4] = {1.f, 1.f, 1.f, 1.f};  // two rows of x, two stretches of w
      auto fetch_k = [&](int s) {
        if (p.steps.xk) of_k[0] = p.steps.xk[x0 + s], of_k[1] = p.steps.xk[x1 + s];
        if (p.steps.wk) of_k[2] = p.steps.wk[w0 + s], of_k[3] = p.steps.wk[w1 + s];
      };
      if (BLOCK) fetch_k(0);
      ready();
      for (int s = 0; s < steps; s++) {
        const float fx0 = of_k[0], fx1 = of_k[1], fw[2] = {of_k[2], of_k[3]};
#pragma unroll
        for (int h = 0; h < PARTS; h++) {
          float part[PART / 2];
          wgmma_fence();
#pragma unroll
          for (int j = 0; j < BK / 32; j++) Wgmma8<A, B, PART>::shared(part, a.at(j * 32), b.at(h * PART * BK + j * 32), j);
          wgmma_commit();
          wgmma_pin(part);
          if (BLOCK && h == 0) fetch_k(min(s + 1, steps - 1));
          uint64_t* const done = empty + slot;
          if (h == PARTS - 1) {
            if (++slot == STAGES) slot = 0, parity ^= 1;
            if (s + 1 < steps) ready();
          }
          wgmma_wait<0>();
          wgmma_pin(part);
          if (h == PARTS - 1 && threadIdx.x % 128 < CLUSTER) {
            if (CLUSTER > 1) barrier_arrive_remote(done, threadIdx.x % 128); else barrier_arrive(done);
          }
#pragma unroll
          for (int i = 0; i < PART / 2; i++) {
            if (BLOCK) {
              const float f = fw[PARTS == 2 ? h : i / 32];
              d[h * (PART / 2) + i] += part[i] * (i % 4 < 2 ? fx0 * f : fx1 * f);
            } else {
              d[h * (PART / 2) + i] += part[i];
            }
          }
        }
      }
      asm volatile("cp.async.wait_all;\n\tbar.sync %0, 128;" ::"r"(wg + 1) : "memory");
      // The end of a tile is a loop over some of its columns: unrolled, it would come from memory instruction by instruction once a launch.
      int own = threadIdx.x, n = p.n;
      asm volatile("" : "+r"(own), "+r"(n));  // nothing of this in registers during the products
      const int g = own % 32 / 4, t = own % 4, r0 = row + (own / 32 - 4) * 16 + g;
      // Whole packs of 8 columns of 16 bits, as in gemm_sm90.cu: lane t of four has columns 8t to 8t+7 of every 32 in memory, and 2t,
      // 2t+1 of every 8 in its accumulators.
      auto finish_packed = [&](auto out) {
        typedef decltype(out) T;
        T* y = (T*)p.sink.y + r0 * p.sink.stride + column + 8 * t;
        const T* from = (const T*)p.sink.residual + r0 * p.sink.residual_stride + column + 8 * t;
        const bool adds = !DUAL && p.sink.residual;
        const float f[2] = {of_rows[own / 32 % 4 * 16 + g], of_rows[own / 32 % 4 * 16 + g + 8]};
        uint4 ahead[2];
        auto fetch = [&](int c) {
#pragma unroll
          for (int half = 0; half < 2; half++)
            ahead[half] = r0 + 8 * half < p.m && column + c + 8 * t < n ? *(const uint4*)(from + 8 * half * p.sink.residual_stride + c) : make_uint4(0, 0, 0, 0);
        };
        if (adds) fetch(0);
#pragma unroll 1
        for (int j = 0; j < OUT / 32; j++) {
          float v[2][16];  // and what the gates multiply
          pick<0, OUT / 32>(j, [&](auto j) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
              v[0][i] = d[16 * j.value + i];
              if (DUAL) v[1][i] = d[BN / 4 + 16 * j.value + i];
            }
          });
          uint32_t x[2][4], words[2][4];
          if (adds) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
              x[half][0] = ahead[half].x, x[half][1] = ahead[half].y, x[half][2] = ahead[half].z, x[half][3] = ahead[half].w;
              transpose4(x[half], t);
            }
            if (j + 1 < OUT / 32) fetch(32 * j + 32);
          }
#pragma unroll
          for (int q = 0; q < 4; q++) {
            const int c = 32 * j + 8 * q + 2 * t;
            const float2 fw = *(const float2*)(of_columns + c), bias = *(const float2*)(of_columns + BN + c);
            const float2 fw1 = DUAL ? *(const float2*)(of_columns + BN / 2 + c) : fw;
#pragma unroll
            for (int half = 0; half < 2; half++) {
              const int i = 4 * q + 2 * half;
              float a = v[0][i] * (f[half] * fw.x), b = v[0][i + 1] * (f[half] * fw.y);
              if (DUAL) a = silu(a) * (v[1][i] * (f[half] * fw1.x)), b = silu(b) * (v[1][i + 1] * (f[half] * fw1.y));
              a += bias.x, b += bias.y;
              if (adds) a += to_float(((const T*)&x[half][q])[0]), b += to_float(((const T*)&x[half][q])[1]);
              words[half][q] = pack2<T>(a, b);
            }
          }
#pragma unroll
          for (int half = 0; half < 2; half++) {
            transpose4(words[half], t);
            if (r0 + half * 8 < p.m && column + 32 * j + 8 * t < n)  // asm: the compiler makes four stores of one of the two
              asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(y + half * 8 * p.sink.stride + 32 * j), "r"(words[half][0]), "r"(words[half][1]), "r"(words[half][2]), "r"(words[half][3]) : "memory");
          }
        }
      };
      // Others: 32 columns pass through 2 KB of a warp's own, chunks of 16 bytes swizzled; with DUAL 16 and what their gates multiply. A
      // lane finishes 8 columns of rows g and g+8, or of one of them; for whole lines of f32 twice 4.
      auto finish = [&](auto out) {
        typedef decltype(out) Out;
        typedef typename Residual<Out>::T Other;
        constexpr int SIZE = sizeof(Out), WIDTH = DUAL ? 16 : 32, ITEMS = DUAL ? 1 : 2, PIECES = BN / 32, LANE = SIZE == 4 && !DUAL ? 4 : 8, NEXT = LANE == 4 ? 16 : 4;
        typedef typename Bits<SIZE>::T Word;
        const int swizzle = (g & 3) * 2 + (g & 1), mine = LANE * (DUAL ? t % 2 : t);
        unsigned char* stage = ring + STAGES * STAGE + (own / 32 - 4) * 2048 + g * 128;
        const bool adds = SIZE > 1 && !DUAL && p.sink.residual;
        auto column_of = [&](int k) { return k / 4 * NEXT + k % 4; };
#pragma unroll 1
        for (int piece = 0; piece < PIECES; piece++) {
          __syncwarp();
          pick<0, PIECES>(piece, [&](auto piece) {
#pragma unroll
            for (int q = 0; q < 4; q++)
#pragma unroll
              for (int half = 0; half < 2; half++) {
                const int at = (DUAL ? 8 * piece.value + q % 2 * 4 + q / 2 * (BN / 4) : 16 * piece.value + 4 * q) + 2 * half;
                *(float2*)(stage + half * 1024 + ((2 * q + t / 2) ^ swizzle) * 16 + t % 2 * 8) = make_float2(d[at], d[at + 1]);
              }
          });
          __syncwarp();
          const int of = piece * WIDTH + mine, c = column + of;
#pragma unroll
          for (int i = 0; i < ITEMS; i++) {
            const int half = DUAL ? t / 2 : i, r = r0 + 8 * half;
            const float f = of_rows[own / 32 % 4 * 16 + g + 8 * half];
            float u[8];
#pragma unroll
            for (int j = 0; j < 2; j++) {
              auto sums = [&](int chunk) { return load16((const float*)(stage + half * 1024 + (chunk ^ swizzle) * 16)); };
              auto ends = [&](int at) { return load16(of_columns + of + NEXT * j + at); };
              const int chunk = (mine + NEXT * j) / 4;
              const auto v = sums(chunk), fw = ends(0), bias = ends(BN);
#pragma unroll
              for (int e = 0; e < 4; e++) u[4 * j + e] = v.v[e] * (f * fw.v[e]);
              if (DUAL) {
                const auto up = sums(4 + chunk), fw1 = ends(BN / 2);
#pragma unroll
                for (int e = 0; e < 4; e++) u[4 * j + e] = silu(u[4 * j + e]) * (up.v[e] * (f * fw1.v[e]));
              }
#pragma unroll
              for (int e = 0; e < 4; e++) u[4 * j + e] += bias.v[e];
            }
            alignas(16) Word result[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
              if (r >= p.m || c + column_of(k) >= n) continue;
              if (adds) u[k] += to_float(((const Other*)p.sink.residual)[r * p.sink.residual_stride + c + column_of(k)]);
              if (p.sink.amax) amax = fmaxf(amax, fabsf(u[k]));
            }
#pragma unroll
            for (int k = 0; k < 8; k += 2) put2<Out>(p.sink, result + k, u[k], u[k + 1]);
            Word* y = (Word*)p.sink.y + r * p.sink.stride + c;
            if (n % 8 == 0 && p.sink.stride * SIZE % 16 == 0 && (uint64_t)p.sink.y % 16 == 0) {
              if (SIZE == 1 && r < p.m && c < n) *(uint2*)y = *(const uint2*)result;
#pragma unroll
              for (int k = 0; k < SIZE / 2; k++)
                if (r < p.m && c + NEXT * k < n) *(uint4*)(y + NEXT * k) = ((const uint4*)result)[k];
            } else {
#pragma unroll
              for (int k = 0; k < 8; k++)
                if (r < p.m && c + column_of(k) < n) y[column_of(k)] = result[k];
            }
          }
        }
      };
      const bool packs = !p.sink.amax && n % 8 == 0 && p.sink.stride % 8 == 0 && (uint64_t)p.sink.y % 16 == 0 && p.sink.residual_stride % 8 == 0 &&
                         (uint64_t)p.sink.residual % 16 == 0;
      if (packs && p.sink.out == 0) finish_packed(bf16());
      else if (packs && p.sink.out == 1) finish_packed(f16());
      else if (p.sink.out == 0) finish(bf16());
      else if (p.sink.out == 1) finish(f16());
      else if (p.sink.out == 2) finish(float());
      else finish(Codes());
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
  GEMM(A, B, 224, 4, 2, false, false, 224_pair)                  \
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
