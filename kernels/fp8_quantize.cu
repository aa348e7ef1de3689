// Codes of bf16, f16 and f32 matrices in E4M3 or E5M2, row-major, transposed or both, from one read; and largest magnitudes.
//
// fp8_flat: one step for all. Blocks walk packs of 8 elements, four of a thread on their way at a time. The last block to finish
// writes amax, the number of NaN and the step that amax gives, and clears the flags again.
// fp8_rows: a step for each row from its own largest magnitude. A block of 256 threads owns a row and keeps up to four packs a
// thread (8192 elements of 16 bits) from one pass to the next; the rest of a longer row is read again.
// fp8_tile: every other way. A block of 256 threads owns 128 rows by 128 columns in registers, 8 columns of 8 rows a thread;
// steps of 1x128 and 128x128 are made of what it holds or given, those of rows and tensor are given. Transposed codes go
// through 16 KB of shared memory as words of 4, swizzled.
// NaN takes no part in amax. Codes have the bits of native.FP8Quantize, steps those of native.FP8Step. All GPUs; before sm_89
// by bit arithmetic.
#include "fp8.cuh"

namespace {
struct Params {
  const void* x;
  uint8_t* codes;   // optional
  uint8_t* turned;  // optional: [cols, turned_stride]
  const float* steps;  // given
  float* made;         // steps made here, optional
  float* amax;         // optional
  int* nan;            // optional; rows and tile add to it
  int* flags;          // of flat: three ints, zero before and after
  long x_stride, codes_stride, turned_stride;  // elements
  long rows, cols;
  int step_row, step_block;  // tile: the step of row r and block of columns b is [r / row_block * step_row + b * step_block]
  int row_block;             // tile: 1, 128 or, for all rows, 0
  int margin;
  int aligned;  // rows of x are aligned to 16 bytes
};

constexpr int PACK = 8;

// The conversion of the hardware drops sign and payload of an f16 NaN.
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(bf16 x) { return to_float(x); }
__device__ __forceinline__ float wide(f16 x) {
  const uint32_t u = __half_as_ushort(x);
  return (u & 0x7fff) > 0x7c00 ? __uint_as_float((u & 0x8000) << 16 | 0x7f800000 | (u & 0x3ff) << 13) : to_float(x);
}

// Elements c .. c+7 of a row as floats, zeros from cols on.
template <class T> __device__ __forceinline__ void load8(float (&v)[PACK], const T* row, long c, long cols, bool aligned) {
  if (aligned && c + PACK <= cols) {
#pragma unroll
    for (int i = 0; i < (int)sizeof(T) / 2; i++) {
      const Pack<T> p = load16(row + c + i * Pack<T>::N);
#pragma unroll
      for (int j = 0; j < Pack<T>::N; j++) v[i * Pack<T>::N + j] = wide(p.v[j]);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < PACK; j++) v[j] = c + j < cols ? wide(row[c + j]) : 0.f;
}

__device__ __forceinline__ void meet(const float (&v)[PACK], float& amax, int& nan) {
#pragma unroll
  for (int j = 0; j < PACK; j++) {
    amax = fmaxf(amax, fabsf(v[j]));
    nan += v[j] != v[j];
  }
}

template <bool E5M2> __device__ __forceinline__ uint2 encode8(const float (&v)[PACK], const Divisor& d) {
  return make_uint2(fp8_quad<E5M2>(v, d), fp8_quad<E5M2>(v + 4, d));
}

__device__ __forceinline__ void store8(uint8_t* row, long c, long cols, bool aligned, uint2 codes) {
  if (aligned && c + PACK <= cols) {
    *(uint2*)(row + c) = codes;
    return;
  }
#pragma unroll
  for (int j = 0; j < PACK; j++)
    if (c + j < cols) row[c + j] = (j < 4 ? codes.x : codes.y) >> (j % 4 * 8);
}

template <bool E5M2> __device__ __forceinline__ float step_of(float amax, int margin) {
  if (!(amax > 0.f) || amax == __uint_as_float(0x7f800000)) return 1.f;
  // The double quotient rounded once more is the float quotient.
  return margin == 0 ? fmaxf(__fdiv_rn(amax, Fp8<E5M2>::MAX), 0x1p-126f) : fp8_step<E5M2>(amax, margin);
}

// amax and count over the block; every thread gets amax, thread 0 the count.
__device__ __forceinline__ void block_meet(float& amax, int& nan, float* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  amax = warp_max(amax);
  nan = __reduce_add_sync(~0u, nan);
  int* counts = (int*)(scratch + 8);
  if (lane == 0) scratch[warp] = amax, counts[warp] = nan;
  __syncthreads();
  amax = warp_max(lane < 8 ? scratch[lane] : 0.f);
  nan = __reduce_add_sync(~0u, lane < 8 ? counts[lane] : 0);
  __syncthreads();
}
}  // namespace

template <class T, bool E5M2> __device__ __forceinline__ void flat(const Params& p) {
  __shared__ float scratch[16];
  grid_wait();
  const T* x = (const T*)p.x;
  const long n = p.rows * p.cols, packs = (n + PACK - 1) / PACK, stride = (long)gridDim.x * 256;
  const Divisor d(p.codes ? *p.steps : 1.f);
  float amax = 0.f;
  int nan = 0;
  constexpr int DEEP = sizeof(T) == 4 ? 2 : 4;
  auto take = [&](const float (&v)[PACK], long c) {
    if (!p.codes) return meet(v, amax, nan);
    const uint2 codes = encode8<E5M2>(v, d);
#pragma unroll
    for (int j = 0; j < PACK; j++) amax = fmaxf(amax, fabsf(v[j]));
    if (fp8_has_nan<E5M2>(codes.x) || fp8_has_nan<E5M2>(codes.y)) {
      float unused = 0.f;
      meet(v, unused, nan);
    }
    store8(p.codes, c, n, true, codes);
  };
  for (long i = (long)blockIdx.x * 256 + threadIdx.x; i < packs; i += DEEP * stride) {
    if (p.aligned && (i + (DEEP - 1) * stride + 1) * PACK <= n) {
      Pack<T> raw[DEEP][sizeof(T) / 2];
#pragma unroll
      for (int k = 0; k < DEEP; k++)
#pragma unroll
        for (int h = 0; h < (int)sizeof(T) / 2; h++) raw[k][h] = stream16(x + (i + k * stride) * PACK + h * Pack<T>::N);
#pragma unroll
      for (int k = 0; k < DEEP; k++) {
        float v[PACK];
#pragma unroll
        for (int j = 0; j < PACK; j++) v[j] = wide(raw[k][j / Pack<T>::N].v[j % Pack<T>::N]);
        take(v, (i + k * stride) * PACK);
      }
    } else {
      for (int k = 0; k < DEEP && i + k * stride < packs; k++) {
        float v[PACK];
        load8(v, x, (i + k * stride) * PACK, n, p.aligned);
        take(v, (i + k * stride) * PACK);
      }
    }
  }
  if (!p.amax && !p.made && !p.nan) return;
  block_meet(amax, nan, scratch);
  if (threadIdx.x == 0) {
    atomicMax(p.flags, __float_as_int(amax));
    if (nan) atomicAdd(p.flags + 1, nan);
    __threadfence();
    if (atomicAdd(p.flags + 2, 1) == gridDim.x - 1) {
      __threadfence();
      amax = __int_as_float(atomicExch(p.flags, 0));
      nan = atomicExch(p.flags + 1, 0);
      atomicExch(p.flags + 2, 0);
      if (p.amax) *p.amax = amax;
      if (p.nan) *p.nan = nan;
      if (p.made) *p.made = step_of<E5M2>(amax, p.margin);
    }
  }
}

template <class T, bool E5M2> __device__ __forceinline__ void by_rows(const Params& p) {
  __shared__ float scratch[16];
  constexpr int KEPT = sizeof(T) == 4 ? 2 : 4;
  grid_wait();
  for (long r = blockIdx.x; r < p.rows; r += gridDim.x) {
    const T* row = (const T*)p.x + r * p.x_stride;
    float kept[KEPT][PACK], amax = 0.f;
    int nan = 0;
#pragma unroll
    for (int k = 0; k < KEPT; k++) load8(kept[k], row, (k * 256 + threadIdx.x) * PACK, p.cols, p.aligned);
#pragma unroll
    for (int k = 0; k < KEPT; k++) meet(kept[k], amax, nan);
    for (long c = (KEPT * 256 + threadIdx.x) * PACK; c < p.cols; c += 256 * PACK) {
      float v[PACK];
      load8(v, row, c, p.cols, p.aligned);
      meet(v, amax, nan);
    }
    block_meet(amax, nan, scratch);
    const float step = step_of<E5M2>(amax, p.margin);
    if (threadIdx.x == 0) {
      if (p.made) p.made[r] = step;
      if (p.amax) p.amax[r] = amax;
      if (p.nan && nan) atomicAdd(p.nan, nan);
    }
    if (!p.codes) continue;
    const Divisor d(step);
    uint8_t* codes = p.codes + r * p.codes_stride;
    const bool aligned = p.codes_stride % 8 == 0;
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      const long c = (k * 256 + threadIdx.x) * PACK;
      if (c < p.cols) store8(codes, c, p.cols, aligned, encode8<E5M2>(kept[k], d));
    }
    for (long c = (KEPT * 256 + threadIdx.x) * PACK; c < p.cols; c += 256 * PACK) {
      float v[PACK];
      load8(v, row, c, p.cols, p.aligned);
      store8(codes, c, p.cols, aligned, encode8<E5M2>(v, d));
    }
  }
}

// The bytes of four words as the words of four bytes: r[i] byte j becomes r[j] byte i.
__device__ __forceinline__ void turn4(uint32_t (&r)[4]) {
  const uint32_t a = __byte_perm(r[0], r[1], 0x5140), b = __byte_perm(r[2], r[3], 0x5140), c = __byte_perm(r[0], r[1], 0x7362), d = __byte_perm(r[2], r[3], 0x7362);
  r[0] = __byte_perm(a, b, 0x5410), r[1] = __byte_perm(a, b, 0x7632), r[2] = __byte_perm(c, d, 0x5410), r[3] = __byte_perm(c, d, 0x7632);
}

template <class T, bool E5M2> __device__ __forceinline__ void tile(const Params& p) {
  __shared__ uint32_t words[128 * 32];
  __shared__ float scratch[16];
  const int lane = threadIdx.x % 32, at = threadIdx.x % 16 * PACK, line = threadIdx.x / 16;
  const long r0 = (long)blockIdx.y * 128, c0 = (long)blockIdx.x * 128;
  grid_wait();
  float v[8][PACK], amax[8];
  int nan = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const long r = r0 + i * 16 + line;
#pragma unroll
    for (int j = 0; j < PACK; j++) v[i][j] = 0.f;
    if (r < p.rows) load8(v[i], (const T*)p.x + r * p.x_stride, c0 + at, p.cols, p.aligned);
  }
  float all = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    amax[i] = 0.f;
    meet(v[i], amax[i], nan);
    if (p.row_block == 1) {
#pragma unroll
      for (int o = 8; o; o >>= 1) amax[i] = fmaxf(amax[i], __shfl_xor_sync(~0u, amax[i], o));
    }
    all = fmaxf(all, amax[i]);
  }
  if (p.row_block != 1 || p.nan) block_meet(all, nan, scratch);
  if (p.nan && threadIdx.x == 0 && nan) atomicAdd(p.nan, nan);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const long r = r0 + i * 16 + line;
    const float largest = p.row_block == 1 ? amax[i] : all;
    const long index = (p.row_block ? r / p.row_block : 0) * p.step_row + (long)blockIdx.x * p.step_block;
    const bool first = p.row_block == 1 ? threadIdx.x % 16 == 0 && r < p.rows : threadIdx.x == 0 && i == 0;
    if (p.amax && first) {
      // Steps of whole rows and of the tensor span tiles.
      if (p.step_block && p.row_block) p.amax[index] = largest; else atomicMax((int*)p.amax + index, __float_as_int(largest));
    }
    if (!p.steps && p.made && first) p.made[index] = step_of<E5M2>(largest, p.margin);
    if (!p.codes && !p.turned) continue;
    const Divisor d(p.steps ? (r < p.rows ? p.steps[index] : 1.f) : step_of<E5M2>(largest, p.margin));
    const uint2 codes = encode8<E5M2>(v[i], d);
    if (p.codes && r < p.rows && c0 + at < p.cols) store8(p.codes + r * p.codes_stride, c0 + at, p.cols, p.codes_stride % 8 == 0, codes);
    if (p.turned) {
      const int row = i * 16 + line, word = at / 4;
      words[row * 32 + (word ^ (row / 4))] = codes.x;
      words[row * 32 + ((word + 1) ^ (row / 4))] = codes.y;
    }
  }
  if (!p.turned) return;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int word = threadIdx.x / 32 + i * 8;
    uint32_t q[4];
#pragma unroll
    for (int j = 0; j < 4; j++) q[j] = words[(lane * 4 + j) * 32 + (word ^ lane)];
    turn4(q);
    const long r = r0 + lane * 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const long c = c0 + word * 4 + j;
      if (c >= p.cols || r >= p.rows) continue;
      uint8_t* to = p.turned + c * p.turned_stride + r;
      if (p.turned_stride % 4 == 0 && r + 4 <= p.rows) {
        *(uint32_t*)to = q[j];
      } else {
        for (int k = 0; k < 4 && r + k < p.rows; k++) to[k] = q[j] >> (k * 8);
      }
    }
  }
}

#define QUANTIZE(T, FORMAT, E5M2)                                                                                                                             \
  extern "C" __global__ void __launch_bounds__(256) fp8_flat_##T##_##FORMAT(const __grid_constant__ Params p) { flat<T, E5M2>(p); }     \
  extern "C" __global__ void __launch_bounds__(256) fp8_rows_##T##_##FORMAT(const __grid_constant__ Params p) { by_rows<T, E5M2>(p); }  \
  extern "C" __global__ void __launch_bounds__(256) fp8_tile_##T##_##FORMAT(const __grid_constant__ Params p) { tile<T, E5M2>(p); }
#define QUANTIZES(T)       \
  QUANTIZE(T, e4m3, false) \
  QUANTIZE(T, e5m2, true)
QUANTIZES(bf16)
QUANTIZES(f16)
QUANTIZES(f32)
