// The small steps of latent attention: parts of rows moved about, and the products that turn queries into ones that meet the
// latents themselves, and means of latents into values. T tokens, H heads with N own and P shared numbers of a key and V of a
// value, latents of R numbers, w [H,N+V,R].
//
// latent_move: up to four parts; a part copies the first n units (of 2, 4 or 16 bytes) of row r/divide of `from` to row r of
// `to`, by strides. A warp owns a row of a part.
// latent_append: a block owns a token: the first R numbers of its row of x pass the RMSNorm, the P behind them are turned, and
// both go to the token's slot of k_pool [slots,R+P], the first also to that of v_pool [slots,R]. A negative slot writes
// nothing, a position outside the table NaN.
// latent_query: y[t,h] = [Wk_h' q[t,h,:N] | q[t,h,N:]] with Wk_h the first N rows of head h, [N,R]: y [T,H,R+P], q [T,H,N+P].
// latent_value: y[t,h] = Wv_h o[t,h] with Wv_h the last V rows, [V,R]: y [T,H,V], o [T,H,R].
// mma.sync (bf16, f16): a block of 4 warps owns ROWS tokens (16 or 64) of a head and 64 columns of the product; steps of 32
// of its inner dimension in lines of 80 bytes (see gemm_portable.cu), or, for latent_query, whose w is [inner,column], rows
// of 64 columns in lines of 144 bytes read by ldmatrix.trans. Row lengths multiples of 8, rows aligned to 16 bytes. _any: a
// block of 256 threads owns 16 tokens by 64 columns, a thread 1 by 4, FMA, any type and size. f32 sums, one rounding.
#include "mma.cuh"

namespace {
struct Part {
  void* to;
  const void* from;
  long to_stride, from_stride;  // units
  int n, divide;
};
struct Moves {
  Part part[4];
  int rows, parts;
};

struct Params {
  void* y;
  const void* x;
  const void* w;
  long head;  // elements of w from one head to the next
  int tokens, heads, columns, inner, x_row, y_row, tail, pad;  // rows of x and y of one head; the tail is copied behind
};
}  // namespace

template <class U> __device__ __forceinline__ void move(const Moves& p) {
  const int lane = threadIdx.x % 32;
  const long r = (long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  grid_wait();
  if (r >= p.rows) return;
  const Part& m = p.part[blockIdx.y];
  U* to = (U*)m.to + r * m.to_stride;
  const U* from = (const U*)m.from + r / m.divide * m.from_stride;
#pragma unroll 4
  for (int i = lane; i < m.n; i += 32) to[i] = from[i];
}
extern "C" __global__ void __launch_bounds__(128) latent_move_2(const __grid_constant__ Moves p) { move<uint16_t>(p); }
extern "C" __global__ void __launch_bounds__(128) latent_move_4(const __grid_constant__ Moves p) { move<uint32_t>(p); }
extern "C" __global__ void __launch_bounds__(128) latent_move_16(const __grid_constant__ Moves p) { move<uint4>(p); }

namespace {
struct Append {
  void* k_pool;
  void* v_pool;
  const void* x;  // [T,R+P]
  const void* w;  // [R]
  const float* cos;  // [max_positions,P/2]
  const float* sin;
  const int* positions;
  const int* slots;
  int r, p, pairing, max_positions;  // pairing: 0 neighbours, 1 halves, 2 nothing is turned
  float eps;
  int pad;
};
}  // namespace

template <class T> __device__ __forceinline__ void append(const Append& p) {
  __shared__ float scratch[32];
  const long t = blockIdx.x;
  grid_wait();
  const long slot = p.slots[t];
  if (slot < 0) return;
  const T* x = (const T*)p.x + t * (p.r + p.p);
  T* k = (T*)p.k_pool + slot * (p.r + p.p);
  T* v = (T*)p.v_pool + slot * p.r;
  float squares = 0;
  for (int i = threadIdx.x; i < p.r; i += blockDim.x) squares += to_float(x[i]) * to_float(x[i]);
  const float scale = rsqrtf(block_sum(squares, scratch) / p.r + p.eps);
  for (int i = threadIdx.x; i < p.r; i += blockDim.x) k[i] = v[i] = from_float<T>(to_float(x[i]) * scale * to_float(((const T*)p.w)[i]));
  x += p.r, k += p.r;
  if (p.pairing == 2) {
    for (int i = threadIdx.x; i < p.p; i += blockDim.x) k[i] = x[i];
    return;
  }
  const int position = p.positions[t];
  const bool known = position >= 0 && position < p.max_positions;
  for (int i = threadIdx.x; i < p.p / 2; i += blockDim.x) {
    const int a = p.pairing ? i : 2 * i, b = p.pairing ? i + p.p / 2 : 2 * i + 1;
    const float c = known ? p.cos[(long)position * (p.p / 2) + i] : NAN, s = known ? p.sin[(long)position * (p.p / 2) + i] : NAN;
    const float u = to_float(x[a]), w = to_float(x[b]);
    k[a] = from_float<T>(u * c - w * s);
    k[b] = from_float<T>(u * s + w * c);
  }
}
extern "C" __global__ void __launch_bounds__(256) latent_append_bf16(const __grid_constant__ Append p) { append<bf16>(p); }
extern "C" __global__ void __launch_bounds__(256) latent_append_f16(const __grid_constant__ Append p) { append<f16>(p); }
extern "C" __global__ void __launch_bounds__(256) latent_append_f32(const __grid_constant__ Append p) { append<f32>(p); }

// y = x w (TRANS: w is [inner,column]) or x w^T (w is [column,inner]) of one head.
template <class T, int ROWS, bool TRANS> __device__ __forceinline__ void product(const Params& p) {
  constexpr int COLS = 64, BK = 32, STAGES = ROWS == 16 ? 7 : 4, LINE = 80, WIDE = 144, X = ROWS * LINE, W = TRANS ? BK * WIDE : COLS * LINE, STAGE = X + W;
  constexpr int WARPS_M = ROWS / 16, WARP_COLS = COLS / (4 / WARPS_M);
  __shared__ __align__(128) unsigned char shared[STAGES * STAGE];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int head = blockIdx.y, row0 = blockIdx.z * ROWS, col0 = blockIdx.x * COLS;
  const int wr = warp % WARPS_M * 16, wc = warp / WARPS_M * WARP_COLS;
  const T* w = (const T*)p.w + head * p.head;
  const T* x = (const T*)p.x + (long)head * p.x_row;
  const long stride = (long)p.heads * p.x_row;
  const int steps = (p.inner + BK - 1) / BK;
  auto issue_x = [&](int s) {
    const uint32_t stage = shared_address(shared) + s % STAGES * STAGE;
    const int k0 = s * BK;
    for (int i = threadIdx.x; i < ROWS * 4; i += 128) {
      const int line = i / 4, k = k0 + i % 4 * 8;
      const bool live = row0 + line < p.tokens && k < p.inner && s < steps;
      copy_async16(stage + line * LINE + i % 4 * 16, live ? x + (row0 + line) * stride + k : x, live);
    }
  };
  auto issue_w = [&](int s) {
    const uint32_t stage = shared_address(shared) + s % STAGES * STAGE;
    const int k0 = s * BK;
#pragma unroll
    for (int i = threadIdx.x; i < COLS * 4; i += 128) {
      if (TRANS) {
        const int k = k0 + i / 8, c = col0 + i % 8 * 8;
        const bool live = k < p.inner && c < p.columns && s < steps;
        copy_async16(stage + X + i / 8 * WIDE + i % 8 * 16, live ? w + (long)k * p.columns + c : w, live);
      } else {
        const int line = i / 4, k = k0 + i % 4 * 8;
        const bool live = col0 + line < p.columns && k < p.inner && s < steps;
        copy_async16(stage + X + line * LINE + i % 4 * 16, live ? w + (long)(col0 + line) * p.inner + k : w, live);
      }
    }
  };
  float d[WARP_COLS / 8][4] = {};
  // Weights do not depend on the launch in front: their loads start before it has ended.
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) issue_w(s);
  grid_wait();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    issue_x(s);
    copy_commit();
  }
  for (int s = 0; s < steps; s++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    if (s + STAGES - 1 < steps) {
      issue_w(s + STAGES - 1);
      issue_x(s + STAGES - 1);
    }
    copy_commit();
    const uint32_t stage = shared_address(shared) + s % STAGES * STAGE;
#pragma unroll
    for (int kk = 0; kk < 2; kk++) {
      uint32_t a[4];
      ldmatrix4(a, stage + (wr + lane % 16) * LINE + kk * 32 + lane / 16 * 16);
#pragma unroll
      for (int j = 0; j < WARP_COLS / 16; j++) {
        uint32_t b[4];
        if (TRANS) ldmatrix4_trans(b, stage + X + (kk * 16 + (lane & 7) + (lane >> 3 & 1) * 8) * WIDE + (wc + j * 16 + (lane >> 4) * 8) * 2);
        else ldmatrix4(b, stage + X + (wc + j * 16 + (lane & 7) + (lane >> 4) * 8) * LINE + kk * 32 + (lane >> 3 & 1) * 16);
        mma16816<T>(d[2 * j], a, b[0], b[1]);
        mma16816<T>(d[2 * j + 1], a, b[2], b[3]);
      }
    }
  }
  copy_wait<0>();
  const long y_stride = (long)p.heads * p.y_row;
  T* y = (T*)p.y + (long)head * p.y_row;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int r = row0 + wr + g + half * 8;
    if (r >= p.tokens) continue;
#pragma unroll
    for (int j = 0; j < WARP_COLS / 8; j++) {
      const int c = col0 + wc + j * 8 + 2 * t;
      if (c < p.columns) *(uint32_t*)(y + r * y_stride + c) = pack2<T>(d[j][2 * half], d[j][2 * half + 1]);
    }
  }
  if (blockIdx.x > 0) return;
  for (int i = threadIdx.x; i < ROWS * p.tail; i += 128) {
    const int r = row0 + i / p.tail, c = i % p.tail;
    if (r < p.tokens) y[r * y_stride + p.columns + c] = x[r * stride + p.inner + c];
  }
}

template <class T, bool TRANS> __device__ __forceinline__ void product_any(const Params& p) {
  constexpr int BK = 16;
  __shared__ float xs[16][BK + 1], ws[BK][68];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, head = blockIdx.y, row0 = blockIdx.z * 16, col0 = blockIdx.x * 64;
  const T* w = (const T*)p.w + head * p.head;
  const T* x = (const T*)p.x + (long)head * p.x_row;
  const long stride = (long)p.heads * p.x_row;
  float d[4] = {};
  grid_wait();
  for (int k0 = 0; k0 < p.inner; k0 += BK) {
    __syncthreads();
    xs[ty][tx] = row0 + ty < p.tokens && k0 + tx < p.inner ? to_float(x[(row0 + ty) * stride + k0 + tx]) : 0.f;
#pragma unroll
    for (int i = threadIdx.x; i < 64 * BK; i += 256) {
      const int k = TRANS ? i / 64 : i % BK, c = TRANS ? i % 64 : i / BK;
      const bool live = k0 + k < p.inner && col0 + c < p.columns;
      ws[k][c] = live ? to_float(TRANS ? w[(long)(k0 + k) * p.columns + col0 + c] : w[(long)(col0 + c) * p.inner + k0 + k]) : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < BK; s++) {
      const float a = xs[ty][s];
      const float4 b = *(const float4*)&ws[s][tx * 4];
      d[0] += a * b.x, d[1] += a * b.y, d[2] += a * b.z, d[3] += a * b.w;
    }
  }
  const int r = row0 + ty;
  if (r >= p.tokens) return;
  T* y = (T*)p.y + ((long)r * p.heads + head) * p.y_row;
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (col0 + tx * 4 + j < p.columns) y[col0 + tx * 4 + j] = from_float<T>(d[j]);
  if (blockIdx.x == 0)
    for (int c = tx; c < p.tail; c += 16) y[p.columns + c] = x[r * stride + p.inner + c];
}

#define PRODUCT(T, ROWS)                                                                                                       \
  extern "C" __global__ void __launch_bounds__(128) latent_query_##T##_##ROWS(const __grid_constant__ Params p) { product<T, ROWS, true>(p); } \
  extern "C" __global__ void __launch_bounds__(128) latent_value_##T##_##ROWS(const __grid_constant__ Params p) { product<T, ROWS, false>(p); }
#define ANY(T)                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) latent_query_##T##_any(const __grid_constant__ Params p) { product_any<T, true>(p); } \
  extern "C" __global__ void __launch_bounds__(256) latent_value_##T##_any(const __grid_constant__ Params p) { product_any<T, false>(p); }
PRODUCT(bf16, 16)
PRODUCT(bf16, 64)
PRODUCT(f16, 16)
PRODUCT(f16, 64)
ANY(bf16)
ANY(f16)
ANY(f32)
