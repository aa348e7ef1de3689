// Draws the next token of each request from its logits, by the rules of the native sampler: repetition penalty,
// temperature, top-k, top-p, min-p, then one draw from the tokens that are left, likeliest first (all of them in the order
// of their ids when nothing cuts). The draw is Go's PCG-DXSM of (seed, number of the token), so the same seed gives the same
// text wherever the sums of weights do not fall within rounding of each other.
//
// A block of 1024 threads owns a row. Temperature 0: one pass for the largest logit. Cuts: the k-th largest of the threads'
// largest keys bounds the k-th largest key from below; one more pass gathers what is not below it, a sort in shared memory
// by (logit, id) and float64 weights do the rest. When more than 2048 tokens are not below (k near 1024, or many ties) the
// k-th key is found by three rounds of radix selection (11, 11 and 10 bits of an order-preserving key) first. Up to 1024
// candidates: top-k above that, or a top-p that needs more, answers -2 and the host samples. A NaN, +Inf or nothing above
// -Inf answers -1. Every row is independent of its batch. Logits are read in packs of 16 bytes where rows are aligned, the
// next pack while this one is worked on. Shared memory: 24 KB; local memory: 256 bytes (the float64 exponentials of the
// last step). Any arch.
#include "element.cuh"

namespace {
constexpr int THREADS = 1024, MOST = 1024;

struct Params {
  int* token;                 // [B]
  const float* logits;        // [B,V]
  const uint32_t* seen;       // [B,seen_stride] bits of tokens that the penalty is for, or null
  const float* temperature;   // [B], 0: the likeliest token
  const float* penalty;       // [B], 1: none; null: none
  const int* top_k;           // [B], 0: all
  const float* top_p;         // [B], 0 or 1: all
  const float* min_p;         // [B], 0: all
  const unsigned long long* seed;  // [B]
  const long long* number;         // [B], of the token to draw
  long stride;                // of logits
  int vocabulary, seen_stride;
};

// Order-preserving: a larger float has a larger key; NaN has the largest.
__device__ __forceinline__ uint32_t key_of(float x) {
  if (x != x) return 0xffffffffu;
  const uint32_t u = __float_as_uint(x);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// Go's rand.New(rand.NewPCG(seed, number)).Float64().
__device__ __forceinline__ double draw(uint64_t seed, uint64_t number) {
  const uint64_t mul_hi = 2549297995355413924ull, mul_lo = 4865540595714422341ull, inc_hi = 6364136223846793005ull, inc_lo = 1442695040888963407ull;
  uint64_t hi = __umul64hi(number, mul_lo) + seed * mul_lo + number * mul_hi, lo = number * mul_lo;
  lo += inc_lo;
  hi += inc_hi + (lo < inc_lo);
  hi ^= hi >> 32;
  hi *= 0xda942042e4dd58b5ull;
  hi ^= hi >> 48;
  hi *= lo | 1;
  return (double)(hi << 11 >> 11) / 9007199254740992.0;
}

// Relative to the likeliest token. Out of line: its float64 arithmetic would take the registers of the whole kernel.
__device__ __noinline__ double weight(uint32_t key, double top, double temperature) { return exp(((double)logit_of(key) - top) / temperature); }

struct Row {
  const float* logits;
  const uint32_t* seen;
  float penalty;
  __device__ __forceinline__ uint32_t key(int i) const { return key(i, logits[i]); }
  __device__ __forceinline__ uint32_t key(int i, float z) const {
    if (seen && seen[i / 32] >> (i % 32) & 1) z = z > 0 ? z / penalty : z * penalty;
    return key_of(z);
  }
  // f(i, key, live) for every token, all lanes of a warp together; i and key mean nothing when !live.
  template <class F> __device__ __forceinline__ void each(int V, F f) const {
    const bool packed = (uint64_t)logits % 16 == 0;
    auto fetch = [&](int i) {
      float4 x = make_float4(0, 0, 0, 0);
      if (packed && i + 4 <= V) {
        x = *(const float4*)(logits + i);
      } else {
        if (i < V) x.x = logits[i];
        if (i + 1 < V) x.y = logits[i + 1];
        if (i + 2 < V) x.z = logits[i + 2];
        if (i + 3 < V) x.w = logits[i + 3];
      }
      return x;
    };
    float4 next = fetch(4 * threadIdx.x);
#pragma unroll 1
    for (int i0 = 0; i0 < V; i0 += 4 * THREADS) {
      const int i = i0 + 4 * threadIdx.x;
      const float4 x = next;
      next = fetch(i + 4 * THREADS);
      f(i, key(i < V ? i : 0, x.x), i < V);
      f(i + 1, key(i + 1 < V ? i + 1 : 0, x.y), i + 1 < V);
      f(i + 2, key(i + 2 < V ? i + 2 : 0, x.z), i + 2 < V);
      f(i + 3, key(i + 3 < V ? i + 3 : 0, x.w), i + 3 < V);
    }
  }
};

__device__ double block_total(double x, double* scratch) {  // in a fixed order; every thread gets it
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < THREADS / 32; i++) sum += scratch[i];
  __syncthreads();
  return sum;
}

// Leaves in list the `want` best tokens, unsorted, and returns their number.
__device__ __noinline__ int select(const Params& p, const Row& z, int want, unsigned long long* list, int* counts, int* chosen_, int* above_, int* filled_) {
  const int V = p.vocabulary, tid = threadIdx.x, lane = tid % 32;
  volatile int &chosen = *chosen_, &above = *above_;
  int& filled = *filled_;
  uint32_t prefix = 0, mask = 0;
  int rank = want;  // among those that share the prefix
  const int shifts[3] = {21, 10, 0}, widths[3] = {11, 11, 10};
#pragma unroll
  for (int round = 0; round < 3; round++) {
    for (int i = tid; i < 2048; i += THREADS) counts[i] = 0;
    __syncthreads();
    z.each(V, [&](int, uint32_t key, bool live) {
      const bool in = live && (key & mask) == prefix;
      const int bin = in ? (int)(key >> shifts[round] & ((1u << widths[round]) - 1)) : -1;
      if (__any_sync(~0u, in)) {
        const unsigned same = __match_any_sync(~0u, bin);
        if (in && lane == __ffs(same) - 1) atomicAdd(counts + bin, __popc(same));
      }
    });
    __syncthreads();
    if (tid < 32) {  // the bin where the sum from the top reaches the rank
      constexpr int EACH = 2048 / 32;
      int mine = 0;
      for (int i = 0; i < EACH; i++) mine += counts[2047 - (lane * EACH + i)];
      int upto = mine;
      for (int o = 1; o < 32; o *= 2) {
        const int y = __shfl_up_sync(~0u, upto, o);
        if (lane >= o) upto += y;
      }
      int before = upto - mine;
      if (before < rank && upto >= rank)
        for (int i = 0; i < EACH; i++) {
          const int bin = 2047 - (lane * EACH + i);
          if (before + counts[bin] >= rank) {
            chosen = bin, above = before;
            break;
          }
          before += counts[bin];
        }
    }
    __syncthreads();
    prefix |= (uint32_t)chosen << shifts[round];
    mask |= ((1u << widths[round]) - 1) << shifts[round];
    rank -= above;
    __syncthreads();
  }
  // All above the key, and of those equal to it the `rank` lowest ids.
  if (tid == 0) filled = 0;
  __syncthreads();
  z.each(V, [&](int i, uint32_t key, bool live) {
    if (live && key > prefix) list[atomicAdd(&filled, 1)] = (unsigned long long)key << 32 | (uint32_t)~i;
  });
  __syncthreads();
  int base = filled, left = rank;
  for (int i0 = 0; i0 < V && left > 0; i0 += THREADS) {
    const int i = i0 + tid;
    const bool equal = i < V && z.key(i) == prefix;
    const unsigned ballot = __ballot_sync(~0u, equal);
    if (lane == 0) counts[tid / 32] = __popc(ballot);
    __syncthreads();
    int before = __popc(ballot & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < THREADS / 32; w++) {
      if (w < tid / 32) before += counts[w];
      all += counts[w];
    }
    if (equal && before < left) list[base + before] = (unsigned long long)prefix << 32 | (uint32_t)~i;
    base += min(all, left), left -= min(all, left);
    __syncthreads();
  }
  __syncthreads();
  return want;
}
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1) sampling_draw(const __grid_constant__ Params p) {
  __shared__ unsigned long long list[2 * MOST];  // key and inverted id, so that larger is better
  __shared__ __align__(8) int counts[2048];      // later the weights
  __shared__ double scratch[32];
  __shared__ unsigned long long best;
  __shared__ int chosen, above, filled;
  const int row = blockIdx.x, V = p.vocabulary, tid = threadIdx.x, lane = tid % 32;
  grid_wait();
  Row z;
  z.logits = p.logits + row * p.stride;
  z.penalty = p.penalty ? p.penalty[row] : 1.f;
  z.seen = p.seen && z.penalty != 1.f ? p.seen + (long)row * p.seen_stride : nullptr;
  const double temperature = p.temperature[row];
  const float top_p = p.top_p[row], min_p = p.min_p[row];
  const int top_k = p.top_k[row];
  const bool cut_k = top_k > 0 && top_k < V, cut_p = top_p > 0 && top_p < 1, cuts = top_k > 0 || cut_p || min_p > 0;

  if (temperature == 0 || !cuts) {
    if (tid == 0) best = 0, chosen = -1;
    __syncthreads();
    unsigned long long mine = 0;
    z.each(V, [&](int i, uint32_t key, bool live) {
      if (live) mine = max(mine, (unsigned long long)key << 32 | (uint32_t)~i);
    });
    for (int o = 16; o; o >>= 1) mine = max(mine, __shfl_xor_sync(~0u, mine, o));
    if (lane == 0) atomicMax(&best, mine);
    __syncthreads();
    const float top = logit_of(best >> 32);
    if ((uint32_t)(best >> 32) == 0xffffffffu || isinf(top)) {
      if (tid == 0) p.token[row] = -1;
      return;
    }
    if (temperature == 0) {
      if (tid == 0) p.token[row] = ~(uint32_t)best;
      return;
    }
    // In the order of the ids: a thread owns a run, the runs are summed, one thread finds the run, its owner the token.
    const int run = (V + THREADS - 1) / THREADS, first = min(V, tid * run), end = min(V, first + run);
    double sum = 0;
#pragma unroll 1
    for (int i = first; i < end; i++) sum += weight(z.key(i), top, temperature);
    double* runs = (double*)list;
    runs[tid] = sum;
    __syncthreads();
    double total = 0, before = 0;
    for (int i = 0; i < THREADS; i++) {
      if (i == tid) before = total;
      total += runs[i];
    }
    const double u = draw(p.seed[row], p.number[row]) * total;
    if (u >= before && u < before + sum) {
      double at = before;
      int last = -1;
#pragma unroll 1
      for (int i = first; i < end; i++) {
        const double w = weight(z.key(i), top, temperature);
        if (w > 0) last = i;
        at += w;
        if (u < at) break;
      }
      atomicMax(&chosen, last);
    }
    __syncthreads();
    if (tid == 0) p.token[row] = chosen >= 0 ? chosen : ~(uint32_t)best;
    return;
  }

  const int want = cut_k ? min(top_k, MOST) : min(V, MOST);
  auto sort = [&](int size) {  // descending, size a power of two
    for (int k = 2; k <= size; k *= 2)
      for (int j = k / 2; j > 0; j /= 2) {
        for (int i = tid; i < size; i += THREADS) {
          const int other = i ^ j;
          const unsigned long long a = list[i], b = list[other];
          if (other > i && ((i & k) == 0 ? a < b : a > b)) list[i] = b, list[other] = a;
        }
        __syncthreads();
      }
  };
  uint32_t mine = 0;
  z.each(V, [&](int, uint32_t key, bool live) {
    if (live) mine = max(mine, key);
  });
  list[tid] = mine;
  if (tid == 0) filled = 0;
  __syncthreads();
  sort(THREADS);
  const uint32_t bound = list[want - 1];  // 0 when fewer threads than that have a token
  __syncthreads();
  z.each(V, [&](int i, uint32_t key, bool live) {
    if (live && key >= bound) {
      const int at = atomicAdd(&filled, 1);
      if (at < 2 * MOST) list[at] = (unsigned long long)key << 32 | (uint32_t)~i;
    }
  });
  __syncthreads();
  int n = filled;
  if (n > 2 * MOST) n = select(p, z, want, list, counts, &chosen, &above, &filled);
  int size = 2;
  while (size < n) size *= 2;
  for (int i = n + tid; i < size; i += THREADS) list[i] = 0;
  __syncthreads();
  sort(size);
  n = min(n, want);
  const uint32_t first_key = list[0] >> 32;
  const double top = logit_of(first_key);
  if (first_key == 0xffffffffu || isinf(top)) {
    if (tid == 0) p.token[row] = -1;
    return;
  }
  double total = 0;
  if (cut_p && !cut_k) {  // top-p is a share of the whole vocabulary
    double sum = 0;
#pragma unroll 1
    for (int i = tid; i < V; i += THREADS) sum += weight(z.key(i), top, temperature);
    total = block_total(sum, scratch);
  }
  double* weights = (double*)counts;
  if (tid < n) weights[tid] = weight(list[tid] >> 32, top, temperature);
  __syncthreads();
  if (tid > 0) return;
  int kept = n;
  bool complete = cut_k && top_k <= MOST || V <= MOST;
  while (kept > 1 && weights[kept - 1] == 0) kept--, complete = true;
  if (cut_p) {
    if (cut_k)
      for (int i = 0; i < kept; i++) total += weights[i];
    double sum = 0;
    for (int i = 0; i < kept; i++)
      if ((sum += weights[i]) >= (double)top_p * total) {
        kept = i + 1;
        complete = true;
        break;
      }
  }
  for (int i = 0; i < kept; i++)
    if (weights[i] < (double)min_p) {
      kept = i;
      complete = true;
      break;
    }
  if (!complete) {
    p.token[row] = -2;
    return;
  }
  double sum = 0;
  for (int i = 0; i < kept; i++) sum += weights[i];
  double u = draw(p.seed[row], p.number[row]) * sum;
  int at = 0;
  for (; at < kept - 1; at++)
    if ((u -= weights[at]) < 0) break;
  p.token[row] = ~(uint32_t)list[at];
}
