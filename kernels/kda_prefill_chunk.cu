// The first kernel of Kimi Delta Attention in chunks of 64 tokens, on the tensor cores: one block of 256 threads a chunk and value
// head, all in parallel. With G the running sum of the log-decay:
//
//   m_ij = sum_d k_id k_jd exp(G_id - G_jd) (j < i),  P_ij = scale sum_d q_id k_jd exp(G_id - G_jd) (j <= i)
//   T = (I + diag(beta) m)^-1 diag(beta),  U = T v,  W = -T (k exp G)
//   Qg = scale q exp G,  Kg = k exp(G_last - G),  gamma = exp G_last
//
// It leaves W, Qg, Kg, P, gamma and U as one item of memory, laid out as kda_prefill_scan.cu wants it in shared memory.
//
// Exponents of the products are never above 0. Their factors: a row's from the first row of its block of 16 on, a column's back
// to the first row of the next block (blocks off the diagonal), both at most 1, or back to the first row of its own (blocks on
// it), which must undo what has decayed since: as f16 up to 2^14, shifted evenly around 1; rows beyond that in tf32 up to
// 2^115; rows beyond that pair by pair. Which way a row takes depends on tokens before it alone.
// Blocks of 16 are inverted by substitution in f32, then merged with products of three tf32 terms. Products of U and W are of
// 16 bits, with T in two parts. Missing rows of a last chunk count as k = 0, g = 0, beta = 0.
//
// Items and operands aligned to 16 bytes. Shared memory: Chunk::BYTES, 99,584 at K 128. Any arch. Paper: Kimi Team, Kimi Linear
// (arXiv:2510.26692).
#include "kda_item.cuh"

// The part of x that tf32 holds, cut off.
__device__ __forceinline__ float tf32(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000); }
__device__ __forceinline__ void mma_tf32(float (&c)[4], const float (&a)[4], float b0, float b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                 "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// c += a b for a 16 by 8 tile in about f32: a [16,n] and b [n,8] row by row in shared memory.
template <int N> __device__ __forceinline__ void tile_product(float (&c)[4], const float* a, int lda, const float* b, int ldb) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int d = 0; d < N; d += 8) {
    float hi[4], lo[4], bh[2], bl[2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float x = a[(g + i % 2 * 8) * lda + d + t + i / 2 * 4];
      hi[i] = tf32(x), lo[i] = x - hi[i];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float x = b[(d + t + i * 4) * ldb + g];
      bh[i] = tf32(x), bl[i] = x - bh[i];
    }
    mma_tf32(c, hi, bl[0], bl[1]);
    mma_tf32(c, lo, bh[0], bh[1]);
    mma_tf32(c, hi, bh[0], bh[1]);
  }
}
__device__ __forceinline__ void tile_store(float* m, int ld, const float (&c)[4], float sign) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  m[g * ld + 2 * t] = sign * c[0], m[g * ld + 2 * t + 1] = sign * c[1];
  m[(g + 8) * ld + 2 * t] = sign * c[2], m[(g + 8) * ld + 2 * t + 1] = sign * c[3];
}

// 2^x, 0 far below 0.
__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr int ML = 68, TL = 72;      // rows of the square matrices in shared memory, of f32 and of T in two parts
constexpr float NEAR = 14, MOST = 115; // decay in a block, as a power of 2, that factors of f16 and of f32 can undo
constexpr float SHIFT = 7;           // half of NEAR: the factors of f16 lie evenly around 1

// What a block of the chunk kernel holds of its chunk. Decays are powers of 2. In turn: k, q as they come, then ahead (k and q
// scaled from the row of their block's first row), then k exp G and v; g, then back (k scaled to it, and to the next block's);
// m, then T in two parts of 16 bits.
template <class T, int KP> struct Chunk {
  static constexpr int GL = KP + 4, XL = KP + 8, SIZE = C * XL;
  float* g; // [C,GL] running sums
  T *k, *q; // [C,XL]
  float* m; // [C,ML]
  float* tmp;             // [32,36], behind m
  float* ref;             // [5,KP] the first row of each block, then the last row
  float *up, *down;       // [4,KP] 2^(ref[a] - SHIFT), 2^(ref[4] - ref[a + 1])
  f16* pair;              // [3,KP] 2^(ref[a] - ref[b + 1]) of the blocks (2,0), (3,0), (3,1)
  float *beta, *span;     // [C]

  static constexpr int BYTES = 2 * SIZE * 2 + 2 * SIZE * 2 + (C * ML + 32 * 36 + 13 * KP + 2 * C) * 4 + 3 * KP * 2;
  __device__ explicit Chunk(char* p) {
    auto take = [&](int bytes) {
      char* at = p;
      p += bytes;
      return at;
    };
    g = reinterpret_cast<float*>(take(2 * SIZE * 2));
    k = reinterpret_cast<T*>(take(SIZE * 2));
    q = reinterpret_cast<T*>(take(SIZE * 2));
    m = reinterpret_cast<float*>(take(C * ML * 4));
    tmp = reinterpret_cast<float*>(take(32 * 36 * 4));
    ref = reinterpret_cast<float*>(take(5 * KP * 4));
    up = reinterpret_cast<float*>(take(4 * KP * 4));
    down = reinterpret_cast<float*>(take(4 * KP * 4));
    beta = reinterpret_cast<float*>(take(C * 4));
    span = reinterpret_cast<float*>(take(C * 4));
    pair = reinterpret_cast<f16*>(take(3 * KP * 2));
  }
  __device__ f16* ahead_k() const { return reinterpret_cast<f16*>(k); }
  __device__ f16* ahead_q() const { return reinterpret_cast<f16*>(q); }
  __device__ f16* back_own() const { return reinterpret_cast<f16*>(g); }
  __device__ f16* back_next() const { return back_own() + SIZE; }
  __device__ T* t_high() const { return reinterpret_cast<T*>(m); }
  __device__ T* t_low() const { return t_high() + C * TL; }
};

// m (times beta, below the diagonal) and P of the 16 rows from r0 and the 8 columns from c0.
template <class T, int KP>
__device__ __forceinline__ void put_scores(const Chunk<T, KP>& s, T* item, int r0, int c0, const float (&cm)[4], const float (&cp)[4], float least, float most,
                                           float scale, float pscale) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, c = c0 + 2 * t;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int r = r0 + g + i * 8;
    if (s.span[r] <= least || s.span[r] > most) continue;
    const float x = scale * s.beta[r];
    s.m[r * ML + c] = c < r ? x * cm[2 * i] : 0.f;
    s.m[r * ML + c + 1] = c + 1 < r ? x * cm[2 * i + 1] : 0.f;
    *reinterpret_cast<uint32_t*>(item + Item<KP>::P + swizzled(r, c / 8, C / 8) * 8 + c % 8) =
        pack2<T>(c <= r ? pscale * cp[2 * i] : 0.f, c + 1 <= r ? pscale * cp[2 * i + 1] : 0.f);
  }
}

// A diagonal block with rows beyond what f16 can undo: those rows, 8 columns a warp, in tf32, and beyond that pair by pair.
template <class T, int KP> __device__ __forceinline__ void far_scores(const Chunk<T, KP>& s, T* item, int a, int half, float scale) {
  constexpr int GL = Chunk<T, KP>::GL, XL = Chunk<T, KP>::XL;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, c0 = a * 16 + half * 8;
  const float* ref = s.g + a * 16 * GL;
  constexpr float ROUND = 0.00070427f; // log2(1 + 2^-11): the mean of what tf32 cuts off
  float cm[4] = {}, cp[4] = {};
  for (int d = 0; d < KP; d += 8) {
    float ak[4], aq[4], bk[2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int r = a * 16 + g + i % 2 * 8, c = d + t + i / 2 * 4;
      const float e = power(s.g[r * GL + c] - ref[c] + ROUND);
      ak[i] = to_float(s.k[r * XL + c]) * e, aq[i] = to_float(s.q[r * XL + c]) * e;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int c = d + t + i * 4;
      bk[i] = to_float(s.k[(c0 + g) * XL + c]) * power(ref[c] - s.g[(c0 + g) * GL + c] + ROUND);
    }
    mma_tf32(cm, ak, bk[0], bk[1]);
    mma_tf32(cp, aq, bk[0], bk[1]);
  }
  put_scores(s, item, a * 16, c0, cm, cp, NEAR, MOST, 1.f, scale);
  for (int r = a * 16; r < a * 16 + 16; r++) {
    if (s.span[r] <= MOST) continue;
    for (int c = c0; c < c0 + 8; c++) {
      float mm = 0, pp = 0;
      if (c <= r)
        for (int d = lane; d < KP; d += 32) {
          const float e = to_float(s.k[c * XL + d]) * power(s.g[r * GL + d] - s.g[c * GL + d]);
          mm += to_float(s.k[r * XL + d]) * e, pp += to_float(s.q[r * XL + d]) * e;
        }
      mm = warp_sum(mm), pp = warp_sum(pp);
      if (lane == 0) {
        s.m[r * ML + c] = c < r ? s.beta[r] * mm : 0.f;
        item[Item<KP>::P + swizzled(r, c / 8, C / 8) * 8 + c % 8] = from_float<T>(scale * pp);
      }
    }
  }
}

// The blocks (a, b), b <= a, of 16 by 16 from the scaled keys and queries.
template <class T, int KP> __device__ __forceinline__ void scores(const Chunk<T, KP>& s, T* item, int a, int b) {
  constexpr int XL = Chunk<T, KP>::XL;
  const int lane = threadIdx.x % 32, t = lane % 4;
  const uint32_t row = (a * 16 + lane % 16) * XL + lane / 16 * 8, ka = shared_address(s.ahead_k() + row), qa = shared_address(s.ahead_q() + row);
  const uint32_t kb = shared_address((a == b ? s.back_own() : s.back_next()) + (b * 16 + lane % 8 + lane / 16 * 8) * XL + lane / 8 % 2 * 8);
  const f16* pair = a - b < 2 ? nullptr : s.pair + (a == 2 ? 0 : b == 0 ? 1 : 2) * KP + 2 * t;
  float cm[2][4] = {}, cp[2][4] = {};
#pragma unroll
  for (int d = 0; d < KP; d += 16) {
    uint32_t k[4], q[4], x[4];
    ldmatrix4(k, ka + d * 2);
    ldmatrix4(q, qa + d * 2);
    ldmatrix4(x, kb + d * 2);
    if (pair) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const __half2 f = *reinterpret_cast<const __half2*>(pair + d + i / 2 * 8);
        __half2 &u = *reinterpret_cast<__half2*>(&k[i]), &v = *reinterpret_cast<__half2*>(&q[i]);
        u = __hmul2(u, f), v = __hmul2(v, f);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
      mma16816<f16>(cm[n], k, x[2 * n], x[2 * n + 1]);
      mma16816<f16>(cp[n], q, x[2 * n], x[2 * n + 1]);
    }
  }
  const float undo = a == b ? 1.f : 1.f / (1 << (int)SHIFT);
#pragma unroll
  for (int n = 0; n < 2; n++) put_scores(s, item, a * 16, b * 16 + n * 8, cm[n], cp[n], -1.f, a == b ? NEAR : 3e38f, undo, undo);
}

// The inverse of I + (below the diagonal of m), in place of m.
template <class T, int KP> __device__ __forceinline__ void invert(const Chunk<T, KP>& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 4) { // a block of 16, a lane a column
    float* m = s.m + warp * 16 * ML + warp * 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
      float sum = i == lane ? 1.f : 0.f;
#pragma unroll
      for (int l = 0; l < i; l++) sum -= m[i * ML + l] * x[l];
      x[i] = sum;
    }
    __syncwarp();
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 16; i++) m[i * ML + lane] = x[i];
    }
  }
  __syncthreads();
  // [T1 0; A T2] of 16, then of 32: the lower left becomes -T2 A T1.
  if (warp < 4) {
    const int pair = warp / 2, n = warp % 2 * 8;
    float* m = s.m + pair * 32 * ML + pair * 32;
    float c[4] = {};
    tile_product<16>(c, m + 16 * ML, ML, m + n, ML);
    tile_store(s.tmp + pair * 16 * 36 + n, 36, c, 1);
  }
  __syncthreads();
  if (warp < 4) {
    const int pair = warp / 2, n = warp % 2 * 8;
    float* m = s.m + pair * 32 * ML + pair * 32;
    float c[4] = {};
    tile_product<16>(c, m + 16 * ML + 16, ML, s.tmp + pair * 16 * 36 + n, 36);
    tile_store(m + 16 * ML + n, ML, c, -1);
  }
  __syncthreads();
  const int r = warp / 4 * 16, n = warp % 4 * 8;
  float c[4] = {};
  tile_product<32>(c, s.m + (32 + r) * ML, ML, s.m + n, ML);
  tile_store(s.tmp + r * 36 + n, 36, c, 1);
  __syncthreads();
  float e[4] = {};
  tile_product<32>(e, s.m + (32 + r) * ML + 32, ML, s.tmp + n, 36);
  tile_store(s.m + (32 + r) * ML + n, ML, e, -1);
  __syncthreads();
  // Times beta by columns, in two parts of 16 bits.
  float x[16];
  const int tr = threadIdx.x / 4, tc = threadIdx.x % 4 * 16;
#pragma unroll
  for (int i = 0; i < 16; i++) x[i] = tc / 16 <= tr / 16 ? s.m[tr * ML + tc + i] * s.beta[tc + i] : 0.f;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 16; i += 8) {
    Pack<T> high, low;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      high.v[j] = from_float<T>(x[i + j]);
      low.v[j] = from_float<T>(x[i + j] - to_float(high.v[j]));
    }
    store16(s.t_high() + tr * TL + tc + i, high);
    store16(s.t_low() + tr * TL + tc + i, low);
  }
}

// 16 columns of sign T x for x [C,ld] in shared memory, to dst in swizzled rows of `packs` packs at column c0.
template <class T> __device__ __forceinline__ void apply(T* dst, int packs, int c0, const T* high, const T* low, const T* x, int ld, float sign) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t b[4][4];
#pragma unroll
  for (int j = 0; j < 4; j++) ldmatrix4_trans(b[j], shared_address(x + (j * 16 + lane % 16) * ld + lane / 16 * 8));
  const uint32_t hi0 = shared_address(high + lane % 16 * TL + lane / 16 * 8), lo0 = shared_address(low + lane % 16 * TL + lane / 16 * 8);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float c[2][4] = {};
#pragma unroll
    for (int j = 0; j <= i; j++) {
      uint32_t hi[4], lo[4];
      ldmatrix4(hi, hi0 + (i * 16 * TL + j * 16) * 2);
      ldmatrix4(lo, lo0 + (i * 16 * TL + j * 16) * 2);
#pragma unroll
      for (int n = 0; n < 2; n++) {
        mma16816<T>(c[n], lo, b[j][2 * n], b[j][2 * n + 1]);
        mma16816<T>(c[n], hi, b[j][2 * n], b[j][2 * n + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int p = c0 / 8 + n;
      *reinterpret_cast<uint32_t*>(dst + swizzled(i * 16 + g, p, packs) * 8 + 2 * t) = pack2<T>(sign * c[n][0], sign * c[n][1]);
      *reinterpret_cast<uint32_t*>(dst + swizzled(i * 16 + g + 8, p, packs) * 8 + 2 * t) = pack2<T>(sign * c[n][2], sign * c[n][3]);
    }
  }
}

// Rows [0,rows) of n packs of columns from c0 on of x (rows `stride` apart, `width` columns), 0 beyond, to rows of XL elements.
template <int XL, class T>
__device__ __forceinline__ void fetch(T* dst, const T* x, int n, int c0, int width, int64_t stride, int rows) {
  const bool whole = width % 8 == 0;
  for (int i = threadIdx.x; i < C * n; i += 256) {
    const int r = i / n, p = i - r * n, c = c0 + p * 8;
    const bool live = r < rows && c < width;
    T* to = dst + r * XL + p * 8;
    if (whole) {
      copy_async16(shared_address(to), live ? x + r * stride + c : x, live);
      continue;
    }
    Pack<T> a;
#pragma unroll
    for (int j = 0; j < 8; j++) a.v[j] = live && c + j < width ? x[r * stride + c + j] : from_float<T>(0);
    store16(to, a);
  }
  copy_commit();
}

// chunks: a table of two int32 a chunk: first token and tokens. Block x works on chunk first + x; item (x, head) is its place.
template <class T, int KP>
__device__ __forceinline__ void chunk(T* items, const T* q, const T* k, const T* v, const float* g, const float* beta, const int* chunks, int first, int h,
                                      int hv, int dk, int dv, float scale) {
  extern __shared__ __align__(128) char memory[];
  constexpr int GL = Chunk<T, KP>::GL, XL = Chunk<T, KP>::XL, PACKS = KP / 8;
  const Chunk<T, KP> s(memory);
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, head = blockIdx.y;
  grid_wait();
  const int2 at = reinterpret_cast<const int2*>(chunks)[first + blockIdx.x];
  if (at.y <= 0) return;
  const int tiles = (dv + 31) / 32;
  T* item = items + ((size_t)blockIdx.x * hv + head) * (Item<KP>::SHARED + tiles * Item<KP>::TILE);
  const size_t qk = ((size_t)at.x * h + head / (hv / h)) * dk;
  fetch<XL>(s.k, k + qk, PACKS, 0, dk, (int64_t)h * dk, at.y);
  fetch<XL>(s.q, q + qk, PACKS, 0, dk, (int64_t)h * dk, at.y);
  for (int i = tid; i < 512; i += 256) s.m[(i / 256 * 32 + i / 16 % 16) * ML + i / 256 * 32 + 16 + i % 16] = 0; // right of the diagonal, in the squares of 32
  if (tid < C) s.beta[tid] = tid < at.y ? beta[((size_t)at.x + tid) * hv + head] : 0.f;
  { // Running sums: a thread takes some rows of four columns, then adds the sums in front.
    constexpr int GROUPS = KP / 4, PARTS = 256 / GROUPS, ROWS = C / PARTS;
    const int c = tid % GROUPS * 4, part = tid / GROUPS, r0 = part * ROWS;
    const float* gp = g + ((size_t)at.x * hv + head) * dk + c;
    const int64_t stride = (int64_t)hv * dk;
    float4 x[ROWS], sum = make_float4(0, 0, 0, 0);
    constexpr float LOG2E = 1.44269504f;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      x[r] = make_float4(0, 0, 0, 0);
      if (r0 + r < at.y) {
        const float* y = gp + (r0 + r) * stride;
        if (dk % 4 == 0) {
          if (c < dk) x[r] = *reinterpret_cast<const float4*>(y);
        } else {
          if (c < dk) x[r].x = y[0];
          if (c + 1 < dk) x[r].y = y[1];
          if (c + 2 < dk) x[r].z = y[2];
          if (c + 3 < dk) x[r].w = y[3];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      sum.x += x[r].x * LOG2E, sum.y += x[r].y * LOG2E, sum.z += x[r].z * LOG2E, sum.w += x[r].w * LOG2E;
      x[r] = sum;
    }
    float4* parts = reinterpret_cast<float4*>(s.tmp) + tid % GROUPS;
    parts[part * GROUPS] = sum;
    __syncthreads();
    sum = make_float4(0, 0, 0, 0);
    for (int p = 0; p < part; p++) {
      const float4 y = parts[p * GROUPS];
      sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float4 y = make_float4(x[r].x + sum.x, x[r].y + sum.y, x[r].z + sum.z, x[r].w + sum.w);
      *reinterpret_cast<float4*>(s.g + (r0 + r) * GL + c) = y;
      if ((r0 + r) % 16 == 0) *reinterpret_cast<float4*>(s.ref + (r0 + r) / 16 * KP + c) = y;
      if (r0 + r == C - 1) *reinterpret_cast<float4*>(s.ref + 4 * KP + c) = y;
    }
  }
  copy_wait<0>();
  __syncthreads();
  for (int r = warp; r < C; r += 8) {
    float most = 0;
#pragma unroll
    for (int d = lane; d < KP; d += 32) most = fmaxf(most, s.ref[r / 16 * KP + d] - s.g[r * GL + d]);
    most = warp_max(most);
    if (lane == 0) s.span[r] = most;
  }
  for (int d = tid; d < KP; d += 256) {
#pragma unroll
    for (int a = 0; a < 4; a++) {
      s.up[a * KP + d] = power(s.ref[a * KP + d] - SHIFT);
      s.down[a * KP + d] = power(s.ref[4 * KP + d] - (a < 3 ? s.ref[(a + 1) * KP + d] : s.ref[4 * KP + d]));
    }
    s.pair[d] = __float2half_rn(power(s.ref[2 * KP + d] - s.ref[KP + d]));
    s.pair[KP + d] = __float2half_rn(power(s.ref[3 * KP + d] - s.ref[KP + d]));
    s.pair[2 * KP + d] = __float2half_rn(power(s.ref[3 * KP + d] - s.ref[2 * KP + d]));
    reinterpret_cast<float*>(item + Item<KP>::GAMMA)[d] = power(s.ref[4 * KP + d]);
  }
  __syncthreads();
  if (s.span[warp / 2 * 16 + 15] > NEAR) far_scores(s, item, warp / 2, warp % 2, scale);
  __syncthreads();
  constexpr int TURNS = C * PACKS / 256;
  {
    Pack<f16> own[TURNS], next[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int r = (tid + i * 256) / PACKS, c = (tid + i * 256) % PACKS * 8, a = r / 16;
      const Pack<T> x = load16(s.k + r * XL + c), y = load16(s.q + r * XL + c);
      Pack<f16> ak, aq;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float gr = s.g[r * GL + c + j] - s.ref[a * KP + c + j], e = power(gr + SHIFT), kv = to_float(x.v[j]);
        ak.v[j] = __float2half_rn(kv * e);
        aq.v[j] = __float2half_rn(scale * to_float(y.v[j]) * e);
        own[i].v[j] = __float2half_rn(kv * power(fminf(-gr, NEAR) - SHIFT));
        next[i].v[j] = __float2half_rn(kv * power((a < 3 ? s.ref[(a + 1) * KP + c + j] : s.ref[4 * KP + c + j]) - s.g[r * GL + c + j]));
      }
      store16(s.ahead_k() + r * XL + c, ak);
      store16(s.ahead_q() + r * XL + c, aq);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int at = (tid + i * 256) / PACKS * XL + (tid + i * 256) % PACKS * 8;
      store16(s.back_own() + at, own[i]);
      store16(s.back_next() + at, next[i]);
    }
  }
  __syncthreads();
  for (int i = warp; i < 10; i += 8) {
    const int a = i < 4 ? 3 : i < 7 ? 2 : i < 9 ? 1 : 0, b = i < 4 ? i : i < 7 ? i - 4 : i < 9 ? i - 7 : 0;
    scores(s, item, a, b);
  }
  __syncthreads();
  // Qg, Kg to the item; k exp G in the place of k.
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    const int r = (tid + i * 256) / PACKS, p = (tid + i * 256) % PACKS, c = p * 8, a = r / 16;
    const Pack<f16> ak = load16(s.ahead_k() + r * XL + c), aq = load16(s.ahead_q() + r * XL + c), next = load16(s.back_next() + r * XL + c);
    Pack<T> x, y, z;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float up = s.up[a * KP + c + j];
      x.v[j] = from_float<T>(to_float(ak.v[j]) * up);
      y.v[j] = from_float<T>(to_float(aq.v[j]) * up);
      z.v[j] = from_float<T>(to_float(next.v[j]) * s.down[a * KP + c + j]);
    }
    store16(s.k + r * XL + c, x);
    store16(item + Item<KP>::Q + swizzled(r, p, PACKS) * 8, y);
    store16(item + Item<KP>::K + swizzled(r, p, PACKS) * 8, z);
  }
  __syncthreads();
  // v in the place of q, as many columns at a time as q has; W and U 16 columns a warp in the place of g, then to the item in
  // order.
  const T* vp = v + ((size_t)at.x * hv + head) * dv;
  constexpr int BATCH = KP / 32; // tiles of v at a time
  T *stage = reinterpret_cast<T*>(s.g), *ustage = stage + C * KP;
  fetch<XL>(s.q, vp, min(BATCH, tiles) * 4, 0, dv, (int64_t)hv * dv, at.y);
  invert(s);
  for (int t0 = 0; t0 < tiles; t0 += BATCH) {
    const int n = min(BATCH, tiles - t0);
    if (t0 > 0) fetch<XL>(s.q, vp, n * 4, t0 * 32, dv, (int64_t)hv * dv, at.y);
    copy_wait<0>();
    __syncthreads();
    if (t0 == 0)
      for (int i = warp; i < KP / 16; i += 8) apply<T>(stage, PACKS, i * 16, s.t_high(), s.t_low(), s.k + i * 16, XL, -1);
    for (int i = warp; i < 2 * n; i += 8) apply<T>(ustage + i / 2 * Item<KP>::TILE, 4, i % 2 * 16, s.t_high(), s.t_low(), s.q + i * 16, XL, 1);
    __syncthreads();
    if (t0 == 0)
      for (int i = tid; i < C * PACKS; i += 256) store16(item + Item<KP>::W + i * 8, load16(stage + i * 8));
    for (int i = tid; i < n * Item<KP>::TILE / 8; i += 256) store16(item + Item<KP>::SHARED + t0 * Item<KP>::TILE + i * 8, load16(ustage + i * 8));
    if (t0 + BATCH < tiles) __syncthreads();
  }
}

#define CHUNK(T, KP)                                                                                                                          \
  extern "C" __global__ void __launch_bounds__(256, KP < 256 ? 2 : 1) kda_prefill_chunk_##T##_##KP(                                           \
      T* items, const T* q, const T* k, const T* v, const float* g, const float* beta, const int* chunks, int first, int h, int hv, int dk, int dv, float scale) { \
    chunk<T, KP>(items, q, k, v, g, beta, chunks, first, h, hv, dk, dv, scale);                                                              \
  }
#define DIMS(T) CHUNK(T, 64) CHUNK(T, 128) CHUNK(T, 256)
DIMS(bf16) DIMS(f16)
