// Draws the next token of each request from its logits, by the rules of the native body: repetition penalty, temperature,
// top-k, top-p, min-p, then one draw from the tokens that are left, likeliest first (all of them in the order of their ids
// when nothing cuts). The draw is Philox4x32-10 of (number of the token; seed), so the same seed gives the same text wherever
// the sums of weights do not fall within rounding of each other. Philox: Salmon et al., SC 2011.
//
// A block of 1024 threads owns a row. Temperature 0: one pass for the largest logit. Cuts: the k-th largest of the threads'
// largest keys bounds the k-th largest key from below; one more pass gathers what is not below it, a sort in shared memory
// by (logit, id) and float64 weights do the rest. When more than 2048 tokens are not below (k near 1024, or many ties) the
// k-th key is found by three rounds of radix selection (11, 11 and 10 bits of an order-preserving key) first. Where 1024
// candidates are not enough (top-k above that, a flat distribution) each border is found by five rounds of radix selection
// over (key, id), by counts for top-k and by weights in fixed point, whose sums do not depend on their order, for top-p and
// the draw. A request whose number is below 0 draws nothing and gets -1, a NaN answers -2, a largest logit that is infinite
// -3. Every row is independent of its batch. Logits are read in packs of four where rows are aligned, four packs of a thread at a
// time where V is a multiple of four, else the next one while this one is worked on. V up to 4194304. Shared memory: 25 KB; local memory: 256 bytes (the float64 exponentials of the
// last step). Any arch.
#include "element.cuh"

namespace {
constexpr int THREADS = 1024, MOST = 1024;

// What a request asks for; 8 words.
struct Draw {
  float penalty;      // 1: none
  float temperature;  // 0: the likeliest token
  int top_k;          // 0: all
  float top_p;        // 0 or 1: all
  float min_p;        // 0: all
  int number;         // of the token to draw; below 0: none
  uint32_t seed[2];   // low, high
};

template <class T> struct Params {
  int* token;            // [B]
  const T* logits;       // [B,V]
  const Draw* draws;     // [B]
  const uint32_t* seen;  // [B,seen_stride] bits of tokens that the penalty is for, or null
  long stride;           // of logits
  int vocabulary, seen_stride;
};

// Order-preserving: a larger float has a larger key; NaN has the largest.
__device__ __forceinline__ uint32_t key_of(float x) {
  if (x != x) return 0xffffffffu;
  const uint32_t u = __float_as_uint(x);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// The upper 53 bits of the first two words of Philox4x32-10.
__device__ __forceinline__ uint64_t random53(const Draw& d) {
  uint32_t c0 = d.number, c1 = 0, c2 = 0, c3 = 0, k0 = d.seed[0], k1 = d.seed[1];
#pragma unroll
  for (int i = 0; i < 10; i++) {
    const uint32_t h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ k0, c1 = l1, c2 = h0 ^ c3 ^ k1, c3 = l0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return ((uint64_t)c0 << 32 | c1) >> 11;
}
__device__ __forceinline__ double draw(const Draw& d) { return (double)random53(d) / 9007199254740992.0; }

// Relative to the likeliest token. Out of line: its float64 arithmetic would take the registers of the whole kernel.
__device__ __noinline__ double weight(uint32_t key, double top, double temperature) { return exp(((double)logit_of(key) - top) / temperature); }

// Four logits from i on, 0 behind the end.
__device__ __forceinline__ float4 unpack4(const float* p) { return *(const float4*)p; }
template <class T> __device__ __forceinline__ float4 unpack4(const T* p) {
  const uint2 u = *(const uint2*)p;
  const T* v = (const T*)&u;
  return make_float4(to_float(v[0]), to_float(v[1]), to_float(v[2]), to_float(v[3]));
}

template <class T> struct Row {
  const T* logits;
  const uint32_t* seen;
  float penalty;
  __device__ __forceinline__ uint32_t key(int i) const { return key(i, to_float(logits[i])); }
  __device__ __forceinline__ uint32_t key(int i, float z) const {
    if (seen && seen[i / 32] >> (i % 32) & 1) z = z > 0 ? z / penalty : z * penalty;
    return key_of(z);
  }
  // f(i, key, live) for every token, all lanes of a warp together; i and key mean nothing when !live. DEEP packs of a thread
  // are under way at a time where V is a multiple of four: a block has a multiprocessor to itself and waits for memory.
  template <int DEEP, class F> __device__ __forceinline__ void each(int V, F f) const {
    const bool packed = (uint64_t)logits % (4 * sizeof(T)) == 0;
    auto fetch = [&](int i) {
      float4 x = make_float4(0, 0, 0, 0);
      if (packed && i + 4 <= V) {
        x = unpack4(logits + i);
      } else {
        if (i < V) x.x = to_float(logits[i]);
        if (i + 1 < V) x.y = to_float(logits[i + 1]);
        if (i + 2 < V) x.z = to_float(logits[i + 2]);
        if (i + 3 < V) x.w = to_float(logits[i + 3]);
      }
      return x;
    };
    auto four = [&](int i, const float4& x) {
      f(i, key(i < V ? i : 0, x.x), i < V);
      f(i + 1, key(i + 1 < V ? i + 1 : 0, x.y), i + 1 < V);
      f(i + 2, key(i + 2 < V ? i + 2 : 0, x.z), i + 2 < V);
      f(i + 3, key(i + 3 < V ? i + 3 : 0, x.w), i + 3 < V);
    };
    int i0 = 4 * threadIdx.x;
    if (DEEP > 1 && packed && V % 4 == 0) {
#pragma unroll 1
      for (; i0 < V + 4 * (int)threadIdx.x; i0 += 4 * DEEP * THREADS) {
        float4 x[DEEP];
#pragma unroll
        for (int k = 0; k < DEEP; k++)
          if (const int i = i0 + 4 * k * THREADS; i < V) x[k] = unpack4(logits + i);
#pragma unroll
        for (int k = 0; k < DEEP; k++) four(i0 + 4 * k * THREADS, x[k]);
      }
      return;
    }
    float4 next = fetch(i0);
#pragma unroll 1
    for (; i0 < V + 4 * (int)threadIdx.x; i0 += 4 * THREADS) {
      const float4 x = next;
      next = fetch(i0 + 4 * THREADS);
      four(i0, x);
    }
  }
};

// The two passes that every draw makes, out of line: their packs would take the registers of the rest. The best of a thread's
// tokens as key and inverted id; what is not below the bound, as much as there is room for.
template <class T> __device__ __noinline__ unsigned long long likeliest(Row<T> z, int V) {
  unsigned long long best = 0;
  z.template each<4>(V, [&](int i, uint32_t key, bool live) {
    if (live) best = max(best, (unsigned long long)key << 32 | (uint32_t)~i);
  });
  return best;
}
template <class T> __device__ __noinline__ void gather(Row<T> z, int V, uint32_t bound, unsigned long long* list, int* filled) {
  z.template each<4>(V, [&](int i, uint32_t key, bool live) {
    if (live && key >= bound) {
      const int at = atomicAdd(filled, 1);
      if (at < 2 * MOST) list[at] = (unsigned long long)key << 32 | (uint32_t)~i;
    }
  });
}

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
template <class T> __device__ __noinline__ int select(const Row<T>& z, int V, int want, unsigned long long* list, int* counts, int* chosen_, int* above_, int* filled_) {
  const int tid = threadIdx.x, lane = tid % 32;
  volatile int &chosen = *chosen_, &above = *above_;
  int& filled = *filled_;
  uint32_t prefix = 0, mask = 0;
  int rank = want;  // among those that share the prefix
  const int shifts[3] = {21, 10, 0}, widths[3] = {11, 11, 10};
#pragma unroll
  for (int round = 0; round < 3; round++) {
    for (int i = tid; i < 2048; i += THREADS) counts[i] = 0;
    __syncthreads();
    z.template each<1>(V, [&](int, uint32_t key, bool live) {
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
  z.template each<1>(V, [&](int i, uint32_t key, bool live) {
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
// What is left of a row: tokens whose place is at or above the floor and whose weight is at least least.
struct Kept {
  unsigned long long floor;
  double least, top, temperature;
  int shift;  // weights in fixed point have so many binary places, so that V of them fit into 63 bits
};

// The order of the tokens, the likeliest largest: the key, then the id inverted in 22 bits.
__device__ __forceinline__ unsigned long long place(uint32_t key, int id) { return (unsigned long long)key << 22 | (0x3fffffu - id); }

template <bool WEIGHTS> __device__ __forceinline__ unsigned long long measure(const Kept& k, unsigned long long at) {
  if (at < k.floor) return 0;
  if (!WEIGHTS) return 1;
  const double w = weight(at >> 22, k.top, k.temperature);
  return w >= k.least ? __double2ull_rn(ldexp(w, k.shift)) : 0;
}

template <class T> __device__ __noinline__ unsigned long long total(const Row<T>& z, int V, const Kept& k, unsigned long long* sums) {
  unsigned long long sum = 0;
  for (int i = threadIdx.x; i < V; i += THREADS) sum += measure<true>(k, place(z.key(i), i));
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < THREADS / 32; i++) sum += sums[i];
  __syncthreads();
  return sum;
}

// The place of the token where the sum from the top reaches the target, which is at least 1 and at most the total.
template <bool WEIGHTS, class T>
__device__ __noinline__ unsigned long long border(const Row<T>& z, int V, const Kept& k, unsigned long long target, unsigned long long* sums, unsigned long long* above_, int* chosen_) {
  const int tid = threadIdx.x, lane = tid % 32, shifts[5] = {43, 32, 22, 11, 0}, widths[5] = {11, 11, 10, 11, 11};
  volatile unsigned long long& above = *above_;
  volatile int& chosen = *chosen_;
  unsigned long long prefix = 0, mask = 0;
#pragma unroll 1
  for (int round = 0; round < 5; round++) {
    for (int i = tid; i < 2048; i += THREADS) sums[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = tid; i < V; i += THREADS) {
      const unsigned long long at = place(z.key(i), i);
      if ((at & mask) != prefix) continue;
      const unsigned long long m = measure<WEIGHTS>(k, at);
      if (m) atomicAdd(sums + (at >> shifts[round] & ((1u << widths[round]) - 1)), m);
    }
    __syncthreads();
    if (tid < 32) {  // the bin where the sum from the top reaches the target
      constexpr int EACH = 2048 / 32;
      unsigned long long mine = 0;
      for (int i = 0; i < EACH; i++) mine += sums[2047 - (lane * EACH + i)];
      unsigned long long upto = mine;
      for (int o = 1; o < 32; o *= 2) {
        const unsigned long long y = __shfl_up_sync(~0u, upto, o);
        if (lane >= o) upto += y;
      }
      unsigned long long before = upto - mine;
      if (before < target && upto >= target)
        for (int i = 0; i < EACH; i++) {
          const int bin = 2047 - (lane * EACH + i);
          if (before + sums[bin] >= target) {
            chosen = bin, above = before;
            break;
          }
          before += sums[bin];
        }
    }
    __syncthreads();
    prefix |= (unsigned long long)chosen << shifts[round];
    mask |= ((1ull << widths[round]) - 1) << shifts[round];
    target -= above;
    __syncthreads();
  }
  return prefix;
}

// The token where 1024 candidates are not enough.
template <class T>
__device__ __noinline__ int draw_from_many(const Row<T>& z, int V, const Draw& d, double top, unsigned long long* sums, unsigned long long* above, int* chosen) {
  Kept k = {0, 0., top, (double)d.temperature, 62 - (32 - __clz(V))};
  if (d.top_k > 0 && d.top_k < V) k.floor = border<false>(z, V, k, d.top_k, sums, above, chosen);
  if (d.top_p > 0 && d.top_p < 1) {
    const unsigned long long all = total(z, V, k, sums);
    k.floor = border<true>(z, V, k, max(1ull, min(all, (unsigned long long)ceil((double)d.top_p * (double)all))), sums, above, chosen);
  }
  k.least = d.min_p;
  const unsigned long long all = total(z, V, k, sums);
  return 0x3fffff - (int)(border<true>(z, V, k, __umul64hi(random53(d) << 11, all) + 1, sums, above, chosen) & 0x3fffff);
}


template <class T> __device__ __forceinline__ void sampling_draw(const Params<T>& p) {
  __shared__ unsigned long long list[2 * MOST];  // key and inverted id, so that larger is better
  __shared__ __align__(8) int counts[2048];      // later the weights
  __shared__ double scratch[32];
  __shared__ unsigned long long best;  // also a sum
  __shared__ int chosen, above, filled;
  const int row = blockIdx.x, V = p.vocabulary, tid = threadIdx.x, lane = tid % 32;
  grid_wait();
  const Draw d = p.draws[row];
  if (d.number < 0) {
    if (tid == 0) p.token[row] = -1;
    return;
  }
  Row<T> z;
  z.logits = p.logits + row * p.stride;
  z.penalty = d.penalty;
  z.seen = p.seen && z.penalty != 1.f ? p.seen + (long)row * p.seen_stride : nullptr;
  const double temperature = d.temperature;
  const float top_p = d.top_p, min_p = d.min_p;
  const int top_k = d.top_k;
  const bool cut_k = top_k > 0 && top_k < V, cut_p = top_p > 0 && top_p < 1, cuts = top_k > 0 || cut_p || min_p > 0;

  if (temperature == 0 || !cuts) {
    if (tid == 0) best = 0, chosen = -1;
    __syncthreads();
    unsigned long long mine = likeliest(z, V);
    for (int o = 16; o; o >>= 1) mine = max(mine, __shfl_xor_sync(~0u, mine, o));
    if (lane == 0) atomicMax(&best, mine);
    __syncthreads();
    const float top = logit_of(best >> 32);
    if ((uint32_t)(best >> 32) == 0xffffffffu || isinf(top)) {
      if (tid == 0) p.token[row] = isinf(top) ? -3 : -2;
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
    const double u = draw(d) * total;
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
  list[tid] = likeliest(z, V) >> 32;
  if (tid == 0) filled = 0;
  __syncthreads();
  sort(THREADS);
  const uint32_t bound = list[want - 1];  // 0 when fewer threads than that have a token
  __syncthreads();
  gather(z, V, bound, list, &filled);
  __syncthreads();
  int n = filled;
  if (n > 2 * MOST) n = select(z, V, want, list, counts, &chosen, &above, &filled);
  int size = 2;
  while (size < n) size *= 2;
  for (int i = n + tid; i < size; i += THREADS) list[i] = 0;
  __syncthreads();
  sort(size);
  n = min(n, want);
  const uint32_t first_key = list[0] >> 32;
  const double top = logit_of(first_key);
  if (first_key == 0xffffffffu || isinf(top)) {
    if (tid == 0) p.token[row] = isinf(top) ? -3 : -2;
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
  if (tid == 0) {
    int kept = n;
    bool complete = cut_k && top_k <= MOST || V <= MOST;
    while (kept > 1 && weights[kept - 1] == 0) kept--, complete = true;
    const bool known = complete || !cut_k || !cut_p;  // else top-p is a share of more tokens than there are candidates
    if (cut_p && known) {
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
    for (int i = 0; i < kept && known; i++)
      if (weights[i] < (double)min_p) {
        kept = i;
        complete = true;
        break;
      }
    chosen = complete;
    if (complete) {
      double sum = 0;
      for (int i = 0; i < kept; i++) sum += weights[i];
      double u = draw(d) * sum;
      int at = 0;
      for (; at < kept - 1; at++)
        if ((u -= weights[at]) < 0) break;
      p.token[row] = ~(uint32_t)list[at];
    }
  }
  __syncthreads();
  if (chosen) return;
  __syncthreads();
  const int token = draw_from_many(z, V, d, top, list, &best, &chosen);
  if (tid == 0) p.token[row] = token;
}
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1) sampling_draw_bf16(const __grid_constant__ Params<bf16> p) { sampling_draw(p); }
extern "C" __global__ void __launch_bounds__(1024, 1) sampling_draw_f16(const __grid_constant__ Params<f16> p) { sampling_draw(p); }
extern "C" __global__ void __launch_bounds__(1024, 1) sampling_draw_f32(const __grid_constant__ Params<f32> p) { sampling_draw(p); }
