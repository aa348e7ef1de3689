// The second kernel of Kimi Delta Attention in chunks of 64 tokens: the chunks of a sequence in order, from the items of
// kda_prefill_chunk.cu.
//
//   Vn' = U' + S' W',  O' = S' Qg' + Vn' P',  S' <- S' gamma + Vn' Kg
//
// Two warps for 16 columns of the state of a head. One keeps the state in f32 accumulators, transposed [V,K]; it passes to the
// first operand of a product by rounding in place. The other makes the outputs of what is handed to it. A block has four
// warps; the next item arrives, by bulk copies on sm_90, while one is worked on. Products of 16 bits, sums and state f32.
//
// Items aligned to 16 bytes. Shared memory: one item or two, 61,952 bytes each at K 128, barriers, and what is handed over. Any
// arch. Paper: Kimi Team, Kimi Linear (arXiv:2510.26692).
#include "kda_item.cuh"

// Shared memory of a scanning block: one item or two with their barriers, then what the warps hand over.
template <class T, int KP> struct Pipe {
  static constexpr int BYTES = (Item<KP>::SHARED + Item<KP>::TILE) * sizeof(T), HANDOVER = 2 * (KP / 16 + C / 16) * 32 * 16;
  char* memory;
  uint64_t* full;  // of each stage; behind them two of each half of the block: it has handed over its state, and Vn
  int stages;

  __device__ void start(char* p, int n) {
    memory = p, stages = n;
    full = reinterpret_cast<uint64_t*>(p + n * BYTES);
    if (threadIdx.x == 0) {
      for (int i = 0; i < 4; i++) asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(shared_address(full + 2 + i)) : "memory");
#if __CUDA_ARCH__ >= 900
      for (int i = 0; i < n; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(full + i)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
  }
  // Stage of item i; of two they alternate.
  __device__ int stage(int i) const { return stages > 1 ? i & 1 : 0; }
  __device__ char* place(int i) const { return memory + stage(i) * BYTES; }
  __device__ uint4* handover(int half) const { return reinterpret_cast<uint4*>(memory + stages * BYTES + 48) + half * (KP / 16 + C / 16) * 32; }
  __device__ uint32_t given(int half) const { return shared_address(full + 2 + 2 * half); }
  // Item i: what all tiles read, and tile u of U behind it.
  __device__ void load(int i, const T* item, const T* u) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      const uint32_t bar = shared_address(full + stage(i)), dst = shared_address(place(i));
      constexpr uint32_t A = Item<KP>::SHARED * sizeof(T), B = Item<KP>::TILE * sizeof(T);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(A + B) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(item), "r"(A), "r"(bar) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst + A), "l"(u), "r"(B), "r"(bar) : "memory");
    }
#else
    const uint32_t dst = shared_address(place(i));
    for (int j = threadIdx.x; j < Item<KP>::SHARED / 8; j += blockDim.x) copy_async16(dst + j * 16, item + j * 8, true);
    for (int j = threadIdx.x; j < Item<KP>::TILE / 8; j += blockDim.x) copy_async16(dst + Item<KP>::SHARED * sizeof(T) + j * 16, u + j * 8, true);
    copy_commit();
#endif
  }
  // This thread has read its item, by ordinary loads: all wait, and the place is free. A bulk copy, of another proxy, follows reads
  // only past a fence of those who read.
  __device__ void release() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
  }
  // Item i is there; `behind` says that one more has been asked for.
  __device__ void wait(int i, bool behind) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred p;\n\tagain_%=:\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t@p bra done_%=;\n\tbra again_%=;\n\tdone_%=:\n\t}" ::"r"(
            shared_address(full + stage(i))),
        "r"(stages > 1 ? i >> 1 & 1 : i & 1)
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

// A barrier in shared memory for what one warp hands to another: all 32 lanes of the giver arrive, the receiver waits for the phase. Not
// bar.sync, which synccheck takes for divergence where it is reached from two places.
__device__ __forceinline__ void give(uint32_t bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory"); }
__device__ __forceinline__ void receive(uint32_t bar, int phase) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tagain_%=:\n\tmbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n\t@p bra done_%=;\n\tbra again_%=;\n\tdone_%=:\n\t}" ::"r"(
          bar),
      "r"(phase)
      : "memory");
}

// Sixteen rows and columns of accumulators as the first operand of a product.
template <class T> __device__ __forceinline__ uint4 rounded(const float (&x)[4], const float (&y)[4]) {
  return make_uint4(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(y[0], y[1]), pack2<T>(y[2], y[3]));
}
template <class T> __device__ __forceinline__ void multiply(float (&c)[4], float (&d)[4], const uint4& x, const uint32_t (&b)[4]) {
  const uint32_t a[4] = {x.x, x.y, x.z, x.w};
  mma16816<T>(c, a, b[0], b[1]);
  mma16816<T>(d, a, b[2], b[3]);
}

// Where a lane's rows of the second operands lie in the item at base: rows of 16 tokens, packs of the inner axis, or across.
template <class T, int KP> struct Operands {
  uint32_t base;
  int lane;
  __device__ void rows(uint32_t (&b)[4], int part, int packs, int n, int kk) const { // tokens 16 n.., inner 16 kk..
    ldmatrix4(b, base + (part + swizzled(n * 16 + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2, packs) * 8) * sizeof(T));
  }
  __device__ void across(uint32_t (&b)[4], int part, int packs, int j, int n) const { // inner = tokens 16 j.., columns 16 n..
    ldmatrix4_trans(b, base + (part + swizzled(j * 16 + lane % 16, n * 2 + lane / 16, packs) * 8) * sizeof(T));
  }
};

// The warp that keeps the state, transposed, of 16 columns: Vn, then the new state. It hands over the state before the chunk
// and Vn, rounded.
template <class T, int KP> __device__ __forceinline__ void advance(float (&s)[KP / 8][4], const char* item, uint4* hand, uint32_t given, int half) {
  constexpr int PACKS = KP / 8;
  const int lane = threadIdx.x % 32, t = lane % 4;
  const Operands<T, KP> x{shared_address(item), lane};
  float vn[C / 8][4];
#pragma unroll
  for (int kk = 0; kk < KP / 16; kk++) hand[kk * 32 + lane] = rounded<T>(s[2 * kk], s[2 * kk + 1]);
  give(given);
#pragma unroll
  for (int n = 0; n < C / 16; n++) { // U', tokens 16 n.. by this warp's columns
    uint32_t u[4];
    const int r = n * 16 + lane % 8 + lane / 16 * 8, p = half * 2 + lane / 8 % 2;
    ldmatrix4_trans(u, x.base + (Item<KP>::SHARED + swizzled(r, p, 4) * 8) * sizeof(T));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const T* e = reinterpret_cast<const T*>(&u[i]);
      vn[2 * n + i / 2][i % 2 * 2] = to_float(e[0]), vn[2 * n + i / 2][i % 2 * 2 + 1] = to_float(e[1]);
    }
  }
  // Operands of a step are loaded while the products of the one before run.
  uint32_t b[2][4][4];
#pragma unroll
  for (int n = 0; n < 4; n++) x.rows(b[0][n], Item<KP>::W, PACKS, n, 0);
#pragma unroll
  for (int kk = 0; kk < KP / 16; kk++) {
    const uint4 a = rounded<T>(s[2 * kk], s[2 * kk + 1]);
    if (kk + 1 < KP / 16)
#pragma unroll
      for (int n = 0; n < 4; n++) x.rows(b[(kk + 1) & 1][n], Item<KP>::W, PACKS, n, kk + 1);
#pragma unroll
    for (int n = 0; n < 4; n++) multiply<T>(vn[2 * n], vn[2 * n + 1], a, b[kk & 1][n]);
  }
  uint4 v[C / 16];
#pragma unroll
  for (int j = 0; j < C / 16; j++) hand[(KP / 16 + j) * 32 + lane] = v[j] = rounded<T>(vn[2 * j], vn[2 * j + 1]);
  give(given + 8);
  constexpr int PARTS = KP / 64;
#pragma unroll
  for (int n = 0; n < 4; n++) x.across(b[0][n], Item<KP>::K, PACKS, 0, n);
  const float* gamma = reinterpret_cast<const float*>(item + Item<KP>::GAMMA * sizeof(T)) + 2 * t;
#pragma unroll
  for (int n = 0; n < KP / 8; n++) {
    const float2 f = *reinterpret_cast<const float2*>(gamma + n * 8);
    s[n][0] *= f.x, s[n][1] *= f.y, s[n][2] *= f.x, s[n][3] *= f.y;
  }
#pragma unroll
  for (int i = 0; i < C / 16 * PARTS; i++) {
    const int j = i / PARTS, part = i % PARTS;
    if (i + 1 < C / 16 * PARTS)
#pragma unroll
      for (int n = 0; n < 4; n++) x.across(b[(i + 1) & 1][n], Item<KP>::K, PACKS, (i + 1) / PARTS, (i + 1) % PARTS * 4 + n);
#pragma unroll
    for (int n = 0; n < 4; n++) multiply<T>(s[part * 8 + 2 * n], s[part * 8 + 2 * n + 1], v[j], b[i & 1][n]);
  }
}

// The warp that makes the outputs of the same columns, from what is handed over.
template <class T, int KP>
__device__ __forceinline__ void outputs(T* out, const char* item, const uint4* hand, uint32_t given, int phase, int64_t row, int tokens, int col, int dv) {
  constexpr int PACKS = KP / 8;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const Operands<T, KP> x{shared_address(item), lane};
  float o[C / 8][4] = {};
  uint32_t b[2][4][4];
#pragma unroll
  for (int n = 0; n < 4; n++) x.rows(b[0][n], Item<KP>::Q, PACKS, n, 0);
  receive(given, phase);
#pragma unroll
  for (int kk = 0; kk < KP / 16; kk++) {
    const uint4 a = hand[kk * 32 + lane];
    if (kk + 1 < KP / 16)
#pragma unroll
      for (int n = 0; n < 4; n++) x.rows(b[(kk + 1) & 1][n], Item<KP>::Q, PACKS, n, kk + 1);
#pragma unroll
    for (int n = 0; n < 4; n++) multiply<T>(o[2 * n], o[2 * n + 1], a, b[kk & 1][n]);
  }
  receive(given + 8, phase);
#pragma unroll
  for (int j = 0; j < C / 16; j++) {
    const uint4 a = hand[(KP / 16 + j) * 32 + lane];
#pragma unroll
    for (int n = j; n < 4; n++) {
      x.rows(b[0][n], Item<KP>::P, C / 8, n, j);
      multiply<T>(o[2 * n], o[2 * n + 1], a, b[0][n]);
    }
  }
  T* to = out + g * row + 2 * t; // row: elements from a token to the next
  if (tokens == C && col + 16 <= dv && dv % 2 == 0) {
#pragma unroll
    for (int n = 0; n < C / 8; n++, to += 8 * row) {
      *reinterpret_cast<uint32_t*>(to) = transpose8(pack2<T>(o[n][0], o[n][1]));
      *reinterpret_cast<uint32_t*>(to + 8) = transpose8(pack2<T>(o[n][2], o[n][3]));
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < C / 8; n++, to += 8 * row) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t y = transpose8(pack2<T>(o[n][2 * i], o[n][2 * i + 1]));
      const T* e = reinterpret_cast<const T*>(&y);
      const int c = col + i * 8 + 2 * t;
      if (n * 8 + g < tokens && c < dv) to[i * 8] = e[0];
      if (n * 8 + g < tokens && c + 1 < dv) to[i * 8 + 1] = e[1];
    }
  }
}

// Head blockIdx.y of sequence blockIdx.z, columns 32 blockIdx.x and on, over those of the chunks [c0, c1) that are its own.
// Warps 0 and 1 keep the states of 16 columns each, warps 2 and 3 make their outputs.
template <class T, int KP>
__device__ __forceinline__ void scan(T* out, float* st, const float* s0, const T* items, const int* sequences, const int* chunks, int c0, int c1, int hv,
                                     int dk, int dv, int stages) {
  extern __shared__ __align__(128) char memory[];
  const int warp = threadIdx.x / 32, half = warp % 2, lane = threadIdx.x % 32, head = blockIdx.y, col = blockIdx.x * 32 + half * 16;
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
  const size_t at = ((size_t)seq.slot * hv + head) * dk * dv;
  const float* from = lo == seq.chunk || empty ? (seq.fresh ? nullptr : s0) : st;
  float s[KP / 8][4];
  auto each = [&](auto f) {
#pragma unroll
    for (int n = 0; n < KP / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int d = n * 8 + 2 * (lane % 4) + i % 2, v = col + lane / 4 + i / 2 * 8;
        f(s[n][i], at + (size_t)d * dv + v, d < dk && v < dv);
      }
    }
  };
  Pipe<T, KP> pipe;
  pipe.start(memory, stages);
  const size_t size = Item<KP>::SHARED + (size_t)((dv + 31) / 32) * Item<KP>::TILE;
  auto load = [&](int c) {
    const T* item = items + ((size_t)(c - c0) * hv + head) * size;
    pipe.load(c - lo, item, item + Item<KP>::SHARED + blockIdx.x * Item<KP>::TILE);
  };
  if (!empty) load(lo);
  if (warp < 2) each([&](float& x, size_t p, bool live) { x = live && from ? from[p] : 0.f; });
  for (int c = lo; c < hi; c++) {
    const bool more = c + 1 < hi;
    if (more && stages > 1) load(c + 1);
    pipe.wait(c - lo, more && stages > 1);
    const char* item = pipe.place(c - lo);
    if (warp < 2) {
      advance<T, KP>(s, item, pipe.handover(half), pipe.given(half), half);
    } else {
      const int2 x = reinterpret_cast<const int2*>(chunks)[c];
      outputs<T, KP>(out + ((size_t)x.x * hv + head) * dv + col, item, pipe.handover(half), pipe.given(half), (c - lo) & 1, (int64_t)hv * dv, x.y, col, dv);
    }
    pipe.release();
    if (more && stages == 1) load(c + 1);
  }
  if (warp < 2) each([&](float& x, size_t p, bool live) {
      if (live) st[p] = x;
    });
}

#define SCAN(T, KP)                                                                                                                           \
  extern "C" __global__ void __launch_bounds__(128, 2) kda_prefill_scan_##T##_##KP(T* out, float* st, const float* s0, const T* items, const int* sequences, \
                                                                               const int* chunks, int c0, int c1, int hv, int dk, int dv, int stages) { \
    scan<T, KP>(out, st, s0, items, sequences, chunks, c0, c1, hv, dk, dv, stages);                                                           \
  }
#define DIMS(T) SCAN(T, 64) SCAN(T, 128) SCAN(T, 256)
DIMS(bf16) DIMS(f16)
