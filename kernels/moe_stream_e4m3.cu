// The products of moe_stream.cu with the weights in E4M3 codes and a step for each 128 x 128 block of a matrix: w [E,N,K],
// steps [E,ceil(N/128),ceil(K/128)]. The codes are widened in registers, which is exact; what 128 k give is summed by the
// tensor cores, scaled and added up in f32.
//
// Blocks, warps, lists and the order of launches are those of moe_stream.cu. A lane holds 16 codes of rows g and g+8 and the same
// 16 k of the tokens: k = 16t..16t+15 of 64, which is the same sum in another order.
// _codes: x too is E4M3, with a step for each 1 x 128; then the gate's result goes out in f32, to be quantised.
// moe_codes: those codes and steps of rows [M,K]; a warp owns 128 numbers of a row.
// x in bf16 or f16. K a multiple of 16, rows aligned to 16 bytes, M up to 4096. From sm_89. It needs local memory: 96 bytes.
#include "fp8.cuh"
#include "moe_stream.cuh"

namespace {
constexpr int CHOICES = 4096;

struct Params {
  void* y;
  const void* x;
  const float* x_steps;
  const uint8_t* w;
  const float* w_steps;
  const uint8_t* up;
  const float* up_steps;
  const int* ids;
  int m, n, k, experts, divide, by_expert;
};

// The codes of one expert.
struct Matrix {
  const uint8_t* codes;
  const float* steps;
};

__device__ __forceinline__ uint32_t word(const uint4& u, int i) { return i == 0 ? u.x : i == 1 ? u.y : i == 2 ? u.z : u.w; }
}  // namespace

#if __CUDA_ARCH__ >= 890
template <class T, bool CODES, class Out, int WC, int WK, bool DUAL, int NT>
__device__ __forceinline__ void pass(const Params& p, Matrix w, Matrix up, const int* list, int count, bool wait, float (*partial)[WC][16][32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, wc = warp % WC, wk = warp / WC;
  const int column = blockIdx.x * (DUAL ? 8 : 16) * WC + wc * (DUAL ? 8 : 16) + g, blocks = (p.k + 127) / 128;
  const int row0 = min(column, p.n - 1), row1 = DUAL ? row0 : min(column + 8, p.n - 1);
  const Matrix second = DUAL ? up : w;
  const uint32_t w0 = row0 * p.k + t * 16, w1 = row1 * p.k + t * 16;
  const int step0 = row0 / 128 * blocks, step1 = row1 / 128 * blocks;
  uint32_t x[NT];
  bool live[NT];
#pragma unroll
  for (int i = 0; i < NT; i++) {
    live[i] = i * 8 + g < count;
    x[i] = (live[i] ? row_of(list[i * 8 + g], p.divide, p.m) * p.k : 0) + t * 16;
  }
  float d[NT][4] = {};
  const int first = blocks * wk / WK, end = blocks * (wk + 1) / WK;
  for (int b = first; b < end; b++) {
    uint4 a0[2], a1[2];
    const float f0 = w.steps[step0 + b], f1 = second.steps[step1 + b];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int k = b * 128 + h * 64;
      a0[h] = a1[h] = make_uint4(0, 0, 0, 0);
      if (k + t * 16 < p.k) {
        const Pack<uint8_t> u = stream16(w.codes + (w0 + k)), v = stream16(second.codes + (w1 + k));
        a0[h] = *(const uint4*)&u, a1[h] = *(const uint4*)&v;
      }
    }
    if (wait) {
      wait_first();
      wait = false;
    }
    float part[NT][4] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int k = b * 128 + h * 64;
      const bool on = k + t * 16 < p.k;
      uint4 tokens[NT];
#pragma unroll
      for (int q = 0; q < 4; q++) {
        if (q == 0 || (!CODES && q == 2)) {
#pragma unroll
          for (int i = 0; i < NT; i++) {
            tokens[i] = make_uint4(0, 0, 0, 0);
            if (on && live[i]) tokens[i] = *(const uint4*)((const char*)p.x + (size_t)(x[i] + k) * (CODES ? 1 : 2) + q / 2 * 16);
          }
        }
        const uint32_t u = word(a0[h], q), v = word(a1[h], q);
        const uint32_t a[4] = {fp8_widen<T>(u), fp8_widen<T>(v), fp8_widen<T>(u >> 16), fp8_widen<T>(v >> 16)};
#pragma unroll
        for (int i = 0; i < NT; i++) {
          if (CODES) {
            const uint32_t c = word(tokens[i], q);
            mma16816<T>(part[i], a, fp8_widen<T>(c), fp8_widen<T>(c >> 16));
          } else {
            mma16816<T>(part[i], a, word(tokens[i], q % 2 * 2), word(tokens[i], q % 2 * 2 + 1));
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int token = i * 8 + 2 * t + c;
        float fx = 1;
        if (CODES) fx = token < count ? p.x_steps[(long)row_of(list[token], p.divide, p.m) * blocks + b] : 0.f;
        d[i][c] += f0 * fx * part[i][c];
        d[i][c + 2] += f1 * fx * part[i][c + 2];
      }
  }
  if (wait) wait_first();  // a part of K without blocks
  meet<Out, WC, WK, DUAL, NT>((Out*)p.y, p.n, d, column, list, count, partial);
}

template <class T, bool CODES, class Out, int WC, int WK, bool DUAL, int MOST> __device__ __forceinline__ void stream(const Params& p) {
  __shared__ float partial[WK - 1][WC][16][32];
  __shared__ int list[CHOICES], counts[8];
  if (DUAL) wait_first();
  const int expert = p.by_expert ? blockIdx.y : p.ids[blockIdx.y];
  if (expert < 0 || expert >= p.experts) return;
  int count = 0;
  choices_of(count, expert, p.ids, p.m, list, counts);
  if (count == 0 || (!p.by_expert && list[0] != blockIdx.y)) return;
  const long matrix = (long)p.n * p.k, steps = (long)((p.n + 127) / 128) * ((p.k + 127) / 128);
  const Matrix w{p.w + expert * matrix, p.w_steps + expert * steps}, up{p.up + expert * matrix, p.up_steps + expert * steps};
  for (int c = 0; c < count; c += 8 * MOST) {
    const int left = min(8 * MOST, count - c);
    if (MOST == 1 || left <= 8) pass<T, CODES, Out, WC, WK, DUAL, 1>(p, w, up, list + c, left, !DUAL && c == 0, partial);
    else if (left <= 16) pass<T, CODES, Out, WC, WK, DUAL, 2>(p, w, up, list + c, left, !DUAL && c == 0, partial);
    else pass<T, CODES, Out, WC, WK, DUAL, 4>(p, w, up, list + c, left, !DUAL && c == 0, partial);
  }
}

template <class T> __device__ __forceinline__ void codes(uint8_t* y, float* steps, const T* x, int rows, int k) {
  const int lane = threadIdx.x % 32, blocks = (k + 127) / 128, i = blockIdx.x * 8 + threadIdx.x / 32, c = i % blocks * 128 + lane * 4;
  const long at = (long)(i / blocks) * k + c;
  grid_wait();
  if (i >= rows * blocks) return;
  float v[4] = {}, amax = 0;
  if (c < k) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v[j] = to_float(x[at + j]);
      amax = fmaxf(amax, fabsf(v[j]));
    }
  }
  const float step = step_of<false>(warp_max(amax), 0);
  if (c < k) *(uint32_t*)(y + at) = fp8_quad<false>(v, Divisor<float>(step));
  if (lane == 0) steps[i] = step;
}
#define BODY(...) stream<__VA_ARGS__>(p)
#define CODE(T) codes<T>(y, steps, x, rows, k)
#else
#define BODY(...)
#define CODE(T)
#endif
#define CODES_OF(T) \
  extern "C" __global__ void __launch_bounds__(256) moe_codes_##T(uint8_t* y, float* steps, const T* x, int rows, int k) { CODE(T); }
CODES_OF(bf16) CODES_OF(f16) CODES_OF(f32)

// _8: for lists of 8 tokens, in fewer registers, so one block more on a multiprocessor.
#define KERNEL(NAME, BLOCKS, ...) \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) moe_stream_e4m3_##NAME(const __grid_constant__ Params p) { BODY(__VA_ARGS__); }
#define STREAM(T, WC, WK)                                               \
  KERNEL(T##_##WK, 2, T, false, T, WC, WK, false, 4)                    \
  KERNEL(T##_##WK##_swiglu, 2, T, false, T, WC, WK, true, 4)            \
  KERNEL(T##_##WK##_8, 3, T, false, T, WC, WK, false, 1)                \
  KERNEL(T##_##WK##_8_swiglu, 3, T, false, T, WC, WK, true, 1)          \
  KERNEL(T##_##WK##_codes, 2, T, true, T, WC, WK, false, 4)             \
  KERNEL(T##_##WK##_codes_swiglu, 2, T, true, float, WC, WK, true, 4)   \
  KERNEL(T##_##WK##_8_codes, 3, T, true, T, WC, WK, false, 1)           \
  KERNEL(T##_##WK##_8_codes_swiglu, 3, T, true, float, WC, WK, true, 1)
STREAM(bf16, 2, 4)
STREAM(bf16, 4, 2)
STREAM(f16, 2, 4)
STREAM(f16, 4, 2)
