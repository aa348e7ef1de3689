// Codes moved or widened: what products of other layouts and of wider activations need.
//
// fp8_turn: codes [rows, cols] as [cols, rows], rows of the result turned_stride apart. A block of 256 threads owns 128 by 128,
// which pass through 16 KB of shared memory as words of 4, swizzled.
// fp8_align: rows of codes copied to rows at a multiple of 16 bytes, a thread 16 of them.
// fp8_widen_TYPE: codes of E4M3 times their steps, rounded once. A thread owns 16 codes of a row; paired codes lie in the order
// that fp8_stream_sm90.cu reads. Rows aligned to 16 bytes. All GPUs, widening from sm_89.
// fp8_values_TYPE_FORMAT: codes of any shape times their steps, rounded to f32 and then to the type. A thread owns 8 of a row.
#include "fp8.cuh"
#include "turn.cuh"

namespace {
struct Params {
  const uint8_t* codes;
  void* y;
  const float* steps;
  long codes_stride, y_stride;  // elements
  long rows, cols;
  int step_row, step_block, row_block;  // the step of row r and 128 columns b is [r / row_block * step_row + b * step_block]; row_block 0: one row of steps
  int paired;
};
}  // namespace

extern "C" __global__ void __launch_bounds__(256) fp8_turn(const __grid_constant__ Params p) {
  __shared__ CodeTile tile;
  const int lane = threadIdx.x % 32;
  const long r0 = (long)blockIdx.y * 128, c0 = (long)blockIdx.x * 128;
  grid_wait();
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int row = i * 8 + threadIdx.x / 32;
    const long r = r0 + row, c = c0 + lane * 4;
    uint32_t v = 0;
    if (r < p.rows) {
      const uint8_t* from = p.codes + r * p.codes_stride + c;
      if (p.codes_stride % 4 == 0 && c + 4 <= p.cols) {
        v = *(const uint32_t*)from;
      } else {
        for (int k = 0; k < 4 && c + k < p.cols; k++) v |= (uint32_t)from[k] << (8 * k);
      }
    }
    tile.put(row, lane, v);
  }
  __syncthreads();
  tile.leave<256>((uint8_t*)p.y, p.y_stride, r0, c0, p.rows, p.cols);
}

extern "C" __global__ void __launch_bounds__(256) fp8_align(const __grid_constant__ Params p) {
  grid_wait();
  const long parts = (p.cols + 15) / 16, i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i >= p.rows * parts) return;
  const long r = i / parts, c = i % parts * 16;
  const uint8_t* from = p.codes + r * p.codes_stride + c;
  uint32_t q[4] = {};
#pragma unroll
  for (int k = 0; k < 16; k++)
    if (c + k < p.cols) q[k / 4] |= (uint32_t)from[k] << (k % 4 * 8);
  *(uint4*)((uint8_t*)p.y + r * p.y_stride + c) = make_uint4(q[0], q[1], q[2], q[3]);
}

template <class T> __device__ __forceinline__ void widen(const Params& p) {
#if __CUDA_ARCH__ >= 890
  grid_wait();
  const long parts = (p.cols + 15) / 16, i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i >= p.rows * parts) return;
  const long r = i / parts, c = i % parts * 16;
  const uint4 raw = *(const uint4*)(p.codes + r * p.codes_stride + c);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  const float step = p.steps[(p.row_block ? r / p.row_block : 0) * p.step_row + c / 128 * p.step_block];
  float v[16];
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint32_t h = fp8_widen<f16>(words[k / 2] >> (k % 2 * 16));
    const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&h));
    if (p.paired) v[k / 2 * 2 + k % 2 * 8] = f.x * step, v[k / 2 * 2 + k % 2 * 8 + 1] = f.y * step;
    else v[2 * k] = f.x * step, v[2 * k + 1] = f.y * step;
  }
  T* y = (T*)p.y + r * p.y_stride + c;
  if (c + 16 <= p.cols && p.y_stride % 8 == 0) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      Pack<T> q;
#pragma unroll
      for (int k = 0; k < 8; k++) q.v[k] = from_float<T>(v[8 * h + k]);
      store16(y + 8 * h, q);
    }
  } else {
#pragma unroll
    for (int k = 0; k < 16; k++)
      if (c + k < p.cols) y[k] = from_float<T>(v[k]);
  }
#endif
}
// The value of a code: its bits where a float has them, scaled to the format's exponents, which is exact.
template <bool E5M2> __device__ __forceinline__ float value_of(uint32_t code) {
  const uint32_t a = code & 0x7f;
  if (a > (E5M2 ? 0x7cu : 0x7eu)) return __uint_as_float(0x7fffffff);
  if (E5M2 && a == 0x7c) return __uint_as_float((code & 0x80) << 24 | 0x7f800000);
  const float v = __uint_as_float(a << (E5M2 ? 21 : 20)) * (E5M2 ? 0x1p112f : 0x1p120f);
  return code & 0x80 ? -v : v;
}
template <class T, bool E5M2> __device__ __forceinline__ void values(const Params& p) {
  grid_wait();
  const long parts = (p.cols + 7) / 8, i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i >= p.rows * parts) return;
  const long r = i / parts, c = i % parts * 8;
  const float step = p.steps[(p.row_block ? r / p.row_block : 0) * p.step_row + c / 128 * p.step_block];
  const uint8_t* from = p.codes + r * p.codes_stride + c;
  T* y = (T*)p.y + r * p.y_stride + c;
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (c + k < p.cols) y[k] = from_float<T>(value_of<E5M2>(from[k]) * step);
}
#define VALUES(T)                                                                                                                      \
  extern "C" __global__ void __launch_bounds__(256) fp8_values_##T##_e4m3(const __grid_constant__ Params p) { values<T, false>(p); }   \
  extern "C" __global__ void __launch_bounds__(256) fp8_values_##T##_e5m2(const __grid_constant__ Params p) { values<T, true>(p); }
VALUES(bf16)
VALUES(f16)
VALUES(f32)

extern "C" __global__ void __launch_bounds__(256) fp8_widen_bf16(const __grid_constant__ Params p) { widen<bf16>(p); }
extern "C" __global__ void __launch_bounds__(256) fp8_widen_f16(const __grid_constant__ Params p) { widen<f16>(p); }
