// What surrounds the products of a mixture of experts: the router, the sort of choices by expert, the rows in that order, and
// the weighted sum back. T tokens, TopK choices each, E experts; a choice is numbered t*TopK+c.
//
// moe_route: a warp owns a token. Scores in f64 from logits [T,E], so that a choice between near equals does not hang on a
// rounding: s = softmax or sigmoid; the TopK largest s + bias in falling order, the lower index first among equals, from the
// KeepGroups groups of neighbours whose two best have the largest sum; a NaN ranks as -Inf. Weights: s of the chosen, over
// their sum + 1e-20 if asked for, times scale. Shared memory of a warp: scores, ranks, values of groups and choices,
// 8(2E+G)+4TopK bytes.
// moe_sort: a block owns an expert. It counts the choices of the experts before its own and lists its own in order: a
// counting sort without atomics, so the order is that of the choices. A choice outside [0,E) has position -1.
// moe_permute: a block owns a token and writes its row to the place of each of its choices.
// moe_combine: a block owns a token: y = residual + (sum over its choices in order of weight * row, + the row of the shared
// expert, number T*TopK + t), in f32, rounded once.
// Any size; rows of whole 16 bytes at aligned addresses go 16 bytes at a time.
#include "mma.cuh"

namespace {
struct Route {
  const void* logits;
  const void* bias;  // [E] or null
  int* ids;          // [T,TopK]: written when choose, else read
  void* weights;     // [T,TopK] or null
  double scale;
  int tokens, experts, top_k, groups, keep, sigmoid, renormalize, choose;
  int logits_type, bias_type, weights_type;  // 0 bf16, 1 f16, 2 f32
  int warps;
};

__device__ __forceinline__ float value_of(const void* x, int type, long i) {
  if (type == 0) return to_float(((const bf16*)x)[i]);
  if (type == 1) return to_float(((const f16*)x)[i]);
  return ((const float*)x)[i];
}

__device__ __forceinline__ double sigmoid(double x) {
  const double e = exp(-fabs(x));
  return x >= 0 ? 1 / (1 + e) : x < 0 ? e / (1 + e) : x;
}

// Doubles in the order of unsigned numbers, above 0, which marks what was taken. A NaN ranks as -Inf.
__device__ __forceinline__ uint64_t rank_of(double v) {
  const int64_t b = __double_as_longlong((v == v ? v : -INFINITY) + 0.0);
  return (uint64_t)b ^ (b < 0 ? ~0ull : 1ull << 63);
}

__device__ __forceinline__ double value_of(uint64_t rank) { return __longlong_as_double(rank >> 63 ? rank ^ 1ull << 63 : ~rank); }

// A lane's part of n ranks, every 32nd from `lane` on, in N registers or, when N is 0, where they lie; and the largest of it,
// the lowest place among equals.
template <int N> struct Largest {
  uint64_t* rank;
  int n, lane, at;
  uint64_t best, own[N > 0 ? N : 1];
  __device__ __forceinline__ Largest(uint64_t* r, int count, int l) : rank(r), n(count), lane(l) {
#pragma unroll
    for (int j = 0; j < N; j++) own[j] = lane + 32 * j < n ? rank[lane + 32 * j] : 0;
    scan();
  }
  __device__ __forceinline__ void scan() {
    best = 0, at = 0x7fffffff;
#pragma unroll
    for (int j = 0; j < N; j++)
      if (own[j] > best) best = own[j], at = lane + 32 * j;
    for (int i = lane; i < n && N == 0; i += 32)
      if (rank[i] > best) best = rank[i], at = i;
  }
  // The place of the largest of all, for the whole warp; it is not found again.
  __device__ __forceinline__ int take() {
    const uint32_t high = __reduce_max_sync(~0u, (uint32_t)(best >> 32));
    bool mine = (uint32_t)(best >> 32) == high;
    const uint32_t low = __reduce_max_sync(~0u, mine ? (uint32_t)best : 0u);
    mine = mine && (uint32_t)best == low;
    const int i = __reduce_min_sync(~0u, mine ? at : 0x7fffffff);
    if (i == at) {
      if (N == 0) rank[i] = 0;
#pragma unroll
      for (int j = 0; j < N; j++)
        if (lane + 32 * j == i) own[j] = 0;
      scan();
    }
    return i;
  }
};
}  // namespace

// N: registers of a lane for the ranks, E up to 32N; 0 for any E.
template <int N> __device__ __forceinline__ void route(const Route& p) {
  extern __shared__ __align__(16) double shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.x * p.warps + warp, groups = max(p.groups, 1);
  grid_wait();
  if (t >= p.tokens) return;
  double* score = shared + (long)warp * (2 * p.experts + groups + (p.top_k + 1) / 2);
  uint64_t* rank = (uint64_t*)(score + p.experts);
  uint64_t* value = rank + p.experts;
  int* chosen = (int*)(value + groups);
  const long row = (long)t * p.experts;
  // Four experts of a lane at a time, so that their loads and their exponentials run beside each other.
  auto four = [&](auto f) {
    for (int e0 = lane; e0 < p.experts; e0 += 128) {
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (e0 + 32 * j < p.experts) f(e0 + 32 * j);
    }
  };
  // A softmax whose shares nothing is added to ranks as its numerators: they are divided when they are chosen.
  const bool late = !p.sigmoid && !p.bias && groups == 1;
  double top = -INFINITY, sum = 0;
  for (int e0 = lane; e0 < p.experts; e0 += 128) {
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = e0 + 32 * j < p.experts ? value_of(p.logits, p.logits_type, row + e0 + 32 * j) : -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const double x = v[j], s = p.sigmoid ? sigmoid(x) : x;
      if (e0 + 32 * j < p.experts) score[e0 + 32 * j] = s;
      top = fmax(top, s);
    }
  }
  if (!p.sigmoid) {
#pragma unroll
    for (int o = 16; o; o >>= 1) top = fmax(top, __shfl_xor_sync(~0u, top, o));
    four([&](int e) { sum += score[e] = exp(score[e] - top); });
#pragma unroll
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (!late || sum != sum) four([&](int e) { score[e] /= sum; });
  }
  int* ids = p.ids + (long)t * p.top_k;
  if (p.choose) {
    four([&](int e) { rank[e] = rank_of(score[e] + (p.bias ? (double)value_of(p.bias, p.bias_type, e) : 0.0)); });
    if (groups > 1) {
      const int size = p.experts / groups;
      __syncwarp();
      for (int g = lane; g < groups; g += 32) {
        uint64_t first = rank_of(-INFINITY), second = first;
#pragma unroll 4
        for (int e = g * size; e < (g + 1) * size; e++) {
          const uint64_t v = rank[e];
          second = v > first ? first : max(v, second);
          first = max(v, first);
        }
        value[g] = rank_of(size > 1 ? value_of(first) + value_of(second) : value_of(first));
      }
      Largest<0> kept(value, groups, lane);
      for (int i = 0; i < p.keep; i++) kept.take();
      __syncwarp();
      for (int e = lane; e < p.experts; e += 32)
        if (value[e / size]) rank[e] = rank_of(-INFINITY);
    }
    Largest<N> all(rank, p.experts, lane);
    for (int c = 0; c < p.top_k; c++) {
      const int e = all.take();
      if (lane == 0) ids[c] = chosen[c] = e;
    }
  } else {
    for (int c = lane; c < p.top_k; c += 32) chosen[c] = ids[c];
  }
  if (!p.weights) return;
  __syncwarp();
  auto score_of = [&](int c) {
    const int e = chosen[c];
    const double s = e >= 0 && e < p.experts ? score[e] : (double)NAN;
    return late ? s / sum : s;
  };
  double total = 0;
  for (int c = lane; c < p.top_k; c += 32) total += score_of(c);
#pragma unroll
  for (int o = 16; o; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
  const double scale = p.renormalize ? p.scale / (total + 1e-20) : p.scale;
  for (int c = lane; c < p.top_k; c += 32) {
    const float w = (float)(score_of(c) * scale);
    const long i = (long)t * p.top_k + c;
    if (p.weights_type == 0) ((bf16*)p.weights)[i] = from_float<bf16>(w);
    else if (p.weights_type == 1) ((f16*)p.weights)[i] = from_float<f16>(w);
    else ((float*)p.weights)[i] = w;
  }
}
extern "C" __global__ void __launch_bounds__(128) moe_route_128(const __grid_constant__ Route p) { route<4>(p); }
extern "C" __global__ void __launch_bounds__(128) moe_route_256(const __grid_constant__ Route p) { route<8>(p); }
extern "C" __global__ void __launch_bounds__(128) moe_route_any(const __grid_constant__ Route p) { route<0>(p); }

extern "C" __global__ void __launch_bounds__(1024) moe_sort(int* order, int* position, int* offsets, const int* ids, int m, int experts) {
  __shared__ int before[32], own[32];
  const int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  grid_wait();
  // A warp counts in a run of ids, 32 at a time.
  const int each = ((m + warps - 1) / warps + 31) / 32 * 32, from = min(m, warp * each), to = min(m, from + each);
  auto eight = [&](int i0, int (&v)[8]) {  // -1 behind the end
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = i0 + 32 * j + lane < to ? ids[i0 + 32 * j + lane] : -1;
  };
  int less = 0, same = 0, v[8];
  for (int i0 = from; i0 < to; i0 += 256) {
    eight(i0, v);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      less += v[j] >= 0 && v[j] < expert;
      same += v[j] == expert;
      const int i = i0 + 32 * j + lane;
      if (expert == 0 && i < to && (v[j] < 0 || v[j] >= experts)) position[i] = -1;
    }
  }
  less = __reduce_add_sync(~0u, less);
  same = __reduce_add_sync(~0u, same);
  if (lane == 0) before[warp] = less, own[warp] = same;
  __syncthreads();
  int start = 0, at = 0, all = 0;
  for (int w = 0; w < warps; w++) {
    start += before[w];
    all += own[w];
    if (w < warp) at += own[w];
  }
  if (threadIdx.x == 0) {
    offsets[expert] = start;
    if (expert == experts - 1) offsets[experts] = start + all;
  }
  if (same == 0) return;
  at += start;
  for (int i0 = from; i0 < to; i0 += 256) {
    eight(i0, v);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const unsigned vote = __ballot_sync(~0u, v[j] == expert);
      if (v[j] == expert) {
        const int i = i0 + 32 * j + lane, place = at + __popc(vote & ((1u << lane) - 1));
        order[place] = i;
        position[i] = place;
      }
      at += __popc(vote);
    }
  }
}

template <class T> __device__ __forceinline__ void permute(T* y, const T* x, const int* position, int top_k, int d, int packed) {
  constexpr int N = Pack<T>::N;
  grid_wait();
  const long t = blockIdx.x;
  if (packed) {
    for (int i = threadIdx.x; i < d / N; i += blockDim.x) {
      const Pack<T> v = load16(x + t * d + (long)i * N);
      for (int c = 0; c < top_k; c++) {
        const int at = position[t * top_k + c];
        if (at >= 0) store16(y + (long)at * d + (long)i * N, v);
      }
    }
    return;
  }
  for (int i = threadIdx.x; i < d; i += blockDim.x)
    for (int c = 0; c < top_k; c++) {
      const int at = position[t * top_k + c];
      if (at >= 0) y[(long)at * d + i] = x[t * d + i];
    }
}

namespace {
struct Combine {
  void* y;
  const void* rows;      // [T*TopK,D]
  const void* weights;   // [T,TopK]
  const void* residual;  // [T,D] or null; may be y
  const int* position;   // row of each choice; null: its own number
  const int* ids;        // [T,TopK]
  int top_k, d, experts, weights_f32, packed, shared, tokens, pad;
};
}  // namespace

template <class T> __device__ __forceinline__ void combine(const Combine& p) {
  constexpr int N = Pack<T>::N;
  grid_wait();
  const long t = blockIdx.x;
  auto place = [&](int c, float& w) {
    if (c == p.top_k) {
      w = 1;
      return ((long)p.tokens * p.top_k + t) * p.d;
    }
    const long i = t * p.top_k + c;
    const int e = p.ids[i];
    w = p.weights_f32 ? ((const float*)p.weights)[i] : to_float(((const T*)p.weights)[i]);
    if (e < 0 || e >= p.experts) {
      w = NAN;
      return 0l;
    }
    return (p.position ? (long)p.position[i] : i) * p.d;
  };
  const T* rows = (const T*)p.rows;
  const int terms = p.top_k + p.shared;
  if (p.packed) {
    // A thread looks up a term for all; then eight rows are on their way at once.
    constexpr int TERMS = 32;
    __shared__ long from[TERMS];
    __shared__ float weight[TERMS];
    for (int first = blockIdx.y * blockDim.x; first < p.d / N; first += gridDim.y * blockDim.x) {
      const int i = first + threadIdx.x;
      const bool live = i < p.d / N;
      Pack<T> out;
      if (p.residual && live) out = load16((const T*)p.residual + t * p.d + (long)i * N);
      float s[N] = {};
      for (int c0 = 0; c0 < terms; c0 += TERMS) {
        const int many = min(TERMS, terms - c0);
        __syncthreads();
        if (threadIdx.x < many) from[threadIdx.x] = place(c0 + threadIdx.x, weight[threadIdx.x]);
        __syncthreads();
        if (!live) continue;
        for (int c1 = 0; c1 < many; c1 += 8) {
          uint4 v[8];
#pragma unroll
          for (int c = 0; c < 8; c++)
            if (c1 + c < many) v[c] = *(const uint4*)(rows + from[c1 + c] + (long)i * N);
#pragma unroll
          for (int c = 0; c < 8; c++) {
            if (c1 + c >= many) break;
#pragma unroll
            for (int j = 0; j < N; j++) s[j] += weight[c1 + c] * to_float(((const T*)&v[c])[j]);
          }
        }
      }
      if (!live) continue;
      if (p.residual) {
#pragma unroll
        for (int j = 0; j < N; j++) s[j] += to_float(out.v[j]);
      }
#pragma unroll
      for (int j = 0; j < N; j++) out.v[j] = from_float<T>(s[j]);
      store16((T*)p.y + t * p.d + (long)i * N, out);
    }
    return;
  }
  for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < p.d; i += gridDim.y * blockDim.x) {
    float s = 0;
    for (int c = 0; c < terms; c++) {
      float w;
      const long at = place(c, w);
      s += w * to_float(rows[at + i]);
    }
    if (p.residual) s += to_float(((const T*)p.residual)[t * p.d + i]);
    ((T*)p.y)[t * p.d + i] = from_float<T>(s);
  }
}

#define MOE(T)                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) moe_permute_##T(T* y, const T* x, const int* position, int top_k, int d, int packed) { \
    permute<T>(y, x, position, top_k, d, packed);                                                                              \
  }                                                                                                                            \
  extern "C" __global__ void __launch_bounds__(256) moe_combine_##T(const __grid_constant__ Combine p) { combine<T>(p); }
MOE(bf16)
MOE(f16)
MOE(f32)
