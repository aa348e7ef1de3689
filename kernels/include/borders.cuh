// Borders in a row of logits, likeliest first: the token where the sum of counts or weights from the top reaches a target. For
// the draw of a token; the row is a cluster's of blocks of 1024 threads.
#pragma once
#include "cluster.cuh"
#include "logits.cuh"

namespace {
constexpr int SEGMENTS = 512, LIST = 2048, BINS = 1024;

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
  uint32_t bound[8], least[8];  // of the blocks: a key that enough of their tokens have, the key of the lowest finite logit
  u64 found, upto, sums[3];
  double before;
  int filled, chosen, last, edges[4];
  uint32_t lowest;
};

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

// Adds a lane's logits whose bits are set to the block's list.
__device__ __forceinline__ void append(Shared& s, int i, const float (&x)[4], unsigned in) {
  if (!__any_sync(~0u, in)) return;
  const int lane = threadIdx.x % 32, n = __popc(in);
  int upto = n;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int y = __shfl_up_sync(~0u, upto, o);
    if (lane >= o) upto += y;
  }
  int at = lane == 31 ? atomicAdd(&s.filled, upto) : 0;
  at = __shfl_sync(~0u, at, 31) + upto - n;
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (in >> j & 1) {
      if (at < LIST) s.own.list[at] = (u64)key_of(x[j]) << 32 | (uint32_t)~(i + j);
      at++;
    }
}
// Sorts the lists of all blocks into one; its length, above LIST where there is no room.
template <class T> __device__ __forceinline__ int merge(Shared& s, const Row<T>& z) {
  const int tid = threadIdx.x, lane = tid % 32;
  cluster_meet();
  int upto = lane < z.blocks ? *cluster_peer(&s.filled, lane) : 0;
#pragma unroll
  for (int o = 1; o < 8; o *= 2) {
    const int y = __shfl_up_sync(~0u, upto, o);
    if (lane >= o) upto += y;
  }
  const int n = __shfl_sync(~0u, upto, 7);
  int size = 64;
  while (size < min(n, LIST)) size *= 2;
  for (int i = tid; i < size; i += THREADS) {
    int rank = 0, before = 0;
#pragma unroll
    for (int r = 0; r < 7; r++)
      if (const int end = __shfl_sync(~0u, upto, r); i >= end) rank = r + 1, before = end;
    s.list[i] = i < n ? cluster_peer(s.own.list, rank)[i - before] : 0;
  }
  cluster_meet();
  if (n <= LIST) sort(s.list, size);
  return n;
}

// Gathers and sorts what is kept of the logits from low to high; their number, above LIST where there is no room.
template <class T> __device__ __noinline__ int gather(Shared& s, const Row<T>& row, const Kept& kept, float low, float high) {
  const Row<T> z = row;
  const Kept k = kept;
  if (threadIdx.x == 0) s.filled = 0;
  __syncthreads();
  z.each4([&](int, int i, const float (&x)[4]) {
    unsigned in = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) in |= (x[j] >= low && x[j] <= high && k.has(x[j], i + j) ? 1u : 0u) << j;
    append(s, i, x, in);
  });
  return merge(s, z);
}

// The sum of a number of every block.
template <class T, class N> __device__ __forceinline__ u64 of_all(const Row<T>& z, N* mine) {
  N part[8];
#pragma unroll
  for (int r = 0; r < 8; r++) part[r] = r < z.blocks ? *cluster_peer(mine, r) : 0;
  u64 sum = 0;
#pragma unroll
  for (int r = 0; r < 8; r++) sum += part[r];
  return sum;
}

// The sum of the measures of what is kept of the logits from low to high in the thread's bin.
template <bool WEIGHTS, class T> __device__ __noinline__ u64 fill(Shared& s, const Row<T>& row, const Kept& kept, const Bins& bins, float low, float high) {
  const int tid = threadIdx.x, lane = tid % 32;
  const Row<T> z = row;
  const Kept k = kept;
  const Bins by = bins;
  s.own.low[tid] = s.own.high[tid] = 0;
  __syncthreads();
  auto add = [&](int bin, u64 m) {
    const uint32_t old = atomicAdd(s.own.low + bin, (uint32_t)m), more = (uint32_t)(m >> 32) + (old + (uint32_t)m < old);
    if (more) atomicAdd(s.own.high + bin, more);
  };
  z.each4([&](int, int i, const float (&x)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const u64 m = x[j] >= low && x[j] <= high && k.has(x[j], i + j) ? k.template measure<WEIGHTS>(x[j]) : 0;
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
  const u64 sum = ((u64)of_all(z, s.own.high + tid) << 32) + of_all(z, s.own.low + tid);
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
  z.each4([&](int segment, int i, const float (&x)[4]) {
    int n = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) n += x[j] == b.logit;
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
}  // namespace
