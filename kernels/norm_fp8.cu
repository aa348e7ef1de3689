// RMSNorm whose result leaves as E4M3 codes with a step for each row, or one that is given:
//
//   y = round(x / sqrt(mean(x^2) + eps) * (w + unit)) in the type of x,  codes = round(y / step),  step = max|y| / 448 of the row
//
// A block owns every gridDim-th row of d elements, and a thread every blockDim-th 8 of them. Rows come to shared memory by cp.async, one
// on its way while another is at work, and stay there to the codes: nothing but x is read and nothing but codes and steps is written.
// In 16-bit types codes and steps have the bits that norm.cu and fp8_quantize.cu give one after the other; in f32 sums run in another
// order. Shared memory: two rows, the weights and 64 floats. d a multiple of 8, rows of x and weights aligned to 16 bytes, of codes to 8. Any arch.
#include "quantize.cuh"

namespace {
struct Params {
  uint8_t* codes;
  float* made;         // [rows], or nil
  const float* given;  // one, or nil
  const void *x, *w;
  long stride;
  int rows, d;
  float eps, unit;
};
}  // namespace

template <class T> __device__ __forceinline__ void norm_codes(const Params& p) {
  extern __shared__ __align__(16) uint8_t shared[];
  float* scratch = (float*)shared;
  T *w = (T*)(shared + 256), *slot = w + p.d;
  const T* x = (const T*)p.x + (size_t)blockIdx.x * p.d;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, first = threadIdx.x * 8, pass = blockDim.x * 8;
  auto fetch = [&](T* to, const T* from) {
    for (int c = first; c < p.d; c += pass) fetch8((Eight<T>*)(to + c), from + c, 8, true);
  };
  auto fetch_row = [&](T* to, int r) {
    if (r < p.rows) fetch(to, x);
    fetches_end();
    x += (size_t)gridDim.x * p.d;
  };
  fetch(w, (const T*)p.w);  // no launch in front writes it
  grid_wait();
  fetch_row(slot, blockIdx.x);
  fetch_row(slot + p.d, blockIdx.x + gridDim.x);
  int other = p.d;
  for (int r = blockIdx.x; r < p.rows; r += gridDim.x, slot += other, other = -other) {
    fetched_but<1>();
    float squares = 0;
#pragma unroll 2
    for (int c = first; c < p.d; c += pass) {
      const Eight<T> e = load8(slot + c, 8, true);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 v = two(e, j);
        squares += v.x * v.x;
        squares += v.y * v.y;
      }
    }
    squares = warp_sum(squares);
    if (lane == 0) scratch[warp] = squares;
    __syncthreads();
    squares = warp_sum(lane < warps ? scratch[lane] : 0.f);
    const float scale = rsqrtf(squares / p.d + p.eps);
    Largest<T> largest;
#pragma unroll 2
    for (int c = first; c < p.d; c += pass) {
      Eight<T> e = load8(slot + c, 8, true);
      const Eight<T> g = load8(w + c, 8, true);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 v = two(e, j), of_w = two(g, j);
        set_two(e, j, v.x * scale * (of_w.x + p.unit), v.y * scale * (of_w.y + p.unit));
      }
      largest.meet(e);
      *(Eight<T>*)(slot + c) = e;
    }
    const float mine = largest.value();
    float amax = mine;
    int nan = 0;
    if (mine != mine) {
      amax = 0.f;
      for (int c = first; c < p.d; c += pass) meet_any(slot, c, p.d, amax, nan);
    }
    amax = warp_largest(amax);
    if (lane == 0) scratch[32 + warp] = amax;
    __syncthreads();
    const Coder<T, false> coder(p.given ? *p.given : step_of<false>(warp_largest(lane < warps ? scratch[32 + lane] : 0.f), 0));
    if (threadIdx.x == 0 && p.made) p.made[r] = coder.step;
#pragma unroll 2
    for (int c = first; c < p.d; c += pass)
      *(uint2*)(p.codes + r * p.stride + c) = coder.ordinary(mine) ? coder.encode(load8(slot + c, 8, true)) : encode_any<T, false>(slot, c, p.d, coder.step);
    fetch_row(slot, r + 2 * gridDim.x);
  }
}

#define KERNEL(T) \
  extern "C" __global__ void __launch_bounds__(1024, 2) norm_fp8_##T(const __grid_constant__ Params p) { norm_codes<T>(p); }
KERNEL(bf16)
KERNEL(f16)
KERNEL(f32)
