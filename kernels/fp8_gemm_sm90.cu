// y[M,N] = x[M,K] w[N,K]^T of 8-bit floats in any mix on Hopper: wgmma fed by the copy engine, for M above 64.
//
// A persistent block walks tiles of 128 rows by BN columns (256, 224 or 128). Warpgroup 0 is the producer: one thread keeps a
// ring of stages of 128 k filled (x 16 KB, w BN*128 bytes). Warpgroups 1 and 2 own 64 rows each and all BN columns. The tensor
// cores add up 128 columns over 128 k into 64 registers, in fewer bits than a float has; these partial sums are added in f32
// to the accumulators while the other warpgroup's products run; the first 128 k go straight there. A cluster of two blocks owns two
// row tiles of one column tile: each block loads half of the w tile and multicasts it to both.
// With DUAL, w is [2F,K] and the tile holds BN/2 rows of its first half and BN/2 of its second: y[M,F] =
// silu(x w1^T) * (x w2^T) comes out of the accumulators of one thread.
// With BLOCK, partial sums are scaled by the steps of 1 x 128 of x and 128 x 128 of w. Epilogue: steps of rows and columns, +
// bias[N] (f32), + residual[M,N] of the result's type, one rounding to bf16, f16 or f32; or to E4M3 codes with a step of their
// own and the amax of what was rounded. Packs of 16-bit results leave during the next tile's first products. Rows aligned to 16
// bytes. Shared memory: 4 stages of 48 KB (BN 256) or 44 (BN 224), or 6 of 32 KB (BN 128), 16 KB for results that do not leave from
// registers, at most 5 KB of steps and bias, and barriers. sm_90a only; empty elsewhere.
// Design read: DeepGEMM (promotion of partial sums), CUTLASS's cooperative warp-specialised kernel.
#include "fp8.cuh"
#include "grid.cuh"
#include "held.cuh"
#include "partial.cuh"
#include "tiles.cuh"

namespace {
// Registers by an index that only runs: in a loop that is not unrolled, a tree of branches finds the ones of its turn.
template <int N> struct Constant {
  static constexpr int value = N;
};
// Calls f with i, FROM <= i < TO, as a constant.
template <int FROM, int TO, class F> __device__ __forceinline__ void pick(int i, F f) {
  if constexpr (TO - FROM == 1) f(Constant<FROM>());
  else if (i < (FROM + TO) / 2) pick<FROM, (FROM + TO) / 2>(i, f);
  else pick<(FROM + TO) / 2, TO>(i, f);
}

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
  grid_launch();
  const int steps = (p.k + BK - 1) / BK;
  const int worker = blockIdx.x / CLUSTER, workers = gridDim.x / CLUSTER;
  if (group == 0) {
    registers_give<40>();
    if (threadIdx.x == 0) {
      int slot = 0, parity = 1;
      auto next = [&]() {
        if (++slot == STAGES) slot = 0, parity ^= 1;
      };
      const Tile tiles(p.m, p.n, rank);
      int row, column;
      tiles.place(worker, row, column);  // before the launch in front has ended
      grid_block();
      for (int tile = worker; tile < tiles.count(); tile += workers) {
        if (tile != worker) tiles.place(tile, row, column);
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
    float amax = 0.f;
    float *const of_columns = ends + wg * (2 * BN + 64), *const of_rows = of_columns + 2 * BN;
    constexpr int PACKS = OUT / 32;
    Held<uint16_t, 2 * PACKS> held = {};  // all leave during the first products of the next tile, which have no sums to be added to
    bool waiting = false;
    PartialSums<A, B, PARTS, PART, STAGES, X, STAGE, CLUSTER, BLOCK> products(ring, full, empty, wg);
    grid_block();
    const Tile tiles(p.m, p.n, rank);
    for (int tile = worker; tile < tiles.count(); tile += workers) {
      float sums[PARTS][PART / 2];
      auto d = [&](int i) -> float& { return sums[i / (PART / 2)][i % (PART / 2)]; };
      Factors factors;
      int row, column;
      products.run(sums, steps, factors, [&]() {
        if (waiting) held.leave_all(p.sink.stride);
        tiles.place(tile, row, column);
        // What the end of the tile takes comes during the products: steps and bias of the columns, steps of this warpgroup's rows. With DUAL
        // the tile's columns are two stretches of w.
        auto copy = [](float* to, const float* from) {
          asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
        };
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
        if (BLOCK) {  // steps that change along k: two rows of x, and each 64 columns of the tile
          const int r0 = row + wg * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
          const float *xk = p.steps.xk ? p.steps.xk : p.steps.wk, *wk = p.steps.wk ? p.steps.wk : p.steps.xk;
          factors.x = xk, factors.w = factors.second = wk, factors.of_x = p.steps.xk, factors.of_w = p.steps.wk, factors.last = steps - 1;
          factors.x0 = min(r0, p.m - 1) * p.steps.xk_row, factors.x1 = min(r0 + 8, p.m - 1) * p.steps.xk_row, factors.w0 = column / 128 * p.steps.wk_row;
          // From the tile's first half to its second; columns behind the last read the steps of the first.
          factors.w1 = factors.w0 + (DUAL ? p.n / 128 * p.steps.wk_row : column + BN / 2 < p.n ? BN / 2 / 128 * p.steps.wk_row : 0);
        }
      });
      asm volatile("cp.async.wait_all;\n\tbar.sync %0, 128;" ::"r"(wg + 1) : "memory");
      int own = threadIdx.x, n = p.n, place = tile;
      asm volatile("" : "+r"(own), "+r"(n), "+r"(place));  // nothing of this in registers during the products
      tiles.place(place, row, column);
      const int g = own % 32 / 4, t = own % 4, r0 = row + (own / 32 - 4) * 16 + g;
      waiting = p.sink.out < 2 && !p.sink.amax && n % 8 == 0 && p.sink.stride % 8 == 0 && (uint64_t)p.sink.y % 16 == 0 && p.sink.residual_stride % 8 == 0 &&
                (uint64_t)p.sink.residual % 16 == 0;
      if (waiting) {  // steps, bias and residual by sections of their own: a tile without them takes few instructions
        const int first = column + 8 * t;
        held.to = (uint16_t*)p.sink.y + r0 * p.sink.stride + first;
#pragma unroll
        for (int half = 0; half < 2; half++) held.left[half] = r0 + 8 * half < p.m ? min(n, column + OUT) - first : 0;
        const float f[2] = {of_rows[own / 32 % 4 * 16 + g], of_rows[own / 32 % 4 * 16 + g + 8]};
        if (p.steps.x_row | p.steps.w_row || !DUAL && p.sink.bias) {
#pragma unroll
          for (int i = 0; i < BN / 8; i++) {
            const float2 w = *(const float2*)(of_columns + 8 * i + 2 * t), bias = DUAL ? make_float2(0.f, 0.f) : *(const float2*)(of_columns + BN + 8 * i + 2 * t);
#pragma unroll
            for (int at = 4 * i; at < 4 * i + 4; at += 2) d(at) = fmaf(d(at), f[at / 2 % 2] * w.x, bias.x), d(at + 1) = fmaf(d(at + 1), f[at / 2 % 2] * w.y, bias.y);
            if (i % 4 == 3) asm volatile("" ::: "memory");  // no more of them in registers
          }
        } else if (p.steps.x || p.steps.w) {
          const float one = f[0] * of_columns[0];
#pragma unroll
          for (int i = 0; i < BN / 2; i++) d(i) = fmaf(d(i), one, 0.f);
        }
        if (DUAL) {
#pragma unroll
          for (int i = 0; i < BN / 4; i++) d(i) = fmaf(silu(d(i)), d(BN / 4 + i), 0.f);  // no zero is negative
        }
        auto add = [&](auto of) {
          typedef decltype(of) T;
          const uint16_t* from = (const uint16_t*)p.sink.residual + r0 * p.sink.residual_stride + first;
          uint32_t ahead[3][4];
          auto fetch = [&](int i) {
            const uint4 e = i / 2 * 32 < held.left[i % 2] ? *(const uint4*)(from + i % 2 * 8 * p.sink.residual_stride + i / 2 * 32) : make_uint4(0, 0, 0, 0);
            ahead[i % 3][0] = e.x, ahead[i % 3][1] = e.y, ahead[i % 3][2] = e.z, ahead[i % 3][3] = e.w;
          };
          fetch(0), fetch(1);
#pragma unroll
          for (int i = 0; i < 2 * PACKS; i++) {
            if (i + 2 < 2 * PACKS) fetch(i + 2);
            auto& e = ahead[i % 3];
            transpose4(e, t);
#pragma unroll
            for (int q = 0; q < 4; q++) {
              const int at = 16 * (i / 2) + 4 * q + 2 * (i % 2);
              d(at) += to_float(((const T*)&e[q])[0]), d(at + 1) += to_float(((const T*)&e[q])[1]);
            }
            asm volatile("" ::: "memory");  // no more packs than these in registers
          }
        };
        if (!DUAL && p.sink.residual) {
          if (p.sink.out == 0) add(bf16()); else add(f16());
        }
        const bool wide = p.sink.out == 0;
#pragma unroll
        for (int i = 0; i < 2 * PACKS; i++)
#pragma unroll
          for (int q = 0; q < 4; q++) {
            const int at = 16 * (i / 2) + 4 * q + 2 * (i % 2);
            held.pack[i][q] = wide ? pack2<bf16>(d(at), d(at + 1)) : pack2<f16>(d(at), d(at + 1));
          }
        continue;
      }
      // The end of such a tile is a loop over some of its columns: unrolled, it would come from memory instruction by instruction once a launch.
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
                *(float2*)(stage + half * 1024 + ((2 * q + t / 2) ^ swizzle) * 16 + t % 2 * 8) = make_float2(d(at), d(at + 1));
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
              auto stored = [&](int chunk) { return load16((const float*)(stage + half * 1024 + (chunk ^ swizzle) * 16)); };
              auto ends = [&](int at) { return load16(of_columns + of + NEXT * j + at); };
              const int chunk = (mine + NEXT * j) / 4;
              const auto v = stored(chunk), fw = ends(0), bias = ends(BN);
#pragma unroll
              for (int e = 0; e < 4; e++) u[4 * j + e] = v.v[e] * (f * fw.v[e]);
              if (DUAL) {
                const auto up = stored(4 + chunk), fw1 = ends(BN / 2);
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
#pragma unroll
      for (int i = 0; i < 2 * PACKS; i++)
#pragma unroll
        for (int q = 0; q < 4; q++) held.pack[i][q] = 0;  // nothing of it in registers during the products
      held.to = nullptr, held.left[0] = held.left[1] = 0;
      if (p.sink.out == 0) finish(bf16());
      else if (p.sink.out == 1) finish(f16());
      else if (p.sink.out == 2) finish(float());
      else finish(Codes());
    }
    if (waiting) held.leave_all(p.sink.stride);
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
