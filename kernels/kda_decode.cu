// Kimi Delta Attention of one token a row: the core on a pool of states, the same with everything around it in one launch,
// and the two kernels of ops.FusedDecode.
//
//   S <- diag(exp g) S,  delta = beta (v - S' k),  S <- S + k delta',  o = scale S' q = scale (S' (exp(g) q) + delta (k.q))
//
// step: a block of 256 threads owns 8 packs of VEC columns of the state of one head of one row, in registers between the one
// read and the one write: 8 threads along the columns, 32 along the key axis, R rows a thread. For few rows.
// head: a block of 256 threads owns `columns` columns of a head of a row in shared memory, copied in and out by the bulk copy
// engine on sm_90. With the layer around it (FUSED) a block owns all columns, in turns if need be, and does the convolutions,
// norms and gates while the state is on its way.
// Sums over the key axis go by shuffles in a warp and by shared memory between warps, in a fixed order. State f32
// [slots,HV,K,V]. settled: no launch that may still run writes states, rows or slots, so that the states are read before the
// launch in front has ended. Any arch. Paper: Kimi Team, Kimi Linear (arXiv:2510.26692).
#include <cuda.h>
#include "kda.cuh"
#include "mma.cuh"

constexpr int STEP_THREADS = 256;

// Where the rows of a launch lie: row rows[i] (rows null: i) has the state slots[i] (null: i). A negative row is nothing, a
// negative slot gets zeros, and FRESH in a slot starts from a state of zeros.
struct StepRow {
  int row, slot;
  bool fresh;
  __device__ StepRow(const int* rows, const int* slots, int i) {
    row = rows ? rows[i] : i;
    const int s = slots ? slots[i] : i;
    slot = s < 0 ? -1 : s & ~KDA_FRESH;
    fresh = s >= 0 && (s & KDA_FRESH);
  }
};

template <int VEC> struct Columns {
  float v[VEC];
  __device__ void load(const float* p, bool live) {
    if constexpr (VEC == 4) {
      const float4 x = live ? *reinterpret_cast<const float4*>(p) : make_float4(0, 0, 0, 0);
      v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else {
      v[0] = live ? *p : 0.f;
    }
  }
  __device__ void store(float* p) const {
    if constexpr (VEC == 4)
      *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
    else
      *p = v[0];
  }
};

// o [R,HV,V]; q and k [R,H,K], normalised here where eps >= 0; v [R,HV,V]; g [R,HV,K] log-decay; beta [R,HV], of a logit
// where factor > 0: factor sigmoid(beta).
template <class T, int VEC, int R>
__device__ __forceinline__ void step(T* out, float* state, const T* q, const T* k, const T* v, const float* g, const float* beta, const int* rows,
                                     const int* slots, int h, int hv, int dk, int dv, float scale, float eps, float factor, int settled) {
  constexpr int CT = 8, RG = STEP_THREADS / CT, WARPS = STEP_THREADS / 32;
  __shared__ float alpha[256], sk[256], sq[256];
  __shared__ Columns<VEC> sums[WARPS][2][CT];
  if (!settled) grid_wait();
  const StepRow at(rows, slots, blockIdx.z);
  if (at.row < 0) return;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, head = blockIdx.y, ct = tid % CT, rg = tid / CT, col = (blockIdx.x * CT + ct) * VEC;
  const size_t rh = (size_t)at.row * hv + head;
  out += rh * dv + col;
  if (at.slot < 0) {
    if (settled) grid_wait();
    if (rg == 0 && col < dv)
#pragma unroll
      for (int j = 0; j < VEC; j++) out[j] = from_float<T>(0);
    return;
  }
  state += ((size_t)at.slot * hv + head) * dk * dv;
  Columns<VEC> s[R], vc;
  auto load = [&] {
#pragma unroll
    for (int i = 0; i < R; i++) {
      const int d = rg + i * RG;
      s[i].load(state + (size_t)d * dv + col, d < dk && col < dv && !at.fresh);
    }
  };
  if (settled) {
    load();
    grid_wait();
  }
  const size_t qk = ((size_t)at.row * h + head / (hv / h)) * dk;
  float qd = 0, kd = 0, gd = 0;
  if (tid < dk) qd = to_float(q[qk + tid]), kd = to_float(k[qk + tid]), gd = g[rh * dk + tid];
  if (!settled) load();
#pragma unroll
  for (int j = 0; j < VEC; j++) vc.v[j] = col < dv ? to_float(v[rh * dv + col + j]) : 0.f;
  float b = beta[rh];
  if (factor > 0) b = factor * sigmoid(b);
  if (tid < dk) sq[tid] = qd, sk[tid] = kd, alpha[tid] = expf(gd);
  __syncthreads();
  // Norms and the product of k and q: every warp has its own copy.
  float qq = 0, kk = 0, kq = 0, rq = 1, rk = 1;
  for (int d = lane; d < dk; d += 32) {
    const float x = sq[d], y = sk[d];
    qq += x * x, kk += y * y, kq += y * x;
  }
  kq = warp_sum(kq);
  if (eps >= 0) {
    rq = 1.f / sqrtf(warp_sum(qq) + eps);
    rk = 1.f / sqrtf(warp_sum(kk) + eps);
  }
  Columns<VEC> p = {}, r = {};
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int d = rg + i * RG;
    if (d < dk) {
      const float a = alpha[d], ak = a * sk[d], aq = a * sq[d];
#pragma unroll
      for (int j = 0; j < VEC; j++) p.v[j] += ak * s[i].v[j], r.v[j] += aq * s[i].v[j];
    }
  }
#pragma unroll
  for (int o = CT; o < 32; o *= 2) {
#pragma unroll
    for (int j = 0; j < VEC; j++) p.v[j] += __shfl_xor_sync(~0u, p.v[j], o), r.v[j] += __shfl_xor_sync(~0u, r.v[j], o);
  }
  if (lane < CT) sums[warp][0][ct] = p, sums[warp][1][ct] = r;
  __syncthreads();
  Columns<VEC> delta;
#pragma unroll
  for (int j = 0; j < VEC; j++) p.v[j] = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    const Columns<VEC> x = sums[w][0][ct];
#pragma unroll
    for (int j = 0; j < VEC; j++) p.v[j] += x.v[j];
  }
#pragma unroll
  for (int j = 0; j < VEC; j++) delta.v[j] = b * (vc.v[j] - rk * p.v[j]);
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int d = rg + i * RG;
    if (d < dk && col < dv) {
      const float a = alpha[d], y = sk[d] * rk;
#pragma unroll
      for (int j = 0; j < VEC; j++) s[i].v[j] = a * s[i].v[j] + y * delta.v[j];
      s[i].store(state + (size_t)d * dv + col);
    }
  }
  if (rg > 0 || col >= dv) return;
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[w][1][ct].v[j];
    out[j] = from_float<T>(scale * rq * (sum + delta.v[j] * rk * kq));
  }
}

#define STEP(T, VEC, R)                                                                                                          \
  extern "C" __global__ void __launch_bounds__(STEP_THREADS) kda_decode_step_##T##_##VEC##_##R(                                   \
      T* out, float* state, const T* q, const T* k, const T* v, const float* g, const float* beta, const int* rows, const int* slots, int h, int hv, \
      int dk, int dv, float scale, float eps, float factor, int settled) {                                                        \
    step<T, VEC, R>(out, state, q, k, v, g, beta, rows, slots, h, hv, dk, dv, scale, eps, factor, settled);                       \
  }
#define STEPS(T) STEP(T, 4, 4) STEP(T, 4, 8) STEP(T, 1, 8)
STEPS(bf16) STEPS(f16) STEPS(f32)

// Columns of the state of a head on their way between global memory and a tile [dk,columns] in shared memory; those beyond dv
// come as zeros and stay away. map: all states as [slots HV dk, dv], in boxes of the tile.
struct HeadTile {
  float* sm;
  uint64_t* full;
  const void* map;
  int dk, dv, columns;

  __device__ void start() const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
    }
    __syncthreads();
#endif
  }
  // state: that of the head number `row` of all; column v0 is the first.
  __device__ void load(const float* state, int row, int v0) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(dk * columns * 4) : "memory");
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(sm)),
                   "l"(map), "r"(shared_address(full)), "r"(v0), "r"(row * dk)
                   : "memory");
    }
#else
    for (int i = threadIdx.x; i < dk * columns / 4; i += STEP_THREADS) {
      const int d = i / (columns / 4), c = v0 + i % (columns / 4) * 4;
      copy_async16(shared_address(sm + i * 4), state + (c < dv ? (size_t)d * dv + c : 0), c < dv);
    }
    copy_commit();
#endif
  }
  __device__ void wait(int parity) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred p;\n\tagain_%=:\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t@p bra done_%=;\n\tbra again_%=;\n\tdone_%=:\n\t}" ::"r"(
            shared_address(full)),
        "r"(parity)
        : "memory");
#else
    copy_wait<0>();
    __syncthreads();
#endif
  }
  // After the last write to sm by every thread; begins with a barrier.
  __device__ void store(float* state, int row, int v0) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(shared_address(sm)), "r"(v0), "r"(row * dk)
                   : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
#else
    __syncthreads();
    for (int i = threadIdx.x; i < dk * columns / 4; i += STEP_THREADS) {
      const int d = i / (columns / 4), c = v0 + i % (columns / 4) * 4;
      if (c < dv) *reinterpret_cast<float4*>(state + (size_t)d * dv + c) = *reinterpret_cast<const float4*>(sm + i * 4);
    }
#endif
  }
  // sm may be written again, or given up.
  __device__ void stored() const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
    __syncthreads();
  }
};

// The operands of the head kernels. Core: q, k, v, g, beta. FUSED, with H = HV: the projections q, k, v in front of their
// convolutions with taps w* [channels,width] and pools c* [slots,channels,width-1], which move on in place; z [R,H,K], the
// pre-activation of the decay (dt_bias dt [H,K], a_log alog [H], bound as in log_decay); logits b [R,H]; gate [R,H,V] and
// weight nw [V] of the norm behind.
template <class T> struct HeadArgs {
  T* out;
  float* state;
  const T *q, *k, *v;
  const float *g, *beta;
  float *cq, *ck, *cv;
  const float *wq, *wk, *wv;
  const T *z, *b, *gate;
  const float *alog, *dt, *nw;
  const int *rows, *slots;
  int h, hv, dk, dv, columns, width, settled;
  float scale, eps, factor, bound, neps;
};

// A channel's newest sample on its way through its convolution with SiLU; line [width-1] moves on. Everything is loaded before
// anything is written.
struct Sample {
  float x = 0, z = 0;
  float l[3];
  float4 u;
  float* line;
  const float* w;

  __device__ void load(float newest, float* at, const float* taps, int width, bool fresh) {
    x = newest, line = at, w = taps;
    if (width != 4) return;
    u = *reinterpret_cast<const float4*>(w);
#pragma unroll
    for (int j = 0; j < 3; j++) l[j] = fresh ? 0.f : line[j];
  }
  __device__ float run(int width, bool fresh) {
    float a = 0;
    if (width == 4) {
      a = u.x * l[0] + u.y * l[1] + u.z * l[2] + u.w * x;
      line[0] = l[1], line[1] = l[2], line[2] = x;
    } else {
#pragma unroll 1
      for (int j = 0; j < width - 1; j++) {
        const float s = fresh ? 0.f : line[j];
        a += w[j] * s;
        if (j > 0) line[j - 1] = s;
      }
      line[width - 2] = x;
      a += w[width - 1] * x;
    }
    return a * sigmoid(a);
  }
};

template <class T, bool FUSED> __device__ __forceinline__ void head(const HeadArgs<T>& x, const void* map) {
  extern __shared__ __align__(128) float tile[];
  __shared__ float alpha[256], sk[256], sq[256], sv[256], so[FUSED ? 256 : 1];
  __shared__ float sums[4][2][128], delta[128], scratch[32];
  __shared__ uint64_t full;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, dk = x.dk, dv = x.dv, columns = x.columns;
  const int tiles = FUSED ? 1 : (dv + columns - 1) / columns, head = blockIdx.x / tiles, first = blockIdx.x % tiles * columns;
  const HeadTile ht{tile, &full, map, dk, dv, columns};
  ht.start();
  if (!x.settled) grid_wait();
  const StepRow at(x.rows, x.slots, blockIdx.y);
  if (at.row < 0) return;
  const int last = FUSED ? dv : min(dv, first + columns); // this block's columns
  const size_t rh = (size_t)at.row * x.hv + head;
  T* out = x.out + rh * dv;
  if (at.slot < 0) {
    if (x.settled) grid_wait();
    if (first + tid < last) out[first + tid] = from_float<T>(0);
    return;
  }
  const int number = at.slot * x.hv + head;
  float* state = x.state + (size_t)number * dk * dv;
  if (!at.fresh) ht.load(state, number, first);
  if (x.settled) grid_wait();
  float beta, gamma = 0;
  if constexpr (FUSED) {
    const int past = x.width - 1, c = STEP_THREADS - 1 - tid; // values: other threads first
    const size_t sh = (size_t)at.slot * x.h + head, i = rh * dk + tid;
    Sample a, b, v;
    float z = 0, rate = 0, logit, g = 0, w = 0;
    if (tid < dk) {
      a.load(to_float(x.q[i]), x.cq + (sh * dk + tid) * past, x.wq + (size_t)(head * dk + tid) * x.width, x.width, at.fresh);
      b.load(to_float(x.k[i]), x.ck + (sh * dk + tid) * past, x.wk + (size_t)(head * dk + tid) * x.width, x.width, at.fresh);
      z = to_float(x.z[i]) + x.dt[head * dk + tid], rate = x.alog[head];
    }
    if (c < dv) v.load(to_float(x.v[rh * dv + c]), x.cv + (sh * dv + c) * past, x.wv + (size_t)(head * dv + c) * x.width, x.width, at.fresh);
    if (tid < dv) g = to_float(x.gate[rh * dv + tid]), w = x.nw[tid];
    logit = to_float(x.b[rh]);
    if (tid < dk) {
      sq[tid] = a.run(x.width, at.fresh);
      sk[tid] = b.run(x.width, at.fresh);
      alpha[tid] = expf(log_decay(z, expf(rate), x.bound));
    }
    if (c < dv) sv[c] = v.run(x.width, at.fresh);
    gamma = sigmoid(g) * w;
    beta = x.factor * sigmoid(logit);
  } else {
    const size_t qk = ((size_t)at.row * x.h + head / (x.hv / x.h)) * dk;
    float q = 0, k = 0, g = 0, v = 0;
    if (tid < dk) q = to_float(x.q[qk + tid]), k = to_float(x.k[qk + tid]), g = x.g[rh * dk + tid];
    if (first + tid < last) v = to_float(x.v[rh * dv + first + tid]);
    beta = x.beta[rh];
    if (tid < dk) sq[tid] = q, sk[tid] = k, alpha[tid] = expf(g);
    if (first + tid < last) sv[first + tid] = v;
    if (x.factor > 0) beta = x.factor * sigmoid(beta);
  }
  __syncthreads();
  float qq = 0, kk = 0, kq = 0, rq = 1, rk = 1;
  for (int d = lane; d < dk; d += 32) {
    const float a = sq[d], b = sk[d];
    qq += a * a, kk += b * b, kq += a * b;
  }
  kq = warp_sum(kq);
  if (x.eps >= 0) {
    rq = 1.f / sqrtf(warp_sum(qq) + x.eps);
    rk = 1.f / sqrtf(warp_sum(kk) + x.eps);
  }
  // Lanes: packs of four columns, and rows of the key axis where there are fewer packs than lanes.
  const int packs = columns / 4, across = packs > 16 ? 32 : packs > 8 ? 16 : 8, ct = lane % across, step = STEP_THREADS / across;
  const int d0 = warp * (32 / across) + lane / across;
  float4* const s4 = reinterpret_cast<float4*>(tile) + ct;
  int parity = 0;
  for (int v0 = first; v0 < last; v0 += columns) {
    if (v0 > first) {
      ht.stored();
      if (!at.fresh) ht.load(state, number, v0);
    }
    if (at.fresh) {
      for (int i = tid; i < dk * columns; i += STEP_THREADS) tile[i] = 0;
      __syncthreads();
    } else {
      ht.wait(parity);
      parity ^= 1;
    }
    float4 p = make_float4(0, 0, 0, 0), r = p;
    if (ct < packs) {
#pragma unroll 8
      for (int d = d0; d < dk; d += step) {
        const float4 s = s4[d * packs];
        const float a = alpha[d], ak = a * sk[d], aq = a * sq[d];
        p.x += ak * s.x, p.y += ak * s.y, p.z += ak * s.z, p.w += ak * s.w;
        r.x += aq * s.x, r.y += aq * s.y, r.z += aq * s.z, r.w += aq * s.w;
      }
    }
    for (int o = across; o < 32; o *= 2) {
      p.x += __shfl_xor_sync(~0u, p.x, o), p.y += __shfl_xor_sync(~0u, p.y, o), p.z += __shfl_xor_sync(~0u, p.z, o), p.w += __shfl_xor_sync(~0u, p.w, o);
      r.x += __shfl_xor_sync(~0u, r.x, o), r.y += __shfl_xor_sync(~0u, r.y, o), r.z += __shfl_xor_sync(~0u, r.z, o), r.w += __shfl_xor_sync(~0u, r.w, o);
    }
    float4* mine = reinterpret_cast<float4*>(sums[warp % 4][0]) + lane;
    if (warp >= 4 && lane < across) mine[0] = p, mine[32] = r;
    __syncthreads();
    if (warp < 4 && lane < across) {
      const float4 a = mine[0], b = mine[32];
      mine[0] = make_float4(p.x + a.x, p.y + a.y, p.z + a.z, p.w + a.w), mine[32] = make_float4(r.x + b.x, r.y + b.y, r.z + b.z, r.w + b.w);
    }
    __syncthreads();
    if (tid < columns) {
      const float ps = sums[0][0][tid] + sums[1][0][tid] + sums[2][0][tid] + sums[3][0][tid];
      const float rs = sums[0][1][tid] + sums[1][1][tid] + sums[2][1][tid] + sums[3][1][tid];
      const bool live = v0 + tid < last;
      const float e = live ? beta * (sv[v0 + tid] - rk * ps) : 0.f, o = x.scale * rq * (rs + e * rk * kq);
      delta[tid] = e * rk;
      if constexpr (FUSED) {
        if (live) so[v0 + tid] = o;
      } else {
        if (live) out[v0 + tid] = from_float<T>(o);
      }
    }
    __syncthreads();
    if (ct < packs) {
      const float4 e = reinterpret_cast<const float4*>(delta)[ct];
#pragma unroll 8
      for (int d = d0; d < dk; d += step) {
        float4 s = s4[d * packs];
        const float a = alpha[d], k = sk[d];
        s.x = a * s.x + k * e.x, s.y = a * s.y + k * e.y, s.z = a * s.z + k * e.z, s.w = a * s.w + k * e.w;
        s4[d * packs] = s;
      }
    }
    ht.store(state, number, v0);
  }
  if constexpr (FUSED) {
    const float o = tid < dv ? so[tid] : 0.f;
    const float squares = block_sum(o * o, scratch);
    if (tid < dv) out[tid] = from_float<T>(o * gamma / sqrtf(squares / dv + x.neps));
  }
  ht.stored();
}

#define HEAD(T)                                                                                                                     \
  extern "C" __global__ void __launch_bounds__(STEP_THREADS, 4) kda_decode_head_##T(                                                \
      const __grid_constant__ CUtensorMap map, T* out, float* state, const T* q, const T* k, const T* v, const float* g, const float* beta, const int* rows, const int* slots, int h, int hv, \
      int dk, int dv, int columns, float scale, float eps, float factor, int settled) {                                             \
    HeadArgs<T> x = {};                                                                                                             \
    x.out = out, x.state = state, x.q = q, x.k = k, x.v = v, x.g = g, x.beta = beta, x.rows = rows, x.slots = slots, x.h = h, x.hv = hv, x.dk = dk;  \
    x.dv = dv, x.columns = columns, x.scale = scale, x.eps = eps, x.factor = factor, x.settled = settled;                           \
    head<T, false>(x, &map);                                                                                                        \
  }                                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(STEP_THREADS, 3) kda_decode_fused_##T(                                               \
      const __grid_constant__ CUtensorMap map, T* out, float* state, float* cq, float* ck, float* cv, const T* xq, const T* xk, const T* xv, const float* wq, const float* wk, const float* wv, \
      const T* z, const float* alog, const float* dt, const T* b, const T* gate, const float* nw, const int* rows, const int* slots, int h, int dk,    \
      int dv, int columns, int width, float bound, float factor, float scale, float eps, float neps, int settled) {                 \
    HeadArgs<T> x = {};                                                                                                             \
    x.out = out, x.state = state, x.cq = cq, x.ck = ck, x.cv = cv, x.q = xq, x.k = xk, x.v = xv, x.wq = wq, x.wk = wk, x.wv = wv, x.z = z;             \
    x.alog = alog, x.dt = dt, x.b = b, x.gate = gate, x.nw = nw, x.rows = rows, x.slots = slots, x.h = x.hv = h, x.dk = dk, x.dv = dv;                 \
    x.columns = columns, x.width = width, x.bound = bound, x.factor = factor, x.scale = scale, x.eps = eps, x.neps = neps, x.settled = settled; \
    head<T, true>(x, &map);                                                                                                         \
  }
HEAD(bf16) HEAD(f16) HEAD(f32)

// The first kernel of ops.FusedDecode: state [C,W] drops its oldest column and takes x [C]; y = a sigmoid(a), a the
// product of the line with w [C,W]. A thread owns a channel.
extern "C" __global__ void __launch_bounds__(128) k3_kda_conv_update_f32(const float* x, const float* w, float* state, float* y, uint32_t channels,
                                                                        uint32_t width) {
  const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  float* line = state + (size_t)c * width;
  w += (size_t)c * width;
  float a = 0;
  for (uint32_t j = 0; j + 1 < width; j++) {
    const float s = line[j + 1];
    line[j] = s;
    a += w[j] * s;
  }
  line[width - 1] = x[c];
  a += w[width - 1] * x[c];
  y[c] = a * sigmoid(a);
}

// A column of the state of one head by one thread, whose D values stay in registers between the read and the write. decayed
// holds alpha q and alpha k, keys alpha and k.
template <int D>
__device__ __forceinline__ void contract_column(float* s, float* out, const float2* decayed, const float2* keys, float v, float beta, float same, float scale) {
  float x[D], p = 0, r = 0;
#pragma unroll
  for (int d = 0; d < D; d++) x[d] = s[d * D];
#pragma unroll
  for (int d = 0; d < D; d++) r += x[d] * decayed[d].x, p += x[d] * decayed[d].y;
  const float delta = beta * (v - p);
  *out = scale * (r + delta * same);
#pragma unroll
  for (int d = 0; d < D; d++) s[d * D] = x[d] * keys[d].x + keys[d].y * delta;
}

// The second: y [3HD] is q|k|v of all heads, gate [HD] the log-decay, beta [H] a logit, state [H,D,D] key axis first. A block
// owns a head. Of the 12 D bytes of dynamic shared memory q and k take 8 D.
extern "C" __global__ void __launch_bounds__(128) k3_kda_recurrent_step_f32(const float* y, const float* gate, const float* beta, float* state, float* out,
                                                                           uint32_t heads, uint32_t dim, float eps) {
  extern __shared__ float sm[];
  __shared__ float scratch[32], alpha[256];
  const int d0 = dim;
  float *q = sm, *k = sm + d0;
  const size_t head = (size_t)blockIdx.x * d0, all = (size_t)heads * d0;
  float qq = 0, kk = 0, kq = 0;
  for (int d = threadIdx.x; d < d0; d += blockDim.x) {
    const float a = y[head + d], b = y[all + head + d];
    q[d] = a, k[d] = b;
    qq += a * a, kk += b * b, kq += a * b;
    alpha[d] = expf(gate[head + d]);
  }
  // Blocks may have fewer threads than a warp: sums by shared memory alone.
  __shared__ float part[3][128];
  part[0][threadIdx.x] = qq, part[1][threadIdx.x] = kk, part[2][threadIdx.x] = kq;
  __syncthreads();
  for (int n = threadIdx.x; n < 3; n += blockDim.x) { // a block may have one thread
    float t = 0;
    for (int i = 0; i < blockDim.x; i++) t += part[n][i];
    scratch[n] = t;
  }
  __syncthreads();
  const float rq = 1.f / sqrtf(scratch[0] + eps), rk = 1.f / sqrtf(scratch[1] + eps);
  __shared__ float2 decayed[128], keys[128];
  for (int d = threadIdx.x; d < d0; d += blockDim.x) {
    q[d] *= rq, k[d] *= rk;
    if (d0 <= 128) decayed[d] = make_float2(alpha[d] * q[d], alpha[d] * k[d]), keys[d] = make_float2(alpha[d], k[d]);
  }
  __syncthreads();
  const float same = scratch[2] * rq * rk, strength = sigmoid(beta[blockIdx.x]), scale = 1.f / sqrtf((float)d0);
  float* s = state + head * d0 + threadIdx.x;
  if (d0 == 128) return contract_column<128>(s, out + head + threadIdx.x, decayed, keys, y[2 * all + head + threadIdx.x], strength, same, scale);
  if (d0 == 32) return contract_column<32>(s, out + head + threadIdx.x, decayed, keys, y[2 * all + head + threadIdx.x], strength, same, scale);
  for (int v = threadIdx.x; v < d0; v += blockDim.x) {
    float* s = state + head * d0 + v;
    const float value = y[2 * all + head + v];
    float p = 0, r = 0;
    for (int d = 0; d < d0; d++) {
      const float x = s[(size_t)d * d0] * alpha[d];
      p += x * k[d], r += x * q[d];
    }
    const float delta = strength * (value - p);
    out[head + v] = scale * (r + delta * same);
    for (int d = 0; d < d0; d++) s[(size_t)d * d0] = s[(size_t)d * d0] * alpha[d] + k[d] * delta;
  }
}
