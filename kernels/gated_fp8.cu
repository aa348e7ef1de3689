// Gated units whose result leaves as E4M3 codes:
//
//   y = round(f(gate) * up) in the type of gate and up,  codes = round(y / step),  step = max|y| / 448 of the row or of each 128
//   columns of it, or one that is given
//
// A block owns one row, which stays in shared memory from the read of gate and up to the codes, 8 elements at a time with the same
// thread. Codes and steps have the bits that pointwise.cu and fp8_quantize.cu give one after the other. A row's codes are written
// when all of it is read: they may lie in the place of its gate or up. Shared memory: the row in its type and 32 floats. Columns a multiple of 8,
// rows of gate and up aligned to 16 bytes, of codes to 8. Any arch.
#include "gates.cuh"
#include "quantize.cuh"

namespace {
struct Params {
  uint8_t* codes;
  float* made;         // [rows, across] unless one is given
  const float* given;
  const void *gate, *up;
  long stride, codes_stride;  // elements
  int columns;
  int across;  // steps of a row
};
}  // namespace

template <class T, class F> __device__ __forceinline__ void gated_codes(const Params& p) {
  extern __shared__ __align__(16) uint8_t shared[];
  T* y = (T*)shared;
  float* scratch = (float*)(y + p.columns);
  const long row = blockIdx.x;
  const T *gate = (const T*)p.gate + row * p.stride, *up = (const T*)p.up + row * p.stride;
  uint8_t* codes = p.codes + row * p.codes_stride;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, first = threadIdx.x * 8, pass = blockDim.x * 8;
  grid_wait();
  Largest<T> largest;
#pragma unroll 2
  for (int c = first; c < p.columns; c += pass) {
    Eight<T> g = load8(gate + c, 8, true), u = load8(up + c, 8, true), e;
    uint32_t* words = (uint32_t*)&e.p[0];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 a = two(g, j), b = two(u, j);
      words[j] = pack2<T>(F::of(a.x) * b.x, F::of(a.y) * b.y);
    }
    largest.meet(e);
    store16(y + c, e.p[0]);
  }
  float mine = largest.value(), amax = mine;
  int nan = 0;
  if (mine != mine) {
    amax = 0.f;
    for (int c = first; c < p.columns; c += pass) meet_any(y, c, p.columns, amax, nan);
  }
  amax = warp_largest(amax);
  if (lane == 0) scratch[warp] = amax;
  __syncthreads();
  Coder<T, false> coder(p.given ? *p.given : step_of<false>(warp_largest(lane < warps ? scratch[lane] : 0.f), 0));
  if (threadIdx.x == 0 && p.made && p.across == 1) p.made[row] = coder.step;
#pragma unroll 1
  for (int c = first; c - lane * 8 < p.columns; c += pass) {
    const bool in = c < p.columns;
    const Eight<T> e = load8(y + c, in ? 8 : 0, true);
    if (p.across > 1) {
      Largest<T> of_pack;
      of_pack.meet(e);
      amax = mine = of_pack.value();
      if (mine != mine) amax = 0.f, meet_any(y, c, p.columns, amax, nan);
#pragma unroll
      for (int o = 8; o; o >>= 1) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, o));
      coder = Coder<T, false>(step_of<false>(amax, 0));
      if (in && lane % 16 == 0) p.made[row * p.across + c / 128] = coder.step;
    }
    if (in) *(uint2*)(codes + c) = coder.ordinary(mine) ? coder.encode(e) : encode_any<T, false>(y, c, p.columns, coder.step);
  }
}

#define GATED(T, NAME, F) \
  extern "C" __global__ void __launch_bounds__(1024, 2) gated_fp8_##NAME##_##T(const __grid_constant__ Params p) { gated_codes<T, F>(p); }
#define GATES(T)                 \
  GATED(T, swiglu, Silu)         \
  GATED(T, geglu_tanh, GeluTanh) \
  GATED(T, geglu_erf, GeluErf)
GATES(bf16)
GATES(f16)
