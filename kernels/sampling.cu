// Draws the next token of each request from its logits, by the rules of the native body: repetition penalty, temperature,
// top-k, top-p, min-p, then one draw from the tokens that are left, likeliest first (all of them in the order of their ids
// when nothing cuts). The draw is Philox4x32-10 of (number of the token; seed), so the same seed gives the same text wherever
// the sums of weights do not fall within rounding of each other. Philox: Salmon et al., SC 2011.
//
// A cluster of blocks of 1024 threads owns a row, a warp a segment of 512 tokens (more where V is above 262144) of every
// 32 times as many as there are blocks. One pass finds each segment's likeliest token and its weights' float64 sum relative
// to that token. Nothing cuts: the sums are scaled and added in the order of the segments, a warp walks the one that holds the
// draw. Cuts: weights are whole numbers of 2^-shift, whose sums do not depend on their order, so nothing depends on how many
// blocks there are. The k-th largest of a block's threads' largest logits bounds the k-th largest logit from below; what is
// not below it is gathered and sorted by (logit, id), up to 2048 tokens. Where these are not enough (top-k above 512, a flat
// distribution, ties) a border is found by a histogram of 1024 bins, by counts for top-k and by weights for top-p and the
// draw: equal steps of the logit first, then of an order-preserving key, until the bin of the border has up to 2048 tokens, which
// are sorted, or one key, whose tokens go by their ids. A request whose number is below 0 draws nothing and gets -1, a NaN
// answers -2, a largest logit that is infinite -3. Every row is independent of its batch. Logits are read in packs of four
// where rows are aligned. V up to 4194304. Shared memory: 42 KB; local memory: 400 bytes. Any arch; clusters on sm_90a.
#include "cluster.cuh"
#include "logits.cuh"

namespace {
constexpr int SEGMENTS = 512, LIST = 2048, BINS = 1024, FEW = 512;

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

struct Shared {
  union {
    u64 list[LIST];  // what this block gathers
    struct {
      uint32_t low[BINS], high[BINS];  // of the sums of its bins
    };
    int equal[SEGMENTS];  // tokens of one key in its segments
  } own;
  u64 list[LIST];  // of the cluster, sorted: key and inverted id, so that larger is better
  u64 best[SEGMENTS];
  double sum[SEGMENTS];
  union {
    u64 whole[WARPS];
    double real[WARPS];
  } warps;
  uint32_t bound[8], least[8];  // of the blocks: a key of which top-k have as much, the key of the lowest finite logit
  u64 found, upto;
  double before;
  int filled, chosen, last;
  uint32_t lowest;
};

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

// The first token, in the order of the ids, where the sum of f of the logits is above u, or the last one whose f is not 0: mine
// is the sum of the thread's segment, upto that of it and all before.
template <class T, class F> __device__ __forceinline__ int in_order(Shared& s, const Row<T>& z, double mine, double upto, double u, F f) {
  const int tid = threadIdx.x, lane = tid % 32;
  if (tid == 0) s.chosen = SEGMENTS, s.last = 0;
  __syncthreads();
  if (mine > 0) {
    atomicMax(&s.last, tid);
    if (upto > u) atomicMin(&s.chosen, tid);
  }
  __syncthreads();
  const int segment = min(s.chosen, s.last);
  if (tid == segment) s.before = upto - mine;
  __syncthreads();
  if (tid < 32) {
    double base = s.before;
    int token = -1;
    bool done = false;
#pragma unroll 1
    for (int first = segment * z.span; !done && first < min(z.V, (segment + 1) * z.span); first += SEGMENT) {
      float x[16];
      z.load(first, x);
#pragma unroll
      for (int j = 0; j < 16; j += 4) {
        double w[4], sum = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) sum += w[k] = f(x[j + k]);
        double to = sum;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
          const double y = __shfl_up_sync(~0u, to, o);
          if (lane >= o) to += y;
        }
        double at = __shfl_up_sync(~0u, to, 1);
        at = lane ? base + at : base;
        int last = -1, hit = -1;
#pragma unroll
        for (int k = 0; k < 4; k++) {
          at += w[k];
          if (w[k] > 0) last = k;
          if (w[k] > 0 && at > u && hit < 0) hit = k;
        }
        base += __shfl_sync(~0u, to, 31);
        const unsigned hits = __ballot_sync(~0u, hit >= 0), some = __ballot_sync(~0u, last >= 0);
        if (!done && some) {
          done = hits != 0;
          const int from = hits ? __ffs(hits) - 1 : 31 - __clz(some);
          token = __shfl_sync(~0u, z.id(first, j) + (hits ? hit : last), from);
        }
      }
    }
    if (lane == 0) s.last = token;
  }
  __syncthreads();
  return s.last;
}

// What is left of a row: logits above floor, those at it up to an id, and of these the ones whose weight is at least least.
struct Kept {
  double top, rate, unit, least;  // unit: weights in fixed point are this times as large
  float floor;
  int id;
  __device__ __forceinline__ bool has(float x, int i) const { return x > floor || x == floor && i <= id; }
  template <bool WEIGHTS> __device__ __forceinline__ u64 measure(float x) const {
    if (!WEIGHTS) return 1;
    const double w = weight(x, top, rate);
    return w >= least ? __double2ull_rn(w * unit) : 0;
  }
};

// Bins by the logit, and where scale is below 0 by the key.
struct Bins {
  float top, scale;
  uint32_t high;
  int shift;
  __device__ __forceinline__ int of(float x) const { return scale >= 0 ? (int)fminf((top - x) * scale, BINS - 1) : (int)((high - key_of(x)) >> shift); }
  // The lowest key from `low` to high whose bin, by the logit, is at most b; high's is. A warp searches.
  __device__ __forceinline__ uint32_t from(uint32_t low, uint32_t to, int b) const {
    while (low < to) {
      const uint32_t step = (to - low) / 32 + 1, at = min(to, low + step * (threadIdx.x % 32));
      const unsigned in = __ballot_sync(~0u, of(logit_of(at)) <= b);
      const int first = in ? __ffs(in) - 1 : 32;
      const uint32_t below = low + step * (first - 1) + 1;  // means nothing where first is 0
      if (first < 32) to = min(to, low + step * first);
      if (first > 0) low = min(to, below);
    }
    return low;
  }
};

// Gathers and sorts what is kept of the logits from low to high; their number, above LIST where there is no room.
template <class T> __device__ __noinline__ int gather(Shared& s, const Row<T>& z, const Kept& kept, float low, float high) {
  const int tid = threadIdx.x, lane = tid % 32;
  const Kept k = kept;
  if (tid == 0) s.filled = 0;
  __syncthreads();
  z.each([&](int, int first) {
    float x[16];
    z.load(first, x);
    unsigned in = 0;
#pragma unroll
    for (int j = 0; j < 16; j++) in |= (x[j] >= low && x[j] <= high && k.has(x[j], z.id(first, j)) ? 1u : 0u) << j;
    if (!__any_sync(~0u, in)) return;
    const int n = __popc(in);
    int upto = n;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const int y = __shfl_up_sync(~0u, upto, o);
      if (lane >= o) upto += y;
    }
    int at = lane == 31 ? atomicAdd(&s.filled, upto) : 0;
    at = __shfl_sync(~0u, at, 31) + upto - n;
#pragma unroll
    for (int j = 0; j < 16; j++)
      if (in >> j & 1) {
        if (at < LIST) s.own.list[at] = (u64)key_of(x[j]) << 32 | (uint32_t)~z.id(first, j);
        at++;
      }
  });
  cluster_meet();
  int n = 0, size = 64;
  for (int r = 0; r < z.blocks; r++) {
    const int more = *cluster_peer(&s.filled, r);
    const u64* from = cluster_peer(s.own.list, r);
    for (int i = tid; i < more && n + i < LIST; i += THREADS) s.list[n + i] = from[i];
    n += more;
  }
  while (size < min(n, LIST)) size *= 2;
  for (int i = n + tid; i < size; i += THREADS) s.list[i] = 0;
  cluster_meet();
  if (n <= LIST) sort(s.list, size);
  return n;
}

// The sum of the measures of what is kept of the logits from low to high in the thread's bin.
template <bool WEIGHTS, class T> __device__ __noinline__ u64 fill(Shared& s, const Row<T>& z, const Kept& kept, const Bins& bins, float low, float high) {
  const int tid = threadIdx.x, lane = tid % 32;
  const Kept k = kept;
  const Bins by = bins;
  s.own.low[tid] = s.own.high[tid] = 0;
  __syncthreads();
  auto add = [&](int bin, u64 m) {
    const uint32_t old = atomicAdd(s.own.low + bin, (uint32_t)m), more = (uint32_t)(m >> 32) + (old + (uint32_t)m < old);
    if (more) atomicAdd(s.own.high + bin, more);
  };
  z.each([&](int, int first) {
    float x[16];
    z.load(first, x);
#pragma unroll
    for (int j = 0; j < 16; j++) {
      const u64 m = x[j] >= low && x[j] <= high && k.has(x[j], z.id(first, j)) ? k.template measure<WEIGHTS>(x[j]) : 0;
      const int bin = by.of(x[j]);
      const unsigned in = __ballot_sync(~0u, m != 0);
      if (!in) continue;
      const int leader = __ffs(in) - 1;
      if (__all_sync(~0u, bin == __shfl_sync(~0u, bin, leader) || m == 0)) {
        constexpr uint32_t PART = (1u << 27) - 1;
        const u64 sum = __reduce_add_sync(~0u, (uint32_t)m & PART) + ((u64)__reduce_add_sync(~0u, (uint32_t)(m >> 27) & PART) << 27) + ((u64)__reduce_add_sync(~0u, (uint32_t)(m >> 54)) << 54);
        if (lane == leader) add(bin, sum);
      } else if (m) {
        add(bin, m);
      }
    }
  });
  cluster_meet();
  u64 sum = 0;
  for (int r = 0; r < z.blocks; r++) sum += (u64)cluster_peer(s.own.high, r)[tid] << 32 | cluster_peer(s.own.low, r)[tid];
  cluster_meet();
  return sum;
}

// The token where the sum of measures from the top reaches the target, and the sum with it.
struct Border {
  float logit;
  int id;
  u64 upto;
};

// The bin where the sum from the top reaches the target; s.upto is the sum before.
__device__ __forceinline__ int reach(Shared& s, u64 mine, u64 upto, u64 target) {
  if (upto - mine < target && upto >= target) s.chosen = threadIdx.x, s.upto = upto - mine;
  __syncthreads();
  return s.chosen;
}

// The border for a target of at least 1 and at most the total; mine is the sum of the thread's bin.
template <bool WEIGHTS, class T> __device__ __noinline__ Border find(Shared& s, const Row<T>& z, const Kept& kept, Bins by, u64 mine, u64 target) {
  const int tid = threadIdx.x;
  u64 total;
  int bin = reach(s, mine, scan(mine, s.warps.whole, total), target);
  uint32_t high = bin ? by.from(LOWEST, by.high, bin - 1) - 1 : by.high;
  uint32_t low = by.from(LOWEST, high, bin);
  u64 above = s.upto;
  by.scale = -1;
  Border b;
#pragma unroll 1
  while (low < high) {
    __syncthreads();
    const int n = gather(s, z, kept, logit_of(low), logit_of(high));
    if (n <= LIST) {
      u64 m[2];
#pragma unroll
      for (int i = 0; i < 2; i++) m[i] = 2 * tid + i < n ? kept.template measure<WEIGHTS>(logit_of(s.list[2 * tid + i] >> 32)) : 0;
      const u64 upto = above + scan(m[0] + m[1], s.warps.whole, total), middle = upto - m[1];
      if (upto >= target && upto - m[0] - m[1] < target) {
        const bool first = middle >= target;
        s.found = s.list[2 * tid + !first], s.upto = first ? middle : upto;
      }
      __syncthreads();
      b.logit = logit_of(s.found >> 32), b.id = ~(uint32_t)s.found, b.upto = s.upto;
      __syncthreads();
      return b;
    }
    by.high = high, by.shift = 0;
    while ((high - low) >> by.shift >= BINS) by.shift++;
    mine = fill<WEIGHTS>(s, z, kept, by, logit_of(low), logit_of(high));
    bin = reach(s, mine, above + scan(mine, s.warps.whole, total), target);
    above = s.upto;
    high -= (uint32_t)bin << by.shift;
    low = max(low, high - ((1u << by.shift) - 1));
  }
  // Tokens of one logit go by their ids.
  b.logit = logit_of(low);
  const u64 each = kept.template measure<WEIGHTS>(b.logit), rank = (target - above + each - 1) / each;
  __syncthreads();
  for (int i = tid; i < SEGMENTS; i += THREADS) s.own.equal[i] = 0;
  __syncthreads();
  z.each([&](int segment, int first) {
    float x[16];
    z.load(first, x);
    int n = 0;
#pragma unroll
    for (int j = 0; j < 16; j++) n += x[j] == b.logit;
    n = __reduce_add_sync(~0u, n);
    if (tid % 32 == 0) s.own.equal[segment] += n;
  });
  cluster_meet();
  const double equal = tid < z.segments() ? cluster_peer(s.own.equal, tid % z.blocks)[tid] : 0;
  cluster_meet();
  double all;
  const double upto = scan(equal, s.warps.real, all);
  b.id = in_order(s, z, equal, upto, (double)(rank - 1), [&](float x) { return x == b.logit ? 1. : 0.; });
  b.upto = above + rank * each;
  __syncthreads();
  return b;
}

// The token where the candidates are not enough. mass: of the whole vocabulary, where top-p is a share of that.
template <class T> __device__ __noinline__ int draw_from_many(Shared& s, const Row<T>& z, const Draw& d, Kept k, double mass, float least) {
  const bool cut_k = d.top_k > 0 && d.top_k < z.V, cut_p = d.top_p > 0 && d.top_p < 1;
  const float top = (float)k.top, range = top - least;
  Bins by = {top, fminf(BINS / range, MOST), key_of(top), 0};
  u64 sum, mine;
  k.floor = -INFINITY, k.id = 0x7fffffff, k.least = 0;
  if (cut_k) {
    mine = fill<false>(s, z, k, by, logit_of(LOWEST), top);
    scan(mine, s.warps.whole, sum);
    if (d.top_k < sum) {
      const Border b = find<false>(s, z, k, by, mine, d.top_k);
      k.floor = b.logit, k.id = b.id;
    }
  }
  // Weights below half of a unit are 0.
  by.scale = fminf(BINS / fminf(range, d.temperature * .6931472f * (33 + __clz(z.V))), MOST);
  if (!cut_p) k.least = d.min_p;
  mine = fill<true>(s, z, k, by, logit_of(LOWEST), top);
  scan(mine, s.warps.whole, sum);
  if (cut_p) {
    const double share = (double)d.top_p * (cut_k ? (double)sum : mass * k.unit);
    const Border b = find<true>(s, z, k, by, mine, max(1ull, min(sum, (u64)ceil(share))));
    k.floor = b.logit, k.id = b.id, sum = b.upto;
    if (d.min_p > 0) {
      k.least = d.min_p;
      mine = fill<true>(s, z, k, by, logit_of(LOWEST), top);
      scan(mine, s.warps.whole, sum);
    }
  }
  return find<true>(s, z, k, by, mine, __umul64hi(random53(d) << 11, sum) + 1).id;
}

// The token from the n best tokens, or -1 where they are not enough; whole: there are no others of any weight.
__device__ __noinline__ int draw_from_few(Shared& s, const Draw& d, const Kept& k, int V, int n, double mass, bool whole) {
  const int tid = threadIdx.x;
  const bool cut_k = d.top_k > 0 && d.top_k < V, cut_p = d.top_p > 0 && d.top_p < 1;
  if (cut_k) n = min(n, d.top_k);
  u64 m[2], sum;
  bool least[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    m[i] = 0, least[i] = false;
    if (2 * tid + i < n) {
      const double w = weight(logit_of(s.list[2 * tid + i] >> 32), k.top, k.rate);
      m[i] = __double2ull_rn(w * k.unit);
      least[i] = w >= (double)d.min_p;
    }
  }
  const u64 upto = scan(m[0] + m[1], s.warps.whole, sum), middle = upto - m[1], before = middle - m[0];
  if (tid == (n - 1) / 2) s.chosen = whole || cut_k || m[(n - 1) % 2] == 0;
  __syncthreads();
  whole = s.chosen;
  u64 left = sum;  // the sum of what is left
  if (cut_p) {
    const u64 target = max(1ull, (u64)ceil((double)d.top_p * (cut_k ? (double)sum : mass * k.unit)));
    if (target > sum && !whole) return -1;
    if (target <= sum) {
      if (upto >= target && before < target) s.upto = middle >= target ? middle : upto;
      __syncthreads();
      left = s.upto, whole = true;
    }
  }
  if (d.min_p > 0) {
    __syncthreads();
    if (tid == 0) s.found = left;
    __syncthreads();
    // The first below: the sum before it.
    if (!least[0]) atomicMin(&s.found, before);
    else if (!least[1]) atomicMin(&s.found, middle);
    if (!whole && tid == 0) s.chosen = 0;
    __syncthreads();
    if (tid == (n - 1) / 2 && !least[(n - 1) % 2]) s.chosen = 1;
    __syncthreads();
    left = s.found, whole = whole || s.chosen;
  }
  if (!whole) return -1;
  const u64 target = __umul64hi(random53(d) << 11, left) + 1;
  __syncthreads();
  if (upto >= target && before < target) s.chosen = ~(uint32_t)s.list[2 * tid + (middle < target)];
  __syncthreads();
  return s.chosen;
}

// Leaves each segment's likeliest token, and its sum of weights relative to that, in every block of the cluster. A thread's
// largest logit, and the lowest finite one.
template <class T> __device__ __noinline__ float2 survey(Shared& s, const Row<T>& row, double rate, bool sums, bool lows) {
  const Row<T> z = row;
  const int lane = threadIdx.x % 32;
  float mine = -INFINITY, least = INFINITY;
  u64 best = 0;
  double sum = 0;
  float ref = -INFINITY;
  z.each([&](int segment, int first) {
    float x[16];
    z.load(first, x);
    float m = x[0];
#pragma unroll
    for (int j = 1; j < 16; j++) m = larger(m, x[j]);
    mine = larger(mine, m);
    if (lows) {
#pragma unroll
      for (int j = 0; j < 16; j++) least = fminf(least, x[j] == -INFINITY ? INFINITY : x[j]);
    }
    const uint32_t key = key_of(m), top = __reduce_max_sync(~0u, key);
    uint32_t id = 0xffffffffu;
    if (key == top) {
#pragma unroll
      for (int j = 15; j >= 0; j--)
        if (x[j] == m) id = z.id(first, j);
    }
    id = __reduce_min_sync(~0u, id);
    if (first % z.span == 0) best = 0, sum = 0, ref = -INFINITY;
    best = max(best, (u64)top << 32 | (uint32_t)~id);
    if (sums && top >= LOWEST) {
      const float z0 = logit_of(top);
      double w = 0;
#pragma unroll
      for (int j = 0; j < 16; j++) w += weight(x[j], z0, rate);
#pragma unroll
      for (int o = 16; o; o >>= 1) w += __shfl_xor_sync(~0u, w, o);
      if (z0 > ref) {
        sum = sum * weight(ref, z0, rate) + w, ref = z0;
      } else {
        sum += w * weight(z0, ref, rate);
      }
    }
    if (lane < z.blocks && first + SEGMENT >= min(z.V, (segment + 1) * z.span)) {
      cluster_peer(s.best, lane)[segment] = best;
      cluster_peer(s.sum, lane)[segment] = sum;
    }
  });
  return make_float2(mine, least);
}

template <class T> __device__ __forceinline__ void sampling_draw(const Params<T>& p) {
  __shared__ Shared s;
  Row<T> z;
  z.rank = cluster_rank(), z.blocks = cluster_blocks(), z.V = p.vocabulary;
  const int row = blockIdx.x / z.blocks, tid = threadIdx.x, lane = tid % 32;
  cluster_arrive();
  grid_wait();
  const Draw d = p.draws[row];
  if (tid == 0) s.lowest = 0xffffffffu;
  cluster_wait();
  auto answer = [&](int token) {
    if (z.rank == 0 && tid == 0) p.token[row] = token;
  };
  if (d.number < 0) return answer(-1);
  z.logits = p.logits + row * p.stride;
  z.penalty = d.penalty;
  z.seen = p.seen && z.penalty != 1.f ? p.seen + (long)row * p.seen_stride : nullptr;
  z.span = SEGMENT;
  while (z.segments() > SEGMENTS) z.span *= 2;
  const bool cut_k = d.top_k > 0 && d.top_k < z.V, cut_p = d.top_p > 0 && d.top_p < 1;
  const bool cuts = d.temperature > 0 && (d.top_k > 0 || cut_p || d.min_p > 0), sums = d.temperature > 0 && (!cuts || cut_p && !cut_k);
  bool few = cuts && (!cut_k || d.top_k <= FEW);
  Kept k;
  k.rate = 1.4426950408889634 / (double)d.temperature;

  const float2 ends = survey(s, z, k.rate, sums, cuts);
  if (cuts) {
    const uint32_t low = __reduce_min_sync(~0u, key_of(ends.y));
    if (lane == 0) atomicMin(&s.lowest, low);
    s.list[tid] = key_of(ends.x);
    __syncthreads();
    if (few) sort(s.list, THREADS);
    if (tid < z.blocks) {
      const int want = cut_k ? d.top_k : max(1, min(FEW, 16 * ((z.segments() - z.rank + z.blocks - 1) / z.blocks)));
      cluster_peer(s.bound, tid)[z.rank] = few ? (uint32_t)s.list[want - 1] : 0;
      cluster_peer(s.least, tid)[z.rank] = s.lowest;
    }
  }
  cluster_meet();
  u64 best = tid < z.segments() ? s.best[tid] : 0;
  const float own = logit_of(best >> 32);
#pragma unroll
  for (int o = 16; o; o >>= 1) best = max(best, __shfl_xor_sync(~0u, best, o));
  if (lane == 0) s.warps.whole[tid / 32] = best;
  __syncthreads();
  best = s.warps.whole[lane];
#pragma unroll
  for (int o = 16; o; o >>= 1) best = max(best, __shfl_xor_sync(~0u, best, o));
  __syncthreads();
  const float top = logit_of(best >> 32);
  if ((uint32_t)(best >> 32) == 0xffffffffu) return answer(-2);
  if (isinf(top)) return answer(-3);
  if (d.temperature == 0) return answer(~(uint32_t)best);
  k.top = top;
  double mass = 0, upto = 0, scaled = 0;
  if (sums) {
    if (tid < z.segments()) scaled = s.sum[tid] * weight(own, k.top, k.rate);
    upto = scan(scaled, s.warps.real, mass);
  }
  if (!cuts) {
    if (z.rank == 0) answer(in_order(s, z, scaled, upto, (double)random53(d) / 9007199254740992. * mass, [&](float x) { return weight(x, k.top, k.rate); }));
    return;
  }
  k.unit = ldexp(1., 31 + __clz(z.V));  // V weights of at most 1 are below 2^63
  k.floor = -INFINITY, k.id = 0x7fffffff, k.least = 0;
  uint32_t bound = LOWEST, lowest = 0xffffffffu;
  for (int r = 0; r < z.blocks; r++) bound = max(bound, s.bound[r]), lowest = min(lowest, s.least[r]);
  if (cut_p && !cut_k && (double)d.top_p * mass > LIST) few = false;
  int token = -1;
  if (few) {
    const int n = gather(s, z, k, logit_of(bound), top);
    if (n <= LIST) token = draw_from_few(s, d, k, z.V, n, mass, bound == LOWEST);
  }
  if (token < 0) token = draw_from_many(s, z, d, k, mass, logit_of(lowest));
  answer(token);
}
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1) sampling_draw_bf16(const __grid_constant__ Params<bf16> p) { sampling_draw(p); }
extern "C" __global__ void __launch_bounds__(1024, 1) sampling_draw_f16(const __grid_constant__ Params<f16> p) { sampling_draw(p); }
extern "C" __global__ void __launch_bounds__(1024, 1) sampling_draw_f32(const __grid_constant__ Params<f32> p) { sampling_draw(p); }
