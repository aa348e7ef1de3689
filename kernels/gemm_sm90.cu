// y[M,N] = x[M,K] w[N,K]^T on Hopper: wgmma fed by the copy engine, for M above 64.
//
// A persistent block walks tiles of 128 rows by BN columns (256, 224 or 128). Warpgroup 0 is the producer: one thread keeps a
// ring of stages of 64 k filled (x 16 KB, w BN*128 bytes). Warpgroups 1 and 2 own 64 rows each and all BN columns, f32
// accumulators in registers. A cluster of two blocks owns two row tiles of one column tile: each block loads half of the w
// tile and multicasts it to both, which halves the traffic from L2. Tiles go in groups of 16 row tiles so that the blocks
// in flight share rows and columns in L2.
// With DUAL, w is [2F,K] and the tile holds BN/2 rows of its first half and BN/2 of its second: y[M,F] =
// silu(x w1^T) * (x w2^T) comes out of the accumulators of one thread.
// Epilogue: f32 sum, + bias[N], + residual[M,N], one rounding (or f32 out). K a multiple of 8, rows aligned to 16 bytes.
// Shared memory: 4 stages of 48 KB (BN 256) or 6 of 32 KB (BN 128), and barriers. sm_90a only; empty elsewhere.
// Design read: CUTLASS's cooperative warp-specialised kernel, DeepGEMM.
#include "epilogue.cuh"
#include "tiles.cuh"

#ifdef SEAFAN_HOPPER
#define WGMMA_TEXT112                                                                                                                              \
  WGMMA_TEXT64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
               ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define WGMMA_D112(i) WGMMA_D64(i), WGMMA_D32(i + 64), WGMMA_D16(i + 96)
WGMMA_0(bf16, 224, 112, 113, 114)
WGMMA_0(f16, 224, 112, 113, 114)
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
  const int worker = blockIdx.x / CLUSTER, workers = gridDim.x / CLUSTER;
  if (group == 0) {
    registers_give<40>();
    if (threadIdx.x == 0) {
      int at = 0;
      for (int tile = worker; tile < count; tile += workers) {
        int row, column;
        tiles.place(tile, row, column);
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
    const int wg = group - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // Whole packs of 8 columns: results and the residual move 16 bytes a lane.
    const bool packed = !p.f32_out && p.n % 8 == 0 && p.y_stride % 8 == 0 && (uint64_t)p.y % 16 == 0 && (uint64_t)p.bias % 4 == 0 &&
                        p.residual_stride % 8 == 0 && (uint64_t)p.residual % 16 == 0;
    int at = 0;
    for (int tile = worker; tile < count; tile += workers) {
      int row, column;
      tiles.place(tile, row, column);
      float d[BN / 2];
      int last = -1;
      for (int s = 0; s < steps; s++, at++) {
        const int slot = at % STAGES;
        barrier_wait(full + slot, at / STAGES & 1);
        const uint32_t a = shared_address(ring + slot * STAGE) + wg * (X / 2), b = shared_address(ring + slot * STAGE) + X;
        wgmma_pin(d);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < BK / 16; j++) Wgmma<T, BN, 0>::shared(d, descriptor(a + j * 32), descriptor(b + j * 32), s | j);
        wgmma_commit();
        wgmma_pin(d);
        if (last >= 0) {
          wgmma_wait<1>();
          if (threadIdx.x % 128 < CLUSTER) {
            if (CLUSTER > 1) barrier_arrive_remote(empty + last, threadIdx.x % 128); else barrier_arrive(empty + last);
          }
        }
        last = slot;
      }
      const int r0 = row + wg * 64 + warp * 16 + g;
      // Lane t of four has columns 8t to 8t+7 of every 32 in memory, and 2t, 2t+1 of every 8 in its accumulators. The residual's
      // packs of 8 rows are asked for at once, the first ones while the last products run: y may be where it lies.
      constexpr int PACKS = OUT / 32;
      uint4 e[PACKS];
      auto residual = [&](int half) {
        const long r = r0 + half * 8;
        const T* from = (const T*)p.residual + r * p.residual_stride + column + 8 * t;
#pragma unroll
        for (int j = 0; j < PACKS; j++) e[j] = r < p.m && column + 32 * j + 8 * t < p.n ? *(const uint4*)(from + 32 * j) : make_uint4(0, 0, 0, 0);
      };
      if (packed && p.residual) residual(0);
      wgmma_wait<0>();
      wgmma_pin(d);
      if (threadIdx.x % 128 < CLUSTER) {
        if (CLUSTER > 1) barrier_arrive_remote(empty + last, threadIdx.x % 128); else barrier_arrive(empty + last);
      }
      if (packed) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const long r = r0 + half * 8;
          T* y = (T*)p.y + r * p.y_stride + column + 8 * t;
          if (half && p.residual) residual(1);
#pragma unroll
          for (int j = 0; j < PACKS; j++) {
            uint32_t v[4], x[4] = {e[j].x, e[j].y, e[j].z, e[j].w};
            if (p.residual) transpose4(x, t);
#pragma unroll
            for (int q = 0; q < 4; q++) {
              const int i = 4 * j + q;
              float a = d[4 * i + 2 * half], b = d[4 * i + 2 * half + 1];
              if (DUAL) {
                a = silu(a) * d[BN / 4 + 4 * i + 2 * half];
                b = silu(b) * d[BN / 4 + 4 * i + 2 * half + 1];
              }
              if (p.bias && column + 8 * i < p.n) {
                const float2 c = unpack2<T>(*(const uint32_t*)((const T*)p.bias + column + 8 * i + 2 * t));
                a += c.x, b += c.y;
              }
              if (p.residual) {
                const float2 c = unpack2<T>(x[q]);
                a += c.x, b += c.y;
              }
              v[q] = pack2<T>(a, b);
            }
            transpose4(v, t);
            if (r < p.m && column + 32 * j + 8 * t < p.n) *(uint4*)(y + 32 * j) = make_uint4(v[0], v[1], v[2], v[3]);
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
          if (p.bias) {
            u += to_float(((const T*)p.bias)[c]);
            if (pair) v += to_float(((const T*)p.bias)[c + 1]);
          }
          if (p.residual) {
            const T* e = (const T*)p.residual + r * p.residual_stride + c;
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
  GEMM(T, 224, 4, 2, false, 224_pair)                                                                                         \
  GEMM(T, 256, 4, 2, true, 256_pair_swiglu)                                                                                   \
  GEMM(T, 128, 6, 1, false, 128)                                                                                              \
  GEMM(T, 128, 6, 1, true, 128_swiglu)
GEMMS(bf16)
GEMMS(f16)
