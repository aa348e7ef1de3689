// Grouped products of a mixture of experts on Hopper, for many tokens: y[rows of e] = x[rows of e] w[e]^T with x [M,K] sorted
// by expert and w [E,N,K]; wgmma fed by the copy engine.
//
// A cluster of two persistent blocks takes two tiles of 128 rows by 256 columns of one expert at a time: two row tiles of one
// column tile (each block loads half of the w tile and multicasts it), or, for the last of an odd number of row tiles, two
// column tiles of it (each loads half of the x tile and multicasts that). So an expert's rows are padded to 128 and not to
// 256, and a warpgroup whose 64 rows are all behind the expert's end leaves the tensor cores to the other. Warpgroup 0 is
// the producer: one thread keeps a ring of 4 stages of 64 k filled (x 16 KB, w 32 KB). Warpgroups 1 and 2 own 64 rows each
// and all columns, f32 accumulators in registers. Row tiles start at the expert's first row wherever that is: what they hold
// of the next expert is not stored. The work list is found from offsets [E+1] by every block, E up to 1024.
// With DUAL there are two matrices of N rows, w and up; a tile holds 128 rows of each and y = silu(x w^T) * (x up^T).
// Results are rounded once, held, and leave during the next tile's products; quads of lanes turn their columns so that a lane
// stores 16 bytes. K and N multiples of 8, rows aligned to 16 bytes. Shared memory: the ring. sm_90a only; empty elsewhere.
// Design read: CUTLASS's grouped and cooperative kernels, DeepGEMM.
#include "held.cuh"
#include "moe_sorted.cuh"

namespace {
struct Params {
  void* y;             // [M,N]
  const int* offsets;  // [E+1]
  int n, k, experts, m;
};
}  // namespace

template <class T, bool DUAL>
__device__ __forceinline__ void grouped(const CUtensorMap& xmap, const CUtensorMap& wmap, const CUtensorMap& upmap, const Params& p) {
#ifdef SEAFAN_HOPPER
  typedef SortedRows<DUAL> Rows;
  constexpr int BN = Rows::BN, BK = 64, STAGES = 4, A = Rows::A, STAGE = Rows::STAGE, OUT = Rows::OUT;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t full[STAGES], empty[STAGES];
  __shared__ Rows sorted;
  unsigned char* ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
  const int group = threadIdx.x / 128, rank = cluster_rank();
  if (threadIdx.x == 0) {
    prefetch_map(&xmap);
    prefetch_map(&wmap);
    if (DUAL) prefetch_map(&upmap);
    ring_init(full, empty, 2);
  }
  grid_wait();
  const int columns = (p.n + OUT - 1) / OUT, steps = (p.k + BK - 1) / BK;
  const int total = sorted.list(p.offsets, p.experts, columns);
  cluster_sync();
  const int worker = blockIdx.x / 2, workers = gridDim.x / 2;
  if (group == 0) {
    registers_give<40>();
    if (threadIdx.x == 0) sorted.template produce<BK>(ring, full, empty, xmap, wmap, DUAL ? upmap : wmap, p.n, p.experts, total, steps);
  } else {
    registers_take<232>();
    const int wg = group - 1;
    int slot = 0, phase = 0;
    // Uniform to the compiler, which otherwise makes each descriptor between two products, in five times the instructions.
    auto same = [](uint32_t x) { return __shfl_sync(~0u, x, 0); };
    const uint64_t x = descriptor(same(shared_address(ring) + wg * (A / 2))), w = descriptor(same(shared_address(ring) + A));
    auto release = [&](int slot) {
      if (threadIdx.x % 128 < 2) barrier_arrive_remote(empty + slot, threadIdx.x % 128);
    };
    auto next = [&] {
      if (++slot == STAGES) slot = 0, phase ^= 1;
    };
    constexpr int PACKS = OUT / 16, LEAVING = 8, EACH = PACKS / LEAVING;
    Held<T, PACKS> held;  // EACH packs leave a step
    bool waiting = false;
    int expert, row, end, column, i = worker;
    bool odd;
    if (i < total) sorted.place(i, p.experts, columns, rank, expert, row, end, column, odd);
    while (i < total) {
      if (row + wg * 64 >= end || column >= p.n) {
        for (int s = 0; s < steps; s++, next()) {
          barrier_wait(full + slot, phase);
          asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");  // no warp falls a phase behind
          release(slot);
        }
        i += workers;
        if (i < total) sorted.place(i, p.experts, columns, rank, expert, row, end, column, odd);
        continue;
      }
      float d[BN / 2];
      int last = -1, s = 0;
      auto products = [&](int s) {
        barrier_wait(full + slot, phase);
        const uint32_t stage = same(slot * (STAGE / 16));
        wgmma_pin(d);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < BK / 16; j++) Wgmma<T, BN, 0>::shared(d, x + stage + j * 2, w + stage + j * 2, s | j);
        wgmma_commit();
        wgmma_pin(d);
      };
      auto release_last = [&] {  // the stage of the products before these
        if (last >= 0) {
          wgmma_wait<1>();
          release(last);
        }
        last = slot;
        next();
      };
      if (waiting && steps >= LEAVING) {
#pragma unroll
        for (; s < LEAVING; s++) {
          products(s);
#pragma unroll
          for (int i = 0; i < EACH; i++) held.leave(s * EACH + i, p.n);
          release_last();
        }
      }
      for (; s < steps; s++) {
        products(s);
        release_last();
      }
      if (waiting && steps < LEAVING) held.leave_all(p.n);
      waiting = true;
      int own = threadIdx.x;
      asm volatile("" : "+r"(own), "+r"(i));  // nothing of this in front of the products, or in registers during them
      const int r = row + (own / 32 - 4) * 16 + own % 32 / 4, c = column + own % 4 * 8;
      held.to = (T*)p.y + (long)r * p.n + c;
#pragma unroll
      for (int half = 0; half < 2; half++) held.left[half] = r + 8 * half < end ? min(p.n, column + OUT) - c : 0;
      i += workers;
      if (i < total) sorted.place(i, p.experts, columns, rank, expert, row, end, column, odd);
      wgmma_wait<0>();
      wgmma_pin(d);
      release(last);
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const int at = 16 * (i / 2) + 4 * q + 2 * (i % 2);
          held.pack[i][q] = DUAL ? pack2<T>(silu(d[at]) * d[BN / 4 + at], silu(d[at + 1]) * d[BN / 4 + at + 1]) : pack2<T>(d[at], d[at + 1]);
        }
      }
    }
    if (waiting) held.leave_all(p.n);
  }
  cluster_sync();
#endif
}

#define GROUPED(T)                                                                                                             \
  extern "C" __global__ void __launch_bounds__(384, 1) moe_sm90_##T(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, \
                                                                    const __grid_constant__ CUtensorMap up, const __grid_constant__ Params p) {   \
    grouped<T, false>(x, w, up, p);                                                                                            \
  }                                                                                                                            \
  extern "C" __global__ void __launch_bounds__(384, 1) moe_sm90_##T##_swiglu(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, \
                                                                             const __grid_constant__ CUtensorMap up, const __grid_constant__ Params p) {   \
    grouped<T, true>(x, w, up, p);                                                                                             \
  }
GROUPED(bf16)
GROUPED(f16)
