// Grouped products of a mixture of experts in E4M3 on Hopper: y[rows of e] = x[rows of e] w[e]^T for rows sorted by expert, x
// codes [M,K] with a step for each 1 x 128 of them, w codes [E,N,K] with a step for each 128 x 128, and what comes before them.
//
// The tiles, the work list and the two ways in which a cluster of two blocks shares loads are those of moe_sm90.cu; a stage is
// 128 k (x 16 KB, w 32 KB). The tensor cores add up 128 k of 128 columns in fewer bits than a float has; these partial sums,
// times the two steps, are added in f32 to the accumulators. Results in 16 bits leave during the next tile's first products.
// With DUAL there are two matrices, w and up, y = silu(x w^T) * (x up^T) goes out as codes again, a tile's 128 columns of a row
// being one block with a step of its own (amax of the unrounded values / 448), which is what the second product reads.
// moe_fp8_permute: a block owns a token: steps of its 1 x 128 blocks and codes, written to the places of its choices.
// K and N multiples of 128, E up to 1024. Shared memory: the ring. sm_90a only; empty elsewhere (the permute: sm_89 and later).
#include "fp8.cuh"
#include "held.cuh"
#include "moe_sorted.cuh"
#include "partial.cuh"

namespace {
struct Params {
  void* y;              // [M,N], or codes with y_steps [M,N/128]
  float* y_steps;
  const float* x_steps;   // [M,K/128]
  const float* w_steps;   // [E,N/128,K/128]
  const float* up_steps;
  const int* offsets;   // [E+1]
  int n, k, experts, m;
};
}  // namespace

template <class T, bool DUAL>
__device__ __forceinline__ void grouped(const CUtensorMap& xmap, const CUtensorMap& wmap, const CUtensorMap& upmap, const Params& p) {
#ifdef SEAFAN_HOPPER
  typedef SortedRows<DUAL> Rows;
  constexpr int BK = 128, STAGES = 4, A = Rows::A, STAGE = Rows::STAGE, OUT = Rows::OUT;
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
  const int columns = (p.n + OUT - 1) / OUT, steps = p.k / BK;
  const int total = sorted.list(p.offsets, p.experts, columns);
  cluster_sync();
  const int worker = blockIdx.x / 2, workers = gridDim.x / 2;
  if (group == 0) {
    registers_give<40>();
    if (threadIdx.x == 0) sorted.template produce<BK>(ring, full, empty, xmap, wmap, DUAL ? upmap : wmap, p.n, p.experts, total, steps);
  } else {
    registers_take<232>();
    const int wg = __shfl_sync(~0u, group - 1, 0), warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    PartialSums<e4m3, e4m3, 2, 128, STAGES, A, STAGE, 2, true> products(ring, full, empty, wg);
    constexpr int PACKS = DUAL ? 1 : OUT / 16;
    Held<T, PACKS> held = {};  // results in 16 bits, which leave during the first products of the next tile
    bool waiting = false;
    for (int i = worker; i < total; i += workers) {
      int expert, row, end, column;
      bool odd;
      sorted.place(i, p.experts, columns, rank, expert, row, end, column, odd);
      row += wg * 64;
      if (row >= end || column >= p.n) {
        for (int s = 0; s < steps; s++) {
          products.ready();
          asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");  // no warp falls a phase behind
          products.release(products.next());
        }
        continue;
      }
      float d[2][64];
      const int r0 = row + warp * 16 + g;
      const int blocks = p.n / 128;
      Factors factors;
      products.run(d, steps, factors, [&]() {
        if (waiting) held.leave_all(p.n);
        factors.x = p.x_steps, factors.w = p.w_steps, factors.second = DUAL ? p.up_steps : p.w_steps, factors.of_x = factors.of_w = true, factors.last = steps - 1;
        factors.x0 = min(r0, p.m - 1) * steps, factors.x1 = min(r0 + 8, p.m - 1) * steps, factors.w0 = (expert * blocks + column / 128) * steps;
        factors.w1 = factors.w0 + (DUAL || column + 128 >= p.n ? 0 : steps);
      });
      if constexpr (DUAL) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int r = r0 + half * 8;
          // The quad's lanes hold the row's 128 columns: amax, step, codes.
          float amax = 0;
#pragma unroll
          for (int j = 0; j < 16; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
              const int c = 4 * j + 2 * half + e;
              const float u = d[0][c];
              d[0][c] = silu(u) * d[1][c];
              amax = fmaxf(amax, fabsf(d[0][c]));
            }
          amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 1));
          amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 2));
          const float step = step_of<false>(amax, 0);
          if (r < end && t == 0) p.y_steps[(long)r * blocks + column / 128] = step;
          const Divisor<float> by(step);
#pragma unroll
          for (int j = 0; j < 2; j++) {  // 64 columns: a lane's words are 2 columns of each 8, and of the next 8
            uint32_t v[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
              const int c = 4 * (8 * j + 2 * q) + 2 * half;
              const float x[4] = {d[0][c], d[0][c + 1], d[0][c + 4], d[0][c + 5]};
              v[q] = fp8_quad<false>(x, by);
            }
            transpose4(v, t);  // lane t: columns 16t.. of the 64, as words of 2 of the first and 2 of the second 8
            const uint32_t first0 = __byte_perm(v[0], v[1], 0x5410), first1 = __byte_perm(v[2], v[3], 0x5410);
            const uint32_t second0 = __byte_perm(v[0], v[1], 0x7632), second1 = __byte_perm(v[2], v[3], 0x7632);
            if (r < end) *(uint4*)((uint8_t*)p.y + (long)r * p.n + column + j * 64 + t * 16) = make_uint4(first0, first1, second0, second1);
          }
        }
      } else {
        waiting = true;
        const int first = column + t * 8;
        held.to = (T*)p.y + (long)r0 * p.n + first;
#pragma unroll
        for (int half = 0; half < 2; half++) held.left[half] = r0 + 8 * half < end ? min(p.n, column + OUT) - first : 0;
#pragma unroll
        for (int i = 0; i < PACKS; i++)
#pragma unroll
          for (int q = 0; q < 4; q++) {
            const int c = 16 * (i / 2) + 4 * q + 2 * (i % 2);
            held.pack[i][q] = pack2<T>(d[c / 64][c % 64], d[c / 64][c % 64 + 1]);
          }
      }
    }
    if (waiting) held.leave_all(p.n);
  }
  cluster_sync();
#endif
}

// A warp takes 1 x 128 blocks of the token's row; a lane 4 of the columns.
template <class T> __device__ __forceinline__ void permute(uint8_t* y, float* steps, const T* x, const int* position, int top_k, int d) {
  const long t = blockIdx.x;
  const int lane = threadIdx.x % 32;
  grid_wait();
  for (int b = threadIdx.x / 32; b < d / 128; b += blockDim.x / 32) {
    float v[4], amax = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v[j] = to_float(x[t * d + b * 128 + lane * 4 + j]);
      amax = fmaxf(amax, fabsf(v[j]));
    }
    const float step = step_of<false>(warp_max(amax), 0);
    const uint32_t codes = fp8_quad<false>(v, Divisor<float>(step));
    for (int c = 0; c < top_k; c++) {
      const long at = position[t * top_k + c];
      if (at < 0) continue;
      *(uint32_t*)(y + at * d + b * 128 + lane * 4) = codes;
      if (lane == 0) steps[at * (d / 128) + b] = step;
    }
  }
}

#define GROUPED(T)                                                                                                             \
  extern "C" __global__ void __launch_bounds__(384, 1) moe_fp8_sm90_##T(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, \
                                                                        const __grid_constant__ CUtensorMap up, const __grid_constant__ Params p) {   \
    grouped<T, false>(x, w, up, p);                                                                                            \
  }                                                                                                                            \
  extern "C" __global__ void __launch_bounds__(256) moe_fp8_permute_##T(uint8_t* y, float* steps, const T* x, const int* position, int top_k, int d) { \
    permute<T>(y, steps, x, position, top_k, d);                                                                               \
  }
GROUPED(bf16)
GROUPED(f16)
extern "C" __global__ void __launch_bounds__(384, 1) moe_fp8_sm90_swiglu(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                                                                         const __grid_constant__ CUtensorMap up, const __grid_constant__ Params p) {
  grouped<bf16, true>(x, w, up, p);
}
