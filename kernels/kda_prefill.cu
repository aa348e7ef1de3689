// Kimi Delta Attention of many tokens in chunks of 64, on the tensor cores. Two kernels for a section of chunks:
//
//   chunk  one block of 256 threads a chunk and value head, all in parallel. With G the running sum of the log-decay:
//            m_ij = sum_d k_id k_jd exp(G_id - G_jd) (j < i),  P_ij = scale sum_d q_id k_jd exp(G_id - G_jd) (j <= i)
//            T = (I + diag(beta) m)^-1 diag(beta),  U = T v,  W = -T (k exp G)
//            Qg = scale q exp G,  Kg = k exp(G_last - G),  gamma = exp G_last
//          It leaves W, Qg, Kg, P, gamma and U as one item of memory, laid out as the second kernel wants it in shared memory.
//   scan   one warp for 16 columns of the state of a head, over the chunks of a sequence in order, with the state in f32
//          accumulators, transposed [V,K]:  Vn' = U' + S' W',  O' = S' Qg' + Vn' P',  S' <- S' gamma + Vn' Kg
//          The state passes to the first operand of a product by rounding in place; warps never wait for each other but to
//          share the item, which arrives while the one before is worked on.
//
// Exponents are never above 0 except inside a diagonal block of 16: there the row of the block is the reference, for rows
// whose decay since it stays below e^80; a row beyond that (a decision on tokens before it alone) is summed pair by pair.
// Blocks of 16 are inverted by substitution in f32, then merged with products of three tf32 terms. Products: m and P tf32, the
// others 16 bits, T in two parts. Missing rows of a last chunk count as k = 0, g = 0, beta = 0.
//
// Scratch items are aligned to 16 bytes. Shared memory: see prefillShared in ops/cuda. State f32. Any arch; the items come by
// bulk copies on sm_90. Paper: Kimi Team, Kimi Linear (arXiv:2510.26692); section 2 of its appendix for the chunked form.
#include "kda.cuh"
#include "mma.cuh"

constexpr int C = 64; // tokens of a chunk

// 16-byte place of column pack p (8 elements) in row r of a tile with `packs` packs a row, spread over the banks.
__device__ __forceinline__ int swizzled(int r, int p, int packs) {
  return packs == 4 ? r * 4 + (p ^ (r >> 1 & 3)) : r * packs + (p ^ (r & 7));
}

// An item in elements of T: W, Qg, Kg [C,KP], P [C,C], gamma [KP] f32, then U in tiles [C,32].
template <int KP> struct Item {
  static constexpr int W = 0, Q = C * KP, K = 2 * C * KP, P = 3 * C * KP, GAMMA = P + C * C, SHARED = GAMMA + 2 * KP, TILE = C * 32;
};

__device__ __forceinline__ float tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return __uint_as_float(r);
}
__device__ __forceinline__ void mma_tf32(float (&c)[4], const float (&a)[4], float b0, float b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                 "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// c += a b for a 16 by 8 tile in about f32: a [16,n] and b [n,8] row by row in shared memory.
__device__ __forceinline__ void tile_product(float (&c)[4], const float* a, int lda, const float* b, int ldb, int n) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int d = 0; d < n; d += 8) {
    float hi[4], lo[4], bh[2], bl[2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float x = a[(g + i % 2 * 8) * lda + d + t + i / 2 * 4];
      hi[i] = tf32(x), lo[i] = tf32(x - hi[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float x = b[(d + t + i * 4) * ldb + g];
      bh[i] = tf32(x), bl[i] = tf32(x - bh[i]);
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

constexpr int ML = 68; // row of the square matrices in shared memory
constexpr float MOST = 80; // decay since the reference that a factor can undo

// What a block of the chunk kernel holds of its chunk.
template <class T, int KP> struct Chunk {
  static constexpr int GL = KP + 4, XL = KP + 8;
  float* g;  // [C,GL] running sums
  T *k, *q;  // [C,XL]
  float* m;  // [C,ML]
  float* tmp; // [32,36]
  float *beta, *span; // [C]
};

// m (times beta, below the diagonal) and P of the blocks (a, b), b <= a, of 16 by 16.
template <class T, int KP> __device__ __forceinline__ void scores(const Chunk<T, KP>& s, T* item, int a, int b, float scale) {
  constexpr int GL = Chunk<T, KP>::GL, XL = Chunk<T, KP>::XL;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const float* ref = s.g + a * 16 * GL;
  float cm[2][4] = {}, cp[2][4] = {};
  for (int d = 0; d < KP; d += 8) {
    float ak[4], aq[4], bk[2][2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int r = a * 16 + g + i % 2 * 8, c = d + t + i / 2 * 4;
      const float e = __expf(s.g[r * GL + c] - ref[c]);
      ak[i] = tf32(to_float(s.k[r * XL + c]) * e), aq[i] = tf32(to_float(s.q[r * XL + c]) * e);
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int r = b * 16 + n * 8 + g, c = d + t + i * 4;
        bk[n][i] = tf32(to_float(s.k[r * XL + c]) * __expf(ref[c] - s.g[r * GL + c]));
      }
      mma_tf32(cm[n], ak, bk[n][0], bk[n][1]);
      mma_tf32(cp[n], aq, bk[n][0], bk[n][1]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int r = a * 16 + g + i / 2 * 8, c = b * 16 + n * 8 + 2 * t + i % 2;
      cm[n][i] = c < r ? s.beta[r] * cm[n][i] : 0.f;
      cp[n][i] = c <= r ? scale * cp[n][i] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int r = a * 16 + g + i / 2 * 8, c = b * 16 + n * 8 + 2 * t;
      if (a == b && s.span[r] > MOST) continue;
      s.m[r * ML + c] = cm[n][i], s.m[r * ML + c + 1] = cm[n][i + 1];
      *reinterpret_cast<uint32_t*>(item + Item<KP>::P + swizzled(r, c / 8, C / 8) * 8 + c % 8) = pack2<T>(cp[n][i], cp[n][i + 1]);
    }
  }
  if (a != b) return;
  for (int r = a * 16; r < a * 16 + 16; r++) { // pair by pair
    if (s.span[r] <= MOST) continue;
    for (int c = a * 16; c < a * 16 + 16; c++) {
      float mm = 0, pp = 0;
      if (c <= r)
        for (int d = threadIdx.x % 32; d < KP; d += 32) {
          const float e = to_float(s.k[c * XL + d]) * __expf(s.g[r * GL + d] - s.g[c * GL + d]);
          mm += to_float(s.k[r * XL + d]) * e, pp += to_float(s.q[r * XL + d]) * e;
        }
      mm = warp_sum(mm), pp = warp_sum(pp);
      if (threadIdx.x % 32 == 0) {
        s.m[r * ML + c] = c < r ? s.beta[r] * mm : 0.f;
        item[Item<KP>::P + swizzled(r, c / 8, C / 8) * 8 + c % 8] = from_float<T>(scale * pp);
      }
    }
  }
}

// The inverse of I + (below the diagonal of m), in place of m, times beta by columns at the end.
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
    tile_product(c, m + 16 * ML, ML, m + n, ML, 16);
    tile_store(s.tmp + pair * 16 * 36 + n, 36, c, 1);
  }
  __syncthreads();
  if (warp < 4) {
    const int pair = warp / 2, n = warp % 2 * 8;
    float* m = s.m + pair * 32 * ML + pair * 32;
    float c[4] = {};
    tile_product(c, m + 16 * ML + 16, ML, s.tmp + pair * 16 * 36 + n, 36, 16);
    tile_store(m + 16 * ML + n, ML, c, -1);
  }
  __syncthreads();
  const int r = warp / 4 * 16, n = warp % 4 * 8;
  float c[4] = {};
  tile_product(c, s.m + (32 + r) * ML, ML, s.m + n, ML, 32);
  tile_store(s.tmp + r * 36 + n, 36, c, 1);
  __syncthreads();
  float e[4] = {};
  tile_product(e, s.m + (32 + r) * ML + 32, ML, s.tmp + n, 36, 32);
  tile_store(s.m + (32 + r) * ML + n, ML, e, -1);
  __syncthreads();
}

// The rows and columns of T from m, times beta by columns, as operands of 16 bits in two parts.
template <class T> __device__ __forceinline__ void operand(uint32_t (&hi)[4], uint32_t (&lo)[4], const float* m, const float* beta, int r0, int c0) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = r0 + g + i % 2 * 8, c = c0 + 2 * t + i / 2 * 8;
    const float x = m[r * ML + c] * beta[c], y = m[r * ML + c + 1] * beta[c + 1];
    hi[i] = pack2<T>(x, y);
    const T* h = reinterpret_cast<const T*>(&hi[i]);
    lo[i] = pack2<T>(x - to_float(h[0]), y - to_float(h[1]));
  }
}

// 16 columns of sign T x for x [C,ld] in shared memory at its columns n.., to dst in swizzled rows of `packs` packs at columns
// c0...
template <class T> __device__ __forceinline__ void apply(T* dst, int packs, int c0, const float* m, const float* beta, const T* x, int ld, float sign) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t b[4][4];
#pragma unroll
  for (int j = 0; j < 4; j++) ldmatrix4_trans(b[j], shared_address(x + (j * 16 + lane % 16) * ld + lane / 16 * 8));
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float c[2][4] = {};
#pragma unroll
    for (int j = 0; j <= i; j++) {
      uint32_t hi[4], lo[4];
      operand<T>(hi, lo, m, beta, i * 16, j * 16);
#pragma unroll
      for (int n = 0; n < 2; n++) {
        mma16816<T>(c[n], lo, b[j][2 * n], b[j][2 * n + 1]);
        mma16816<T>(c[n], hi, b[j][2 * n], b[j][2 * n + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int p = (c0 + n * 8) / 8;
      *reinterpret_cast<uint32_t*>(dst + swizzled(i * 16 + g, p, packs) * 8 + 2 * t) = pack2<T>(sign * c[n][0], sign * c[n][1]);
      *reinterpret_cast<uint32_t*>(dst + swizzled(i * 16 + g + 8, p, packs) * 8 + 2 * t) = pack2<T>(sign * c[n][2], sign * c[n][3]);
    }
  }
}

// chunks: a table of two int32 a chunk: first token and tokens. Block x works on chunk first + x; item (x, head) is its place.
template <class T, int KP>
__device__ __forceinline__ void chunk(T* items, const T* q, const T* k, const T* v, const float* g, const float* beta, const int* chunks, int first, int h,
                                      int hv, int dk, int dv, float scale) {
  extern __shared__ __align__(128) char memory[];
  constexpr int GL = Chunk<T, KP>::GL, XL = Chunk<T, KP>::XL, PACKS = KP / 8;
  Chunk<T, KP> s;
  s.g = reinterpret_cast<float*>(memory);
  s.k = reinterpret_cast<T*>(s.g + C * GL);
  s.q = s.k + C * XL;
  s.m = reinterpret_cast<float*>(s.q + C * XL);
  s.tmp = s.m + C * ML;
  s.beta = s.tmp + 32 * 36;
  s.span = s.beta + C;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, head = blockIdx.y;
  grid_wait();
  const int2 at = reinterpret_cast<const int2*>(chunks)[first + blockIdx.x];
  if (at.y <= 0) return;
  const int tiles = (dv + 31) / 32;
  T* item = items + ((size_t)blockIdx.x * hv + head) * (Item<KP>::SHARED + tiles * Item<KP>::TILE);
  const bool whole = dk % 8 == 0;
  const T* kp = k + ((size_t)at.x * h + head / (hv / h)) * dk;
  const T* qp = q + ((size_t)at.x * h + head / (hv / h)) * dk;
  for (int i = tid; i < C * PACKS; i += 256) {
    const int r = i / PACKS, c = i % PACKS * 8;
    Pack<T> a, b;
#pragma unroll
    for (int j = 0; j < 8; j++) a.v[j] = b.v[j] = from_float<T>(0);
    if (r < at.y && c < dk) {
      const size_t o = (size_t)r * h * dk + c;
      if (whole) {
        a = load16(kp + o), b = load16(qp + o);
      } else {
#pragma unroll
        for (int j = 0; j < 8; j++)
          if (c + j < dk) a.v[j] = kp[o + j], b.v[j] = qp[o + j];
      }
    }
    store16(s.k + r * XL + c, a);
    store16(s.q + r * XL + c, b);
  }
  for (int i = tid; i < 512; i += 256) s.m[(i / 256 * 32 + i / 16 % 16) * ML + i / 256 * 32 + 16 + i % 16] = 0; // right of the diagonal, in the squares of 32
  if (tid < C) s.beta[tid] = tid < at.y ? beta[((size_t)at.x + tid) * hv + head] : 0.f;
  // Running sums: a thread takes 64 KP / 256 rows of a column, then adds the sums in front.
  {
    constexpr int PARTS = 256 / KP > 0 ? 256 / KP : 1, ROWS = C / PARTS;
    const int c = tid % KP, part = tid / KP;
    float sum = 0;
    const float* gp = g + ((size_t)at.x * hv + head) * dk + c;
    float x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int row = part * ROWS + r;
      x[r] = row < at.y && c < dk ? gp[(size_t)row * hv * dk] : 0.f;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum += x[r], x[r] = sum;
    if constexpr (PARTS > 1) {
      s.tmp[part * KP + c] = sum;
      __syncthreads();
      for (int p = 0; p < PARTS - 1; p++)
        if (p < part) {
          const float before = s.tmp[p * KP + c];
#pragma unroll
          for (int r = 0; r < ROWS; r++) x[r] += before;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) s.g[(part * ROWS + r) * GL + c] = x[r];
  }
  __syncthreads();
  for (int r = warp; r < C; r += 8) {
    float most = 0;
    for (int d = lane; d < KP; d += 32) most = fmaxf(most, s.g[r / 16 * 16 * GL + d] - s.g[r * GL + d]);
    most = warp_max(most);
    if (lane == 0) s.span[r] = most;
  }
  __syncthreads();
  for (int i = warp; i < 10; i += 8) {
    const int a = i < 4 ? 3 : i < 7 ? 2 : i < 9 ? 1 : 0, b = i < 4 ? i : i < 7 ? i - 4 : i < 9 ? i - 7 : 0;
    scores(s, item, a, b, scale);
  }
  __syncthreads();
  invert(s);
  // Qg, Kg to the item; k exp G in the place of q.
  for (int i = tid; i < C * PACKS; i += 256) {
    const int r = i / PACKS, c = i % PACKS * 8;
    Pack<T> a = load16(s.q + r * XL + c), b = load16(s.k + r * XL + c), e;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float x = s.g[r * GL + c + j], up = __expf(x);
      a.v[j] = from_float<T>(scale * to_float(a.v[j]) * up);
      e.v[j] = from_float<T>(to_float(b.v[j]) * up);
      b.v[j] = from_float<T>(to_float(b.v[j]) * __expf(s.g[(C - 1) * GL + c + j] - x));
    }
    store16(item + Item<KP>::Q + swizzled(r, c / 8, PACKS) * 8, a);
    store16(item + Item<KP>::K + swizzled(r, c / 8, PACKS) * 8, b);
    store16(s.q + r * XL + c, e);
  }
  if (tid < KP) reinterpret_cast<float*>(item + Item<KP>::GAMMA)[tid] = __expf(s.g[(C - 1) * GL + tid]);
  __syncthreads();
  // v in the place of k, as many columns at a time as k has; W and U 16 columns a warp in the place of g, then to the item in
  // order.
  const bool vwhole = dv % 8 == 0;
  const T* vp = v + ((size_t)at.x * hv + head) * dv;
  constexpr int BATCH = KP / 32; // tiles of v at a time
  T *stage = reinterpret_cast<T*>(s.g), *ustage = stage + C * KP;
  for (int t0 = 0; t0 < tiles; t0 += BATCH) {
    const int n = min(BATCH, tiles - t0);
    for (int i = tid; i < n * C * 4; i += 256) {
      const int r = i / (n * 4), c = i % (n * 4) * 8, from = t0 * 32 + c;
      Pack<T> a;
#pragma unroll
      for (int j = 0; j < 8; j++) a.v[j] = from_float<T>(0);
      if (r < at.y && from < dv) {
        const size_t o = (size_t)r * hv * dv + from;
        if (vwhole) {
          a = load16(vp + o);
        } else {
#pragma unroll
          for (int j = 0; j < 8; j++)
            if (from + j < dv) a.v[j] = vp[o + j];
        }
      }
      store16(s.k + r * XL + c, a);
    }
    if (t0 == 0)
      for (int i = warp; i < KP / 16; i += 8) apply<T>(stage, PACKS, i * 16, s.m, s.beta, s.q + i * 16, XL, -1);
    __syncthreads();
    for (int i = warp; i < 2 * n; i += 8) apply<T>(ustage + i / 2 * Item<KP>::TILE, 4, i % 2 * 16, s.m, s.beta, s.k + i * 16, XL, 1);
    __syncthreads();
    for (int i = tid; i < n * Item<KP>::TILE / 8; i += 256) store16(item + Item<KP>::SHARED + t0 * Item<KP>::TILE + i * 8, load16(ustage + i * 8));
  }
  for (int i = tid; i < C * PACKS; i += 256) store16(item + Item<KP>::W + i * 8, load16(stage + i * 8));
}

// Shared memory of a block: two items, or one, then two barriers.
template <class T, int KP> struct Pipe {
  static constexpr int BYTES = (Item<KP>::SHARED + Item<KP>::TILE) * sizeof(T);
  T* at;
  uint64_t* full;
  int stages;

  __device__ void start(char* memory, int n) {
    at = reinterpret_cast<T*>(memory), stages = n;
    full = reinterpret_cast<uint64_t*>(memory + n * BYTES);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (int i = 0; i < n; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full + i)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
#endif
  }
  __device__ T* stage(int i) const { return at + i % stages * (BYTES / sizeof(T)); }
  // Item i: what all tiles read, and tile u of U behind it.
  __device__ void load(int i, const T* item, const T* u) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      const uint32_t bar = shared_address(full + i % stages), dst = shared_address(stage(i));
      constexpr uint32_t A = Item<KP>::SHARED * sizeof(T), B = Item<KP>::TILE * sizeof(T);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(A + B) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(item), "r"(A), "r"(bar) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst + A), "l"(u), "r"(B), "r"(bar) : "memory");
    }
#else
    const uint32_t dst = shared_address(stage(i));
    for (int j = threadIdx.x; j < Item<KP>::SHARED / 8; j += blockDim.x) copy_async16(dst + j * 16, item + j * 8, true);
    for (int j = threadIdx.x; j < Item<KP>::TILE / 8; j += blockDim.x) copy_async16(dst + Item<KP>::SHARED * sizeof(T) + j * 16, u + j * 8, true);
    copy_commit();
#endif
  }
  // Item i is there; `behind` says that one more has been asked for.
  __device__ void wait(int i, bool behind) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred p;\n\tagain_%=:\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t@p bra done_%=;\n\tbra again_%=;\n\tdone_%=:\n\t}" ::"r"(
            shared_address(full + i % stages)),
        "r"(i / stages & 1)
        : "memory");
#else
    if (behind)
      copy_wait<1>();
    else
      copy_wait<0>();
    __syncthreads();
#endif
  }
};

// One or two warps own 16 columns each of head blockIdx.y of sequence blockIdx.z, over the chunks [c0, c1) that are its own.
template <class T, int KP>
__device__ __forceinline__ void scan(T* out, float* st, const float* s0, const T* items, const int* sequences, const int* chunks, int c0, int c1, int hv,
                                     int dk, int dv, int stages) {
  extern __shared__ __align__(128) char memory[];
  constexpr int PACKS = KP / 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, head = blockIdx.y, col = blockIdx.x * 32 + warp * 16;
  grid_wait();
  const Sequence seq(sequences, blockIdx.z);
  if (seq.tokens < 0) return;
  const int end = seq.first + seq.tokens;
  if (seq.slot < 0) {
    if (c0 == 0)
      for (int i = seq.first; i < end; i++)
        if (threadIdx.x < min(32, dv - blockIdx.x * 32)) out[((size_t)i * hv + head) * dv + blockIdx.x * 32 + threadIdx.x] = from_float<T>(0);
    return;
  }
  const int lo = max(c0, seq.chunk), hi = min(c1, seq.chunk + (seq.tokens + C - 1) / C);
  const bool empty = seq.tokens == 0 && c0 == 0; // hands its state on
  if (lo >= hi && !empty) return;
  float s[KP / 8][4];
  const size_t at = ((size_t)seq.slot * hv + head) * dk * dv;
  const float* from = lo == seq.chunk || empty ? (seq.fresh ? nullptr : s0) : st;
  auto place = [&](int n, int i, bool& live) {
    const int d = n * 8 + 2 * t + i % 2, v = col + g + i / 2 * 8;
    live = d < dk && v < dv;
    return at + (size_t)d * dv + v;
  };
#pragma unroll
  for (int n = 0; n < KP / 8; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      bool live;
      const size_t p = place(n, i, live);
      s[n][i] = live && from ? from[p] : 0.f;
    }
  }
  if (!empty) {
    Pipe<T, KP> pipe;
    pipe.start(memory, stages);
    const size_t size = Item<KP>::SHARED + (size_t)((dv + 31) / 32) * Item<KP>::TILE;
    auto load = [&](int c) {
      const T* item = items + ((size_t)(c - c0) * hv + head) * size;
      pipe.load(c - lo, item, item + Item<KP>::SHARED + blockIdx.x * Item<KP>::TILE);
    };
    load(lo);
    for (int c = lo; c < hi; c++) {
      const bool more = c + 1 < hi;
      if (more && stages > 1) load(c + 1);
      pipe.wait(c - lo, more && stages > 1);
      const T* x = pipe.stage(c - lo);
      const uint32_t base = shared_address(x);
      float vn[C / 8][4], o[C / 8][4] = {};
#pragma unroll
      for (int n = 0; n < C / 8; n += 2) { // U', tokens n*8.. by this warp's 16 columns
        uint32_t u[4];
        const int r = n * 8 + lane % 8 + lane / 16 * 8, p = warp * 2 + lane / 8 % 2;
        ldmatrix4_trans(u, base + (Item<KP>::SHARED + swizzled(r, p, 4) * 8) * sizeof(T));
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const T* e = reinterpret_cast<const T*>(&u[i]);
          vn[n + i / 2][i % 2 * 2] = to_float(e[0]), vn[n + i / 2][i % 2 * 2 + 1] = to_float(e[1]);
        }
      }
      // The operands of a step are loaded while the products of the one before run.
      const int lr = lane % 8 + lane / 16 * 8, lp = lane / 8 % 2;
      uint32_t b[2][8][4];
      auto load_wq = [&](uint32_t(&d)[8][4], int kk) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
          const uint32_t row = swizzled(n * 16 + lr, kk * 2 + lp, PACKS) * 8;
          ldmatrix4(d[n], base + (Item<KP>::W + row) * sizeof(T));
          ldmatrix4(d[n + 4], base + (Item<KP>::Q + row) * sizeof(T));
        }
      };
      load_wq(b[0], 0);
#pragma unroll
      for (int kk = 0; kk < KP / 16; kk++) {
        if (kk + 1 < KP / 16) load_wq(b[(kk + 1) & 1], kk + 1);
        const uint32_t a[4] = {pack2<T>(s[2 * kk][0], s[2 * kk][1]), pack2<T>(s[2 * kk][2], s[2 * kk][3]), pack2<T>(s[2 * kk + 1][0], s[2 * kk + 1][1]),
                               pack2<T>(s[2 * kk + 1][2], s[2 * kk + 1][3])};
        uint32_t(&d)[8][4] = b[kk & 1];
#pragma unroll
        for (int n = 0; n < 4; n++) {
          mma16816<T>(vn[2 * n], a, d[n][0], d[n][1]);
          mma16816<T>(vn[2 * n + 1], a, d[n][2], d[n][3]);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
          mma16816<T>(o[2 * n], a, d[n + 4][0], d[n + 4][1]);
          mma16816<T>(o[2 * n + 1], a, d[n + 4][2], d[n + 4][3]);
        }
      }
      const float* gamma = reinterpret_cast<const float*>(x + Item<KP>::GAMMA);
      // Kg by 8 packs of 8 columns, then P, in one row of steps.
      constexpr int PARTS = KP / 64;
      auto load_k = [&](uint32_t(&d)[8][4], int j, int part) {
#pragma unroll
        for (int n = 0; n < 4; n++)
          ldmatrix4_trans(d[n], base + (Item<KP>::K + swizzled(j * 16 + lane % 16, part * 8 + n * 2 + lane / 16, PACKS) * 8) * sizeof(T));
      };
      auto load_p = [&](uint32_t(&d)[8][4], int j) {
#pragma unroll
        for (int n = 0; n < 4; n++)
          if (n >= j) ldmatrix4(d[n + 4], base + (Item<KP>::P + swizzled(n * 16 + lr, j * 2 + lp, C / 8) * 8) * sizeof(T));
      };
      load_k(b[0], 0, 0);
      load_p(b[0], 0);
#pragma unroll
      for (int n = 0; n < KP / 8; n++) {
        const float2 f = *reinterpret_cast<const float2*>(gamma + n * 8 + 2 * t);
        s[n][0] *= f.x, s[n][1] *= f.y, s[n][2] *= f.x, s[n][3] *= f.y;
      }
#pragma unroll
      for (int i = 0; i < C / 16 * PARTS; i++) {
        const int j = i / PARTS, part = i % PARTS;
        if (i + 1 < C / 16 * PARTS) {
          load_k(b[(i + 1) & 1], (i + 1) / PARTS, (i + 1) % PARTS);
          if ((i + 1) % PARTS == 0) load_p(b[(i + 1) & 1], (i + 1) / PARTS);
        }
        const uint32_t a[4] = {pack2<T>(vn[2 * j][0], vn[2 * j][1]), pack2<T>(vn[2 * j][2], vn[2 * j][3]), pack2<T>(vn[2 * j + 1][0], vn[2 * j + 1][1]),
                               pack2<T>(vn[2 * j + 1][2], vn[2 * j + 1][3])};
        uint32_t(&d)[8][4] = b[i & 1];
#pragma unroll
        for (int n = 0; n < 4; n++) {
          mma16816<T>(s[part * 8 + 2 * n], a, d[n][0], d[n][1]);
          mma16816<T>(s[part * 8 + 2 * n + 1], a, d[n][2], d[n][3]);
        }
        if (part > 0) continue;
#pragma unroll
        for (int n = j; n < 4; n++) {
          mma16816<T>(o[2 * n], a, d[n + 4][0], d[n + 4][1]);
          mma16816<T>(o[2 * n + 1], a, d[n + 4][2], d[n + 4][3]);
        }
      }
      const int first = reinterpret_cast<const int2*>(chunks)[c].x, tokens = reinterpret_cast<const int2*>(chunks)[c].y;
#pragma unroll
      for (int n = 0; n < C / 8; n++) {
        const int row = n * 8 + g;
        T* to = out + ((size_t)(first + row) * hv + head) * dv + col + 2 * t;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const uint32_t y = transpose8(pack2<T>(o[n][2 * i], o[n][2 * i + 1]));
          if (row >= tokens) continue;
          if (dv % 2 == 0) {
            if (col + i * 8 + 2 * t < dv) *reinterpret_cast<uint32_t*>(to + i * 8) = y;
          } else {
            const T* e = reinterpret_cast<const T*>(&y);
            if (col + i * 8 + 2 * t < dv) to[i * 8] = e[0];
            if (col + i * 8 + 2 * t + 1 < dv) to[i * 8 + 1] = e[1];
          }
        }
      }
      __syncthreads(); // the item's place is free
      if (more && stages == 1) load(c + 1);
    }
  }
#pragma unroll
  for (int n = 0; n < KP / 8; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      bool live;
      const size_t p = place(n, i, live);
      if (live) st[p] = s[n][i];
    }
  }
}

#define PREFILL(T, KP)                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256, KP < 256 ? 2 : 1) kda_prefill_chunk_##T##_##KP(T* items, const T* q, const T* k, const T* v, const float* g,  \
                                                                                 const float* beta, const int* chunks, int first, int h, int hv, int dk, \
                                                                                 int dv, float scale) {                                      \
    chunk<T, KP>(items, q, k, v, g, beta, chunks, first, h, hv, dk, dv, scale);                                                             \
  }                                                                                                                                          \
  extern "C" __global__ void __launch_bounds__(64) kda_prefill_scan_##T##_##KP(T* out, float* st, const float* s0, const T* items, const int* sequences, \
                                                                               const int* chunks, int c0, int c1, int hv, int dk, int dv, int stages) { \
    scan<T, KP>(out, st, s0, items, sequences, chunks, c0, c1, hv, dk, dv, stages);                                                          \
  }
#define DIMS(T) PREFILL(T, 64) PREFILL(T, 128) PREFILL(T, 256)
DIMS(bf16) DIMS(f16)
