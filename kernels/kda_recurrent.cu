// Kimi Delta Attention token by token, for sequences of any length: the definition, in f32 whatever the element type is. It
// serves f32 and the head dims that the chunked kernels do not.
//
// A block of 128 threads owns 8 columns (packs of VEC) of the state of one head of one sequence: 8 threads along the columns,
// 16 along the key axis, R rows a thread. The state stays in registers over all tokens; the operands of the next token are
// loaded before the sums of the present one, which meet in shared memory (two buffers, one barrier a token). State f32. Any
// arch. Paper: Kimi Team, Kimi Linear (arXiv:2510.26692).
#include "kda.cuh"

constexpr int THREADS = 128, CT = 8, RG = THREADS / CT, WARPS = THREADS / 32;

// o [T,HV,V]; q, k [T,H,K]; v [T,HV,V]; g [T,HV,K]; beta [T,HV]; s0 and st [slots,HV,K,V], which may be one; s0 null: zeros.
template <class T, int VEC, int R>
__device__ __forceinline__ void recurrent(T* out, float* st, const T* q, const T* k, const T* v, const float* g, const float* beta, const float* s0,
                                          const int* sequences, int h, int hv, int dk, int dv, float scale) {
  constexpr int W = VEC * CT;
  __shared__ float sums[2][WARPS][2 * W + 1];
  grid_wait();
  const Sequence seq(sequences, blockIdx.z);
  if (seq.tokens < 0) return;
  const int head = blockIdx.y, ct = threadIdx.x % CT, rg = threadIdx.x / CT, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int col = blockIdx.x * W + ct * VEC;
  const bool live = col < dv;
  const int end = seq.first + seq.tokens;
  if (seq.slot < 0) {
    if (rg == 0 && live)
      for (int t = seq.first; t < end; t++)
#pragma unroll
        for (int j = 0; j < VEC; j++) out[((size_t)t * hv + head) * dv + col + j] = from_float<T>(0);
    return;
  }
  const size_t at = ((size_t)seq.slot * hv + head) * dk * dv;
  float s[R][VEC];
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int d = rg + i * RG;
#pragma unroll
    for (int j = 0; j < VEC; j++) s[i][j] = s0 && !seq.fresh && d < dk && live ? s0[at + (size_t)d * dv + col + j] : 0.f;
  }
  float qn[R], kn[R], gn[R], vn[VEC], bn = 0;
  auto load = [&](int t) {
    const size_t qk = ((size_t)t * h + head / (hv / h)) * dk, gd = ((size_t)t * hv + head) * dk, vd = ((size_t)t * hv + head) * dv + col;
#pragma unroll
    for (int i = 0; i < R; i++) {
      const int d = rg + i * RG;
      qn[i] = d < dk ? to_float(q[qk + d]) : 0.f;
      kn[i] = d < dk ? to_float(k[qk + d]) : 0.f;
      gn[i] = d < dk ? g[gd + d] : 0.f;
    }
#pragma unroll
    for (int j = 0; j < VEC; j++) vn[j] = live ? to_float(v[vd + j]) : 0.f;
    bn = beta[(size_t)t * hv + head];
  };
  if (seq.tokens > 0) load(seq.first);
  for (int t = seq.first; t < end; t++) {
    float p[VEC] = {}, r[VEC] = {}, kc[R], vc[VEC], same = 0;
    const float bc = bn;
#pragma unroll
    for (int j = 0; j < VEC; j++) vc[j] = vn[j];
#pragma unroll
    for (int i = 0; i < R; i++) {
      const float alpha = expf(gn[i]);
      kc[i] = kn[i];
      same += kn[i] * qn[i];
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        s[i][j] *= alpha;
        p[j] += s[i][j] * kn[i], r[j] += s[i][j] * qn[i];
      }
    }
    if (t + 1 < end) load(t + 1);
#pragma unroll
    for (int o = CT; o < 32; o *= 2) {
#pragma unroll
      for (int j = 0; j < VEC; j++) p[j] += __shfl_xor_sync(~0u, p[j], o), r[j] += __shfl_xor_sync(~0u, r[j], o);
      same += __shfl_xor_sync(~0u, same, o);
    }
    float(*sm)[2 * W + 1] = sums[(t - seq.first) & 1];
    if (lane < CT) {
#pragma unroll
      for (int j = 0; j < VEC; j++) sm[warp][ct * VEC + j] = p[j], sm[warp][W + ct * VEC + j] = r[j];
      if (lane == 0) sm[warp][2 * W] = same;
    }
    __syncthreads();
    float kq = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) kq += sm[w][2 * W];
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      float pj = 0, rj = 0;
#pragma unroll
      for (int w = 0; w < WARPS; w++) pj += sm[w][ct * VEC + j], rj += sm[w][W + ct * VEC + j];
      const float delta = bc * (vc[j] - pj);
#pragma unroll
      for (int i = 0; i < R; i++) s[i][j] += kc[i] * delta;
      if (rg == 0 && live) out[((size_t)t * hv + head) * dv + col + j] = from_float<T>(scale * (rj + delta * kq));
    }
  }
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int d = rg + i * RG;
#pragma unroll
    for (int j = 0; j < VEC; j++)
      if (d < dk && live) st[at + (size_t)d * dv + col + j] = s[i][j];
  }
}

#define RECURRENT(T, VEC, R)                                                                                                            \
  extern "C" __global__ void __launch_bounds__(THREADS) kda_recurrent_##T##_##VEC##_##R(                                                \
      T* out, float* st, const T* q, const T* k, const T* v, const float* g, const float* beta, const float* s0, const int* sequences, int h, int hv, int dk, \
      int dv, float scale) {                                                                                                            \
    recurrent<T, VEC, R>(out, st, q, k, v, g, beta, s0, sequences, h, hv, dk, dv, scale);                                               \
  }
#define ALL(T) RECURRENT(T, 4, 4) RECURRENT(T, 4, 8) RECURRENT(T, 1, 4) RECURRENT(T, 1, 16)
ALL(bf16) ALL(f16) ALL(f32)
RECURRENT(bf16, 2, 16) RECURRENT(f16, 2, 16) RECURRENT(f32, 2, 16)
