// Codes of bf16, f16 and f32 matrices in E4M3 or E5M2, row-major, transposed or both, from one read; and largest magnitudes.
//
// fp8_flat: one step for all. As many threads as a multiprocessor holds walk packs of 8 elements, one each at a time. The last block
// to finish writes amax, the number of NaN and the step that amax gives, and clears the flags again.
// fp8_vectors: steps of 1x128 of packed rows. A block of 256 threads owns 1024 packs; 16 threads share a step.
// fp8_rows: a step for each row from its own largest magnitude. A block owns a row and keeps two packs a thread from one
// pass to the next; the rest of a longer row is read again.
// fp8_tile: every other way. A block of 512 threads owns 128 rows by 128 columns in shared memory, 8 columns of 4 rows a thread;
// steps of 1x128 and 128x128 are made of what it holds or given, those of rows and tensor are given. Transposed codes take 16 KB
// more.
// NaN takes no part in amax. Codes have the bits of native.FP8Quantize, steps those of native.FP8Step. All GPUs; before sm_89
// by bit arithmetic.
#include "quantize.cuh"
#include "turn.cuh"

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

// amax and, where it is counted, the number of NaN over the block, for every thread. scratch is used once.
__device__ __forceinline__ void block_meet(float& amax, int& nan, bool counted, float* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  int* counts = (int*)(scratch + warps);
  amax = warp_largest(amax);
  if (counted) nan = __reduce_add_sync(~0u, nan);
  if (lane == 0) scratch[warp] = amax, counts[warp] = nan;
  __syncthreads();
  amax = warp_largest(lane < warps ? scratch[lane] : 0.f);
  if (counted) nan = __reduce_add_sync(~0u, lane < warps ? counts[lane] : 0);
}
}  // namespace

template <class T, bool E5M2> __device__ __forceinline__ void flat(const Params& p) {
  __shared__ float scratch[64];
  grid_wait();
  const T* x = (const T*)p.x;
  const long n = p.rows * p.cols, packs = (n + PACK - 1) / PACK, whole = p.aligned ? n / PACK : 0;
  const Coder<T, E5M2> coder(p.codes ? *p.steps : 1.f);
  const float limit = p.codes ? coder.limit : __uint_as_float(0x7f800000);
  float amax = 0.f;
  int nan = 0;
  for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += (long)gridDim.x * blockDim.x) {
    if (i < whole) {
      const Eight<T> e = load8(x + i * PACK, PACK, true);
      Largest<T> largest;
      largest.meet(e);
      if (p.codes) store8(p.codes, i * PACK, n, true, coder.encode(e));
      const float v = largest.value();
      if (v < limit) {
        amax = fmaxf(amax, v);
        continue;
      }
    }
    // Not ordinary, or across the end.
    meet_any(x, i * PACK, n, amax, nan);
    if (p.codes) store8(p.codes, i * PACK, n, true, encode_any<T, E5M2>(x, i * PACK, n, coder.step));
  }
  if (!p.amax && !p.made && !p.nan) return;
  block_meet(amax, nan, true, scratch);
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

// Packed rows of a multiple of 128: 16 threads hold a block.
template <class T, bool E5M2> __device__ __forceinline__ void vectors(const Params& p) {
  constexpr int DEEP = 4;
  const T* x = (const T*)p.x;
  const long n = p.rows * p.cols, first = (long)blockIdx.x * (DEEP * 256) + threadIdx.x;
  grid_wait();
  Eight<T> e[DEEP];
#pragma unroll
  for (int k = 0; k < DEEP; k++) e[k] = load8(x + (first + k * 256) * PACK, (first + k * 256) * PACK < n ? PACK : 0, true);
#pragma unroll
  for (int k = 0; k < DEEP; k++) {
    const long i = (first + k * 256) * PACK, b = i / 128;
    Largest<T> largest;
    largest.meet(e[k]);
    const float mine = largest.value();
    float amax = mine;
    int nan = 0;
    if (mine != mine) {
      amax = 0.f;
      meet_any(x, i, n, amax, nan);
      if (p.nan) atomicAdd(p.nan, nan);
    }
#pragma unroll
    for (int o = 8; o; o >>= 1) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, o));
    if (i >= n) continue;
    const Coder<T, E5M2> coder(p.steps ? p.steps[b] : step_of<E5M2>(amax, p.margin));
    if (threadIdx.x % 16 == 0) {
      if (p.amax) p.amax[b] = amax;
      if (p.made) p.made[b] = coder.step;
    }
    if (p.codes) store8(p.codes, i, n, true, coder.ordinary(mine) ? coder.encode(e[k]) : encode_any<T, E5M2>(x, i, n, coder.step));
  }
}

template <class T, bool E5M2> __device__ __forceinline__ void by_rows(const Params& p) {
  __shared__ float scratch[64];
  constexpr int KEPT = 2;
  const int pass = blockDim.x * PACK, at = threadIdx.x * PACK, cols = p.cols;
  const long r = blockIdx.x;
  const T* row = (const T*)p.x + r * p.x_stride;
  const bool whole = p.aligned && cols % PACK == 0;
  grid_wait();
  Eight<T> kept[KEPT];
  float mine = __uint_as_float(0x7fffffff);
  if (whole) {
    Largest<T> largest;
#pragma unroll
    for (int k = 0; k < KEPT; k++) kept[k] = load8(row + k * pass + at, cols - k * pass - at, true);
#pragma unroll
    for (int k = 0; k < KEPT; k++) largest.meet(kept[k]);
    for (int c = KEPT * pass + at; c < cols; c += pass) largest.meet(load8(row + c, PACK, true));
    mine = largest.value();
  }
  float amax = mine;
  int nan = 0;
  if (mine != mine) {
    amax = 0.f;
    for (int c = at; c < cols; c += pass) meet_any(row, c, cols, amax, nan);
  }
  block_meet(amax, nan, p.nan, scratch);
  const float step = step_of<E5M2>(amax, p.margin);
  if (threadIdx.x == 0) {
    if (p.made) p.made[r] = step;
    if (p.amax) p.amax[r] = amax;
    if (p.nan && nan) atomicAdd(p.nan, nan);
  }
  if (!p.codes) return;
  const Coder<T, E5M2> coder(step);
  uint8_t* codes = p.codes + r * p.codes_stride;
  const bool aligned = p.codes_stride % 8 == 0;
  if (!coder.ordinary(mine)) {
    for (int c = at; c < cols; c += pass) store8(codes, c, cols, aligned, encode_any<T, E5M2>(row, c, cols, step));
    return;
  }
#pragma unroll
  for (int k = 0; k < KEPT; k++) {
    keep_packed(kept[k]);
    if (k * pass + at < cols) store8(codes, k * pass + at, cols, aligned, coder.encode(kept[k]));
  }
  for (int c = KEPT * pass + at; c < cols; c += pass) store8(codes, c, cols, aligned, coder.encode(load8(row + c, PACK, true)));
}

template <class T, bool E5M2> __device__ __forceinline__ void tile(const Params& p) {
  constexpr int PART = 4;  // rows of a thread
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float scratch[64];
  Eight<T>* kept = (Eight<T>*)shared;
  CodeTile& codes = *(CodeTile*)(shared + 128 * 128 * sizeof(T));
  const int at = threadIdx.x % 16 * PACK, line = threadIdx.x / 16;
  const long r0 = (long)blockIdx.y * 128, c0 = (long)blockIdx.x * 128, c = c0 + at;
  const bool whole = p.aligned && p.cols % PACK == 0, rows = p.row_block == 1;
  auto row_of = [&](int i) { return (const T*)p.x + (r0 + i * 32 + line) * p.x_stride; };
  auto left_of = [&](int i) { return r0 + i * 32 + line < p.rows ? p.cols - c : 0; };
  auto pack_of = [&](int i) -> Eight<T>& { return kept[i * 512 + threadIdx.x]; };
  grid_wait();
#pragma unroll
  for (int i = 0; i < PART; i++) fetch8(&pack_of(i), row_of(i) + c, left_of(i), whole);
  fetched();
  Largest<T> largest;
#pragma unroll
  for (int i = 0; i < PART; i++) largest.meet(pack_of(i));
  float mine = largest.value(), all = mine;
  int nan = 0;
  if (mine != mine) {
    all = 0.f;
#pragma unroll 1
    for (int i = 0; i < PART; i++) meet_any(row_of(i), c, left_of(i) > 0 ? p.cols : 0, all, nan);
  }
  if (!rows && (p.amax || !p.steps) || p.nan) block_meet(all, nan, p.nan, scratch);
  if (p.nan && threadIdx.x == 0 && nan) atomicAdd(p.nan, nan);
  auto place = [&](long r) { return (rows ? r : p.row_block ? (long)blockIdx.y : 0) * p.step_row + (long)blockIdx.x * p.step_block; };
  auto step_at = [&](long r, float most) { return p.steps ? p.steps[place(r)] : step_of<E5M2>(most, p.margin); };
  auto tell = [&](long r, float most, float step) {
    // Steps of whole rows and of the tensor span tiles.
    if (p.amax && p.step_block) p.amax[place(r)] = most;
    else if (p.amax) atomicMax((int*)p.amax + place(r), __float_as_int(most));
    if (!p.steps && p.made) p.made[place(r)] = step;
  };
  Coder<T, E5M2> coder(rows ? 1.f : step_at(0, all));
  if (!rows && threadIdx.x == 0) tell(0, all, coder.step);
#pragma unroll 1
  for (int i = 0; i < PART; i++) {
    const long r = r0 + i * 32 + line;
    const Eight<T> e = pack_of(i);
    if (rows) {
      Largest<T> most;
      most.meet(e);
      all = mine = most.value();
      if (mine != mine) all = 0.f, meet_any(row_of(i), c, p.cols, all, nan);
#pragma unroll
      for (int o = 8; o; o >>= 1) all = fmaxf(all, __shfl_xor_sync(~0u, all, o));
      coder = Coder<T, E5M2>(step_at(min(r, p.rows - 1), all));
      if (at == 0 && r < p.rows) tell(r, all, coder.step);
    }
    if (!p.codes && !p.turned) continue;
    const uint2 q = coder.ordinary(mine) ? coder.encode(e) : encode_any<T, E5M2>(row_of(i), c, left_of(i) > 0 ? p.cols : 0, coder.step);
    if (p.codes && left_of(i) > 0) store8(p.codes + r * p.codes_stride, c, p.cols, p.codes_stride % 8 == 0, q);
    if (p.turned) codes.put(i * 32 + line, at / 4, q.x), codes.put(i * 32 + line, at / 4 + 1, q.y);
  }
  if (!p.turned) return;
  __syncthreads();
  codes.leave<512>(p.turned, p.turned_stride, r0, c0, p.rows, p.cols);
}

#define QUANTIZE(T, FORMAT, E5M2)                                                                                                                             \
  extern "C" __global__ void __launch_bounds__(512, 4) fp8_flat_##T##_##FORMAT(const __grid_constant__ Params p) { flat<T, E5M2>(p); }     \
  extern "C" __global__ void __launch_bounds__(256, sizeof(T) == 4 ? 3 : 5) fp8_vectors_##T##_##FORMAT(const __grid_constant__ Params p) { vectors<T, E5M2>(p); }     \
  extern "C" __global__ void __launch_bounds__(1024, sizeof(T) == 4 ? 1 : 2) fp8_rows_##T##_##FORMAT(const __grid_constant__ Params p) { by_rows<T, E5M2>(p); }  \
  extern "C" __global__ void __launch_bounds__(512, sizeof(T) == 4 ? 2 : 4) fp8_tile_##T##_##FORMAT(const __grid_constant__ Params p) { tile<T, E5M2>(p); }
#define QUANTIZES(T)       \
  QUANTIZE(T, e4m3, false) \
  QUANTIZE(T, e5m2, true)
QUANTIZES(bf16)
QUANTIZES(f16)
QUANTIZES(f32)
