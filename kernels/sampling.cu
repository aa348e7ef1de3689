// Draws the next token of each request from its logits, by the rules of the native body: repetition penalty, temperature,
// top-k, top-p, min-p, then one draw from the tokens that are left, likeliest first (all of them in the order of their ids
// when nothing cuts). The draw is Philox4x32-10 of (number of the token; seed), so the same seed gives the same text wherever
// the sums of weights do not fall within rounding of each other. Philox: Salmon et al., SC 2011.
//
// A cluster of blocks of 1024 threads owns a row, a warp segments of 512 tokens (more where V is above 262144). One pass finds
// each segment's likeliest token and its weights' float64 sum relative to that. Nothing cuts: the sums are scaled and added in
// the order of the segments, a warp walks the one that holds the draw. Cuts: weights are whole numbers of 2^-shift, whose sums
// do not depend on their order, so nothing depends on how many blocks there are or which of these ways a row goes:
// - A logit that a sufficient number of threads reach by their largest ones is a bound; what is not below it, up to 2048 tokens,
//   is gathered and sorted by (logit, id).
// - Where these are not enough (top-k above 512, a flat distribution) one pass outlines the weights in 1024 bins of equal steps
//   of the logit, and says in which ones top-p's border and the draw lie; a second one sums what is in front of them and gathers
//   their tokens. top-k above 512 first finds its own border, by counts.
// - Where the outline does not do (ties, all tokens within a bin): borders.cuh, bin by bin to single keys.
// A request whose number is below 0 draws nothing and gets -1, a NaN answers -2, a largest logit that is infinite -3. Every row is
// independent of its batch. Logits are read in packs of four where rows are aligned. V up to 4194304. Shared memory: 42 KB;
// local memory: 400 bytes. Any arch; clusters on sm_90a.
#include "borders.cuh"

namespace {
constexpr int FEW = 512;

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

// The thread's bin as a sum of whole numbers: of each token its weight relative to the heaviest that its bin can hold, times
// `whole`. step: the logarithm of the weights at a bin's ends.
template <class T> __device__ __noinline__ uint32_t outline(Shared& s, const Row<T>& row, const Kept& kept, const Bins& bins, float step, float whole) {
  const int tid = threadIdx.x, lane = tid % 32, id = kept.id;
  const Bins by = bins;
  const Row<T> z = row;
  const float floor = kept.floor;
  s.own.low[tid] = 0;
  __syncthreads();
  z.each4([&](int, int i, const float (&x)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float at = fminf((by.top - x[j]) * by.scale, BINS), y = step * (at - fminf(floorf(at), BINS - 1));
      const int bin = by.of(x[j]);
      const bool in = x[j] > -INFINITY && (x[j] > floor || x[j] == floor && i + j <= id);
      const uint32_t q = in ? (uint32_t)(whole * (1.f + y * (-1.f + y * (.5f - y * .16666667f))) + .5f) : 0;
      const unsigned some = __ballot_sync(~0u, in);
      if (!some) continue;
      const int leader = __ffs(some) - 1;
      if (__all_sync(~0u, bin == __shfl_sync(~0u, bin, leader) || !in)) {
        const uint32_t sum = __reduce_add_sync(~0u, q);
        if (lane == leader) atomicAdd(s.own.low + bin, sum);
      } else if (in) {
        atomicAdd(s.own.low + bin, q);
      }
    }
  });
  cluster_meet();
  const uint32_t sum = of_all(z, s.own.low + tid);
  cluster_meet();
  return sum;
}

// Gathers what is kept in the bins from e[0] to e[1] and from e[2] to e[3]. s.sums: the measures in front of e[0], in front of
// e[2], and of all that weighs at least least.
template <class T> __device__ __noinline__ int weigh(Shared& s, const Row<T>& row, const Kept& kept, const Bins& bins, int4 e, double least) {
  const Kept k = kept;
  const Bins by = bins;
  const Row<T> z = row;
  u64 sums[3] = {0, 0, 0};
  if (threadIdx.x == 0) s.filled = 0;
  if (threadIdx.x < 3) s.sums[threadIdx.x] = 0;
  __syncthreads();
  z.each4([&](int, int i, const float (&x)[4]) {
    unsigned in = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (!(x[j] > -INFINITY && k.has(x[j], i + j))) continue;
      const int bin = by.of(x[j]);
      const double w = weight(x[j], k.top, k.rate);
      const u64 m = __double2ull_rn(w * k.unit);
      if (bin < e.x) sums[0] += m;
      if (bin < e.z) sums[1] += m;
      if (w >= least) sums[2] += m;
      in |= (bin >= e.x && bin <= e.y || bin >= e.z && bin <= e.w ? 1u : 0u) << j;
    }
    __syncwarp();
    append(s, i, x, in);
  });
#pragma unroll
  for (int i = 0; i < 3; i++) {
#pragma unroll
    for (int o = 16; o; o >>= 1) sums[i] += __shfl_xor_sync(~0u, sums[i], o);
    if (threadIdx.x % 32 == 0) atomicAdd(s.sums + i, sums[i]);
  }
  const int n = merge(s, z);  // the blocks have met, and stay until the next time that they meet
  return n;
}

// The token by two passes: an outline of the weights in bins that says in which ones the borders are, then sums of all in front of
// these, and their tokens. -1 where the outline is not fine enough, or the tokens are too many; what it says is checked.
template <class T> __device__ __noinline__ int draw_between(Shared& s, const Row<T>& z, const Draw& d, const Kept& k, const Bins& by, double mass, bool cut_k, bool cut_p) {
  const int tid = threadIdx.x;
  const double width = 1. / (double)by.scale;  // of a bin
  const float step = (float)(width / (double)d.temperature);
  if (!(step <= .04f) || cut_k && cut_p && d.min_p > 0) return -1;
  const int bits = min(13, __clz(z.V) - 1);
  const double whole = (double)(1 << bits), off = .55 / whole + 3e-5, high = 1 + off, low = 1 - off;
  const uint32_t q = outline(s, z, k, by, step, (float)whole);
  double all;
  const double at = (double)q / whole * weight((float)-tid, 0., width * k.rate), upto = scan(at, s.warps.real, all);
  if (tid < 4) s.edges[tid] = BINS - 1;
  if (tid == 0) s.filled = 0;
  ((double*)s.list)[tid] = upto;
  __syncthreads();
  double least = all * low, most = all * high;  // between them is the sum of what is left
  if (cut_p) {
    const double share = d.top_p * (cut_k ? all : mass), from = share * (cut_k ? low : 1 - 1e-9), to = share * (cut_k ? high : 1 + 1e-9);
    if (upto * high >= from) atomicMin(s.edges + 2, tid);
    if (upto * low >= to) atomicMin(s.edges + 3, tid);
    __syncthreads();
    least = fmin(least, from), most = fmin(most, to + weight((float)-s.edges[2], 0., width * k.rate));
  }
  if (d.min_p > 0) {
    const int bin = (int)fmin(-log((double)d.min_p) * d.temperature / width, (double)BINS);
    const double* sums = (const double*)s.list;
    least = fmin(least, bin > 1 ? sums[min(bin, BINS) - 2] * low : 0), most = fmin(most, sums[min(bin + 1, BINS - 1)] * high);
  }
  const double u = (double)random53(d) / 9007199254740992.;
  if (upto * high >= u * least) atomicMin(s.edges, tid);
  if (upto * low >= u * most + 1e-9) atomicMin(s.edges + 1, tid);
  __syncthreads();
  const int4 e = make_int4(s.edges[0], s.edges[1], cut_p ? s.edges[2] : BINS, s.edges[3]);
  if (tid >= e.x && tid <= e.y || tid >= e.z && tid <= e.w) atomicAdd(&s.filled, (int)min((u64)LIST, (u64)(q >> bits)));
  __syncthreads();
  const bool crowded = s.filled > LIST;
  __syncthreads();
  if (crowded) return -1;
  const int n = weigh(s, z, k, by, e, d.min_p);
  u64 sums[3];
#pragma unroll
  for (int i = 0; i < 3; i++) sums[i] = of_all(z, s.sums + i);
  cluster_meet();
  if (n > LIST) return -1;
  u64 m[2], total, left = sums[2];
  int bin[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float x = logit_of(s.list[min(2 * tid + i, LIST - 1)] >> 32);
    m[i] = 2 * tid + i < n ? k.template measure<true>(x) : 0;
    bin[i] = 2 * tid + i < n ? by.of(x) : 0;
  }
  // Where the sum from the bin of `from` on, and what is in front of it, reaches the target.
  auto reached = [&](int from, u64 before, u64 target) {
    u64 v[2];
#pragma unroll
    for (int i = 0; i < 2; i++) v[i] = bin[i] >= from ? m[i] : 0;
    const u64 to = before + scan(v[0] + v[1], s.warps.whole, total), middle = to - v[1];
    if (tid == 0) s.chosen = -1;
    __syncthreads();
    if (to >= target && middle - v[0] < target && before < target) s.chosen = 2 * tid + (middle < target), s.upto = middle < target ? to : middle;
    __syncthreads();
    const int place = s.chosen;
    __syncthreads();
    return place;
  };
  if (cut_p) {
    const u64 target = max(1ull, (u64)ceil((double)d.top_p * (cut_k ? (double)left : mass * k.unit)));
    if (reached(e.z, sums[1], target) >= 0) {
      left = min(left, s.upto);
    } else if (d.min_p > 0 || target <= left) {
      return -1;
    }
  }
  const int place = reached(e.x, sums[0], __umul64hi(random53(d) << 11, left) + 1);
  return place < 0 ? -1 : (int)~(uint32_t)s.list[place];
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
  const int token = draw_between(s, z, d, k, by, mass, cut_k, cut_p);
  if (token >= 0) return token;
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
    // What enough of the block's threads have: together the blocks have as much as is wanted, or half of their threads.
    uint32_t bound = 0;
    if (few) {
      const int want = ((cut_k ? d.top_k : min(FEW, 16 * z.segments())) + z.blocks - 1) / z.blocks;
      const uint32_t key = key_of(ends.x);
#pragma unroll 1
      for (uint32_t bit = 1u << 31; bit >= 1 << 12; bit >>= 1)
        if (__syncthreads_count(key >= (bound | bit)) >= want) bound |= bit;
    }
    __syncthreads();
    if (tid < z.blocks) {
      cluster_peer(s.bound, tid)[z.rank] = bound;
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
  uint32_t bound = 0xffffffffu, lowest = 0xffffffffu;
  for (int r = 0; r < z.blocks; r++) bound = min(bound, s.bound[r]), lowest = min(lowest, s.least[r]);
  bound = max(bound, LOWEST);
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
