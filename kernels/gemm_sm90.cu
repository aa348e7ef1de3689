// y[M,N] = x[M,K] w[N,K]^T on Hopper: wgmma fed by the copy engine, for M above 64.
//
// A persistent block walks tiles of 128 rows by BN columns (256, 240, 224 or 128). Warpgroup 0 is the producer: one thread keeps a
// ring of stages of 64 k filled (x 16 KB, w BN*128 bytes). Warpgroups 1 and 2 own 64 rows each and all BN columns, f32
// accumulators in registers. A cluster of two blocks owns two row tiles of one column tile: each block loads half of the w
// tile and multicasts it to both, which halves the traffic from L2. Tiles go in groups of 16 row tiles so that the blocks
// in flight share rows and columns in L2.
// With DUAL, w is [2F,K] and the tile holds BN/2 rows of its first half and BN/2 of its second: y[M,F] =
// silu(x w1^T) * (x w2^T) comes out of the accumulators of one thread.
// Epilogue: f32 sum, + bias[N], + residual[M,N], one rounding (or f32 out); results of 16 bits are held and leave during the
// next tile's products. K a multiple of 8, rows aligned to 16 bytes.
// Shared memory: 4 stages of 48 KB (BN 256), 46 (BN 240) or 44 (BN 224), or 6 of 32 KB (BN 128), and barriers. sm_90a only; empty elsewhere.
// Design read: CUTLASS's cooperative warp-specialised kernel, DeepGEMM.
#include "grid.cuh"
#include "held.cuh"
#include "tiles.cuh"

#ifdef SEAFAN_HOPPER
#define WGMMA_TEXT112                                                                                                                              \
  WGMMA_TEXT64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
               ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define WGMMA_D112(i) WGMMA_D64(i), WGMMA_D32(i + 64), WGMMA_D16(i + 96)
#define WGMMA_TEXT120 WGMMA_TEXT112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define WGMMA_D120(i) WGMMA_D112(i), WGMMA_D8(i + 112)
#define WIDTHS(T)                 \
  WGMMA_0(T, 224, 112, 113, 114)  \
  WGMMA_0(T, 240, 120, 121, 122)
WIDTHS(bf16)
WIDTHS(f16)
#endif

namespace {
struct Params {
  void* y;
  const void* bias;
  const void* residual;
  long y_stride, residual_stride;  // elements
  int m, n, k;                     // n counts columns of y
  int f32_out;
};

#ifdef SEAFAN_HOPPER
template <class T> __device__ __forceinline__ float2 unpack2(uint32_t w) {
  const T* v = reinterpret_cast<const T*>(&w);
  return make_float2(to_float(v[0]), to_float(v[1]));
}
#endif
}  // namespace

template <class T, int BN, int STAGES, int CLUSTER, bool DUAL>
__device__ __forceinline__ void gemm(const CUtensorMap& xmap, const CUtensorMap& wmap, const Params& p) {
#ifdef SEAFAN_HOPPER
  constexpr int BK = 64;
  typedef Tiles<BN, BK, CLUSTER, DUAL> Tile;
  constexpr int X = Tile::X, STAGE = Tile::STAGE, OUT = Tile::OUT;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t full[STAGES], empty[STAGES];
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
      const Tile tiles(p.m, p.n, rank);
      int at = 0, row, column;
      tiles.place(worker, row, column);  // before the launch in front has ended
      grid_block();
      for (int tile = worker; tile < tiles.count(); tile += workers) {
        if (tile != worker) tiles.place(tile, row, column);
        for (int s = 0; s < steps; s++, at++) {
          const int slot = at % STAGES;
          barrier_wait(empty + slot, (at / STAGES & 1) ^ 1);
          unsigned char* a = ring + slot * STAGE;
          tiles.load(a, a + X, full + slot, xmap, wmap, s, row, column);
        }
      }
      // The last stages must be consumed before a block of the cluster may go: its partner still writes to it.
      for (int i = 0; i < STAGES; i++, at++) barrier_wait(empty + at % STAGES, (at / STAGES & 1) ^ 1);
    }
  } else {
    registers_take<232>();
    const int wg = group - 1;
    int slot = 0, phase = 0;
    // Uniform to the compiler, which otherwise makes each descriptor between two products, in five times the instructions.
    auto same = [](uint32_t x) { return __shfl_sync(~0u, x, 0); };
    const uint64_t rows = descriptor(same(shared_address(ring) + wg * (X / 2))), columns = descriptor(same(shared_address(ring) + X));
    constexpr int PACKS = (OUT + 31) / 32;
    Held<T, 2 * PACKS> held;  // a pack leaves each step
    bool waiting = false;
    grid_block();
    const Tile tiles(p.m, p.n, rank);
    for (int tile = worker; tile < tiles.count(); tile += workers) {
      float d[BN / 2];
      int last = -1;
      auto products = [&](int s) {
        barrier_wait(full + slot, phase);
        const uint32_t stage = same(slot * (STAGE / 16));
        wgmma_pin(d);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < BK / 16; j++) Wgmma<T, BN, 0>::shared(d, rows + stage + j * 2, columns + stage + j * 2, s | j);
        wgmma_commit();
        wgmma_pin(d);
      };
      auto release = [&]() {  // the stage of the products before these
        if (last >= 0) {
          wgmma_wait<1>();
          if (threadIdx.x % 128 < CLUSTER) {
            if (CLUSTER > 1) barrier_arrive_remote(empty + last, threadIdx.x % 128); else barrier_arrive(empty + last);
          }
        }
        last = slot;
        if (++slot == STAGES) slot = 0, phase ^= 1;
      };
      int s = 0;
      if (waiting && steps >= 2 * PACKS) {
#pragma unroll
        for (; s < 2 * PACKS; s++) {
          products(s);
          held.leave(s, p.y_stride);
          release();
        }
      }
      for (; s < steps; s++) {
        products(s);
        release();
      }
      if (waiting && steps < 2 * PACKS) held.leave_all(p.y_stride);
      int own = threadIdx.x, n = p.n, place = tile, row, column;
      asm volatile("" : "+r"(own), "+r"(n), "+r"(place));  // nothing of this in front of the products, or in registers during them
      tiles.place(place, row, column);
      const void *const bias = DUAL ? nullptr : p.bias, *const residual = DUAL ? nullptr : p.residual;
      // Whole packs of 8 columns: results and the residual move 16 bytes a lane.
      const bool packed = !p.f32_out && n % 8 == 0 && p.y_stride % 8 == 0 && (uint64_t)p.y % 16 == 0 && (uint64_t)bias % 4 == 0 &&
                          p.residual_stride % 8 == 0 && (uint64_t)residual % 16 == 0;
      const int g = own % 32 / 4, t = own % 4, r0 = row + (own / 32 - 4) * 16 + g;
      if (packed) {
        const int first = column + 8 * t;
        waiting = true;
        held.to = (T*)p.y + r0 * p.y_stride + first;
#pragma unroll
        for (int half = 0; half < 2; half++) held.left[half] = r0 + 8 * half < p.m ? min(n, column + OUT) - first : 0;
        // The residual comes to where the results will be, as they leave, while the last products run: y may be where it lies.
        if (residual) {
          const T* from = (const T*)residual + r0 * p.residual_stride + first;
#pragma unroll
          for (int i = 0; i < 2 * PACKS; i++) {
            const uint4 e = i / 2 * 32 < held.left[i % 2] ? *(const uint4*)(from + i % 2 * 8 * p.residual_stride + i / 2 * 32) : make_uint4(0, 0, 0, 0);
            held.pack[i][0] = e.x, held.pack[i][1] = e.y, held.pack[i][2] = e.z, held.pack[i][3] = e.w;
          }
        }
      }
      wgmma_wait<0>();
      wgmma_pin(d);
      if (threadIdx.x % 128 < CLUSTER) {
        if (CLUSTER > 1) barrier_arrive_remote(empty + last, threadIdx.x % 128); else barrier_arrive(empty + last);
      }
      if (packed) {  // bias and residual by sections of their own: a tile without them takes a quarter of the instructions
        if (bias) {
#pragma unroll
          for (int j = 0; j < PACKS; j++) {
#pragma unroll
            for (int q = 0; q < 4 && 32 * j + 8 * q < OUT; q++) {
              const int c = column + 32 * j + 8 * q, at = 16 * j + 4 * q;
              const float2 b = c < n ? unpack2<T>(*(const uint32_t*)((const T*)bias + c + 2 * t)) : make_float2(0.f, 0.f);
              d[at] += b.x, d[at + 1] += b.y, d[at + 2] += b.x, d[at + 3] += b.y;
            }
            asm volatile("" ::: "memory");  // the bias of a pack after the one in front, which leaves registers
          }
        }
        if (residual) {
#pragma unroll
          for (int i = 0; i < 2 * PACKS; i++) {
            transpose4(held.pack[i], t);
#pragma unroll
            for (int q = 0; q < 4 && i / 2 * 32 + q * 8 < OUT; q++) {
              const int at = 16 * (i / 2) + 4 * q + 2 * (i % 2);
              const float2 e = unpack2<T>(held.pack[i][q]);
              d[at] += e.x, d[at + 1] += e.y;
            }
          }
        }
#pragma unroll
        for (int i = 0; i < 2 * PACKS; i++) {
#pragma unroll
          for (int q = 0; q < 4 && i / 2 * 32 + q * 8 < OUT; q++) {
            const int at = 16 * (i / 2) + 4 * q + 2 * (i % 2);
            held.pack[i][q] = DUAL ? pack2<T>(silu(d[at]) * d[BN / 4 + at], silu(d[at + 1]) * d[BN / 4 + at + 1]) : pack2<T>(d[at], d[at + 1]);
          }
        }
        continue;
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const long r = r0 + half * 8;
        if (r >= p.m) continue;
#pragma unroll
        for (int i = 0; i < OUT / 8; i++) {
          const int c = column + i * 8 + 2 * t;
          if (c >= p.n) continue;
          float u = d[4 * i + 2 * half], v = d[4 * i + 2 * half + 1];
          if (DUAL) {
            const float w0 = d[BN / 4 + 4 * i + 2 * half], w1 = d[BN / 4 + 4 * i + 2 * half + 1];
            u = silu(u) * w0;
            v = silu(v) * w1;
          }
          const bool pair = c + 1 < p.n;
          if (bias) {
            u += to_float(((const T*)bias)[c]);
            if (pair) v += to_float(((const T*)bias)[c + 1]);
          }
          if (residual) {
            const T* e = (const T*)residual + r * p.residual_stride + c;
            u += to_float(e[0]);
            if (pair) v += to_float(e[1]);
          }
          if (p.f32_out) {
            float* y = (float*)p.y + r * p.y_stride + c;
            y[0] = u;
            if (pair) y[1] = v;
          } else {
            T* y = (T*)p.y + r * p.y_stride + c;
            if (pair && p.y_stride % 2 == 0) {
              *(uint32_t*)y = pack2<T>(u, v);
            } else {
              y[0] = from_float<T>(u);
              if (pair) y[1] = from_float<T>(v);
            }
          }
        }
      }
    }
    if (waiting) held.leave_all(p.y_stride);
  }
  if (CLUSTER > 1) cluster_sync();
#endif
}

#define GEMM(T, BN, STAGES, CLUSTER, DUAL, NAME)                                                                              \
  extern "C" __global__ void __launch_bounds__(384, 1) gemm_sm90_##T##_##NAME(const __grid_constant__ CUtensorMap x,          \
                                                                             const __grid_constant__ CUtensorMap w, const __grid_constant__ Params p) { \
    gemm<T, BN, STAGES, CLUSTER, DUAL>(x, w, p);                                                                              \
  }
#define GEMMS(T)                                                                                                              \
  GEMM(T, 256, 4, 2, false, 256_pair)                                                                                         \
  GEMM(T, 240, 4, 2, false, 240_pair)                                                                                         \
  GEMM(T, 224, 4, 2, false, 224_pair)                                                                                         \
  GEMM(T, 256, 4, 2, true, 256_pair_swiglu)                                                                                   \
  GEMM(T, 128, 6, 1, false, 128)                                                                                              \
  GEMM(T, 128, 6, 1, true, 128_swiglu)
GEMMS(bf16)
GEMMS(f16)
