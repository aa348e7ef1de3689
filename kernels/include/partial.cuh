// Products of 8-bit floats on Hopper whose partial sums of 128 k are added up in f32, by a warpgroup.
#pragma once
#include "wgmma_fp8.cuh"

#ifdef SEAFAN_HOPPER
// What partial sums of 128 k are multiplied by, steps of two rows of x times steps of two stretches of columns: lane t of four has the
// products for step t of four, and the steps of the four behind are on their way.
struct Factors {
  const float *x, *w, *second;          // steps of 128 k side by side: x, w of the two stretches
  bool of_x, of_w;                      // else 1, and what is read instead is thrown away
  int x0, x1, w0, w1, last;             // where those of the two rows and stretches begin; the last of each
  float ahead[4], of[2][2], now[2][2];  // of, and now those of the step in turn, by stretch and row

  __device__ __forceinline__ void fetch(int s) {
    s = min(s + (int)threadIdx.x % 4, last);
    ahead[0] = x[x0 + s], ahead[1] = x[x1 + s], ahead[2] = w[w0 + s], ahead[3] = second[w1 + s];
  }
  __device__ __forceinline__ void next(int s) {
#pragma unroll
    for (int i = 0; i < 4; i++) of[i / 2][i % 2] = (of_x ? ahead[i % 2] : 1.f) * (of_w ? ahead[2 + i / 2] : 1.f);
    fetch(s + 4);
  }
  __device__ __forceinline__ void take(int stretch, int s) {
#pragma unroll
    for (int i = 0; i < 2; i++) now[stretch][i] = __shfl_sync(~0u, of[stretch][i], s % 4, 4);
  }
};

// Takes stages of 128 k from a ring: 64 rows of x of this warpgroup, then the rows of w. PARTS times N columns.
template <class A, class B, int PARTS, int N, int STAGES, int X, int STAGE, int CLUSTER, bool SCALED> struct PartialSums {
  int slot = 0, parity = 0;
  uint32_t fulls, empties;  // barriers by addresses made once: this block's, those of the block of the cluster that this thread tells
  uint64_t rows, columns, a, b;  // descriptors of x and w: of the first stage, and of the one in turn

  // Uniform to the compiler and made before the products in front are waited for: it would make each descriptor between two products, in
  // three times the instructions.
  static __device__ __forceinline__ uint32_t same(uint32_t v) { return __shfl_sync(~0u, v, 0); }
  __device__ __forceinline__ PartialSums(unsigned char* ring, uint64_t* full, uint64_t* empty, int wg) {
    fulls = same(shared_address(full));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(empties) : "r"(shared_address(empty)), "r"(threadIdx.x % 128 % CLUSTER));
    rows = descriptor(same(shared_address(ring) + wg * (X / 2))), columns = descriptor(same(shared_address(ring) + X));
  }
  // Waits for the stage in turn and makes its descriptors.
  __device__ __forceinline__ void ready() {
    asm volatile(
        "{\n\t.reg .pred p;\n\tagain_%=:\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t@p bra done_%=;\n\tbra again_%=;\n\tdone_%=:\n\t}" ::"r"(fulls + slot * 8),
        "r"(parity)
        : "memory");
    const uint32_t stage = same(slot * (STAGE / 16));
    uint32_t of_a = (uint32_t)rows + stage, of_b = (uint32_t)columns + stage;
    asm volatile("" : "+r"(of_a), "+r"(of_b));
    a = rows >> 32 << 32 | of_a, b = columns >> 32 << 32 | of_b;
  }
  __device__ __forceinline__ int next() {
    const int done = slot;
    if (++slot == STAGES) slot = 0, parity ^= 1;
    return done;
  }
  __device__ __forceinline__ void release(int done) {
    if (threadIdx.x % 128 < CLUSTER) asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(empties + done * 8) : "memory");
  }
  __device__ __forceinline__ void products(float (&d)[N / 2], int part) {
#pragma unroll
    for (int j = 0; j < 4; j++) Wgmma8<A, B, N>::shared(d, a + j * 2, b + (part * N * 8 + j * 2), j);
  }

  // sums = x w^T over all steps; f is set by meanwhile(), which is called while the first products run: these go straight to the sums.
  template <class Meanwhile> __device__ __forceinline__ void run(float (&sums)[PARTS][N / 2], int steps, Factors& f, Meanwhile meanwhile) {
    auto factor = [&](int h, int i) { return f.now[PARTS == 2 ? h : i / 32][i % 4 / 2]; };
    ready();
    wgmma_fence();
#pragma unroll
    for (int h = 0; h < PARTS; h++) products(sums[h], h);
    wgmma_commit();
#pragma unroll
    for (int h = 0; h < PARTS; h++) wgmma_pin(sums[h]);
    meanwhile();
    if (SCALED) f.fetch(0), f.next(0), f.take(0, 0), f.take(1, 0);
    int done = next();
    if (steps > 1) ready();
    wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < PARTS; h++) {
      wgmma_pin(sums[h]);
#pragma unroll
      for (int i = 0; SCALED && i < N / 2; i++) sums[h][i] *= factor(h, i);
    }
    if (SCALED) f.take(0, 1), f.take(1, 1);
    release(done);
    for (int s = 1; s < steps; s++) {
#pragma unroll
      for (int h = 0; h < PARTS; h++) {
        float part[N / 2];
        wgmma_fence();
        products(part, h);
        wgmma_commit();
        wgmma_pin(part);
        if (SCALED && h == 0 && s % 4 == 3) f.next(s + 1);
        if (h == PARTS - 1) {
          done = next();
          if (s + 1 < steps) ready();
        }
        wgmma_wait<0>();
        wgmma_pin(part);
        if (h == PARTS - 1) release(done);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
          if (SCALED) sums[h][i] += part[i] * factor(h, i);
          else sums[h][i] += part[i];
        }
        // A step ahead: shuffles in front of the additions would be waited for.
        if (SCALED && (PARTS == 1 || h == 0)) f.take(0, s + 1);
        if (SCALED && (PARTS == 1 || h == 1)) f.take(1, s + 1);
      }
    }
  }
};
#endif
