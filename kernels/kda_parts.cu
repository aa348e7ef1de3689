// The small steps around Kimi Delta Attention: short convolution with SiLU and its state, L2 norm of rows, log-decay and write
// strength, and the gated RMSNorm of the output. States, decays and strengths are f32 whatever the element type is.
//
//   conv    a_t = sum_j w[c,j] x[t-W+1+j, c],  y_t = a_t sigmoid(a_t); samples before a sequence are its state's
//   l2      y = x / sqrt(sum x^2 + eps)
//   gate    g = -A softplus(z + dt_bias), or bound sigmoid(A (z + dt_bias)),  A = exp(a_log)
//   norm    y = sigmoid(gate) w x / sqrt(mean x^2 + eps)
//
// Convolution: a thread owns one channel (or four, for widths of 4) of a tile of tokens. Norms: a warp owns a row.
// Any arch, any alignment except the packed convolution (8 bytes of 16-bit, 16 of f32).
#include "kda.cuh"

// The sample `back` tokens before t of sequence s; those in front of it lie in line [W-1] of the channel.
template <class T> __device__ __forceinline__ float sample(const T* x, const float* line, const Sequence& s, int t, int back, int c, int channels, int past) {
  const int u = t - back;
  if (u >= s.first) return to_float(x[(size_t)u * channels + c]);
  return line && !s.fresh ? line[past + u - s.first] : 0.f;
}

// y of the tokens of which `owner` names the sequence; -1: 0.
template <class T>
__device__ __forceinline__ void conv_tokens(T* y, const T* x, const float* w, const float* state, const int* sequences, const int* owner, int tokens,
                                            int channels, int width) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, past = width - 1;
  grid_wait();
  if (c >= channels) return;
  constexpr int TILE = 8;
  const int end = min(tokens, (int)(blockIdx.y + 1) * TILE);
  for (int t = blockIdx.y * TILE; t < end; t++) {
    const int o = owner[t];
    float a = 0;
    if (o >= 0) {
      const Sequence s(sequences, o);
      if (s.tokens < 0) continue;
      if (s.slot >= 0) {
        const float* line = state ? state + ((size_t)s.slot * channels + c) * past : nullptr;
        for (int j = 0; j < width; j++) a += w[(size_t)c * width + j] * sample(x, line, s, t, past - j, c, channels, past);
      }
    }
    y[(size_t)t * channels + c] = from_float<T>(a * sigmoid(a));
  }
}

template <class T> struct Four { T v[4]; };

// The same for a width of 4, four channels a thread, with a window that slides over 16 tokens.
template <class T>
__device__ __forceinline__ void conv_tokens4(T* y, const T* x, const float* w, const float* state, const int* sequences, const int* owner, int tokens,
                                             int channels) {
  const int c = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (c >= channels) {
    grid_wait();
    return;
  }
  float tap[4][4], win[3][4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float4 u = *reinterpret_cast<const float4*>(w + (size_t)(c + i) * 4);
    tap[0][i] = u.x, tap[1][i] = u.y, tap[2][i] = u.z, tap[3][i] = u.w;
  }
  grid_wait();
  constexpr int TILE = 16;
  const int end = min(tokens, (int)(blockIdx.y + 1) * TILE);
  int have = -2;
  for (int t = blockIdx.y * TILE; t < end; t++) {
    const int o = owner[t];
    Four<T> out;
    if (o < 0) {
#pragma unroll
      for (int i = 0; i < 4; i++) out.v[i] = from_float<T>(0);
      *reinterpret_cast<Four<T>*>(y + (size_t)t * channels + c) = out;
      continue;
    }
    const Sequence s(sequences, o);
    if (s.tokens < 0) continue;
    if (o != have) { // the window of another sequence
      have = o;
#pragma unroll
      for (int j = 0; j < 3; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float* line = state && s.slot >= 0 ? state + ((size_t)s.slot * channels + c + i) * 3 : nullptr;
          win[j][i] = sample(x, line, s, t, 3 - j, c + i, channels, 3);
        }
      }
    }
    const Four<T> in = *reinterpret_cast<const Four<T>*>(x + (size_t)t * channels + c);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float v = to_float(in.v[i]);
      const float a = tap[0][i] * win[0][i] + tap[1][i] * win[1][i] + tap[2][i] * win[2][i] + tap[3][i] * v;
      win[0][i] = win[1][i], win[1][i] = win[2][i], win[2][i] = v;
      out.v[i] = from_float<T>(s.slot < 0 ? 0.f : a * sigmoid(a));
    }
    *reinterpret_cast<Four<T>*>(y + (size_t)t * channels + c) = out;
  }
}

// The last samples of every sequence, oldest first: next may be state.
template <class T>
__device__ __forceinline__ void conv_keep(float* next, const T* x, const float* state, const int* sequences, int channels, int width) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, past = width - 1;
  grid_wait();
  if (c >= channels) return;
  const Sequence s(sequences, blockIdx.y);
  if (s.slot < 0 || s.tokens < 0) return;
  const size_t at = ((size_t)s.slot * channels + c) * past;
  // Column j comes from column j + tokens or from a token: in order, so that next may be state.
  for (int j = 0; j < past; j++) next[at + j] = sample(x, state ? state + at : nullptr, s, s.first + s.tokens, past - j, c, channels, past);
}

// One token a row on a pool of states: y, and the state moves on. rows and slots as in kda_decode.cu.
template <class T>
__device__ __forceinline__ void conv_step(T* y, const T* x, const float* w, float* pool, const int* rows, const int* slots, int channels, int width) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, past = width - 1;
  grid_wait();
  const int row = rows ? rows[blockIdx.y] : blockIdx.y;
  if (c >= channels || row < 0) return;
  const int s = slots[blockIdx.y];
  float a = 0;
  if (s >= 0) {
    float* line = pool + ((size_t)(s & ~KDA_FRESH) * channels + c) * past;
    w += (size_t)c * width;
    const bool fresh = s & KDA_FRESH;
    for (int j = 0; j < past; j++) {
      const float v = fresh ? 0.f : line[j];
      a += w[j] * v;
      if (j > 0) line[j - 1] = v;
    }
    const float v = to_float(x[(size_t)row * channels + c]);
    a += w[past] * v;
    line[past - 1] = v;
  }
  y[(size_t)row * channels + c] = from_float<T>(a * sigmoid(a));
}

template <class T> __device__ __forceinline__ void l2norm(T* y, const T* x, int rows, int d, float eps) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  grid_wait();
  if (row >= rows) return;
  x += (size_t)row * d, y += (size_t)row * d;
  float squares = 0;
  for (int i = lane; i < d; i += 32) squares += to_float(x[i]) * to_float(x[i]);
  const float r = 1.f / sqrtf(warp_sum(squares) + eps);
  for (int i = lane; i < d; i += 32) y[i] = from_float<T>(to_float(x[i]) * r);
}

template <class T> __device__ __forceinline__ void gate(float* g, const T* z, const float* a_log, const float* dt_bias, int64_t n, int heads, int dk, float bound) {
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  grid_wait();
  if (i >= n) return;
  const int at = i % (heads * dk);
  g[i] = log_decay(to_float(z[i]) + dt_bias[at], expf(a_log[at / dk]), bound);
}

template <class T> __device__ __forceinline__ void beta(float* y, const T* b, int64_t n, float factor) {
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  grid_wait();
  if (i < n) y[i] = factor * sigmoid(to_float(b[i]));
}

template <class T> __device__ __forceinline__ void gated_norm(T* y, const T* x, const T* gate, const float* w, int rows, int d, float eps,
                                                               const int* owner, const int* sequences, int heads) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  grid_wait();
  if (row >= rows) return;
  if (owner) {
    const int o = owner[row / heads];
    if (o < 0 || Sequence(sequences, o).tokens < 0 || Sequence(sequences, o).slot < 0) return;
  }
  x += (size_t)row * d, y += (size_t)row * d, gate += (size_t)row * d;
  float squares = 0;
  for (int i = lane; i < d; i += 32) squares += to_float(x[i]) * to_float(x[i]);
  const float r = 1.f / sqrtf(warp_sum(squares) / d + eps);
  for (int i = lane; i < d; i += 32) y[i] = from_float<T>(to_float(x[i]) * r * w[i] * sigmoid(to_float(gate[i])));
}

#define PARTS(T)                                                                                                                          \
  extern "C" __global__ void __launch_bounds__(256) kda_parts_conv_##T(T* y, const T* x, const float* w, const float* state, const int* sequences, \
                                                                       const int* owner, int tokens, int channels, int width) {           \
    conv_tokens(y, x, w, state, sequences, owner, tokens, channels, width);                                                               \
  }                                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) kda_parts_conv4_##T(T* y, const T* x, const float* w, const float* state, const int* sequences, \
                                                                        const int* owner, int tokens, int channels) {                     \
    conv_tokens4(y, x, w, state, sequences, owner, tokens, channels);                                                                     \
  }                                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) kda_parts_keep_##T(float* next, const T* x, const float* state, const int* sequences, int channels, int width) { \
    conv_keep(next, x, state, sequences, channels, width);                                                                                \
  }                                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) kda_parts_step_##T(T* y, const T* x, const float* w, float* pool, const int* rows, const int* slots, \
                                                                       int channels, int width) {                                         \
    conv_step(y, x, w, pool, rows, slots, channels, width);                                                                               \
  }                                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) kda_parts_l2norm_##T(T* y, const T* x, int rows, int d, float eps) { l2norm(y, x, rows, d, eps); } \
  extern "C" __global__ void __launch_bounds__(256) kda_parts_gate_##T(float* g, const T* z, const float* a_log, const float* dt_bias, int64_t n, int heads, \
                                                                       int dk, float bound) {                                             \
    gate(g, z, a_log, dt_bias, n, heads, dk, bound);                                                                                      \
  }                                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) kda_parts_beta_##T(float* y, const T* b, int64_t n, float factor) { beta(y, b, n, factor); } \
  extern "C" __global__ void __launch_bounds__(256) kda_parts_norm_##T(T* y, const T* x, const T* g, const float* w, int rows, int d, float eps, \
                                                                       const int* owner, const int* sequences, int heads) {                \
    gated_norm(y, x, g, w, rows, d, eps, owner, sequences, heads);                                                                                                 \
  }
PARTS(bf16) PARTS(f16) PARTS(f32)
