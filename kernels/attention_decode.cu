// Decode attention: one query token a request against its KV cache, split over the cache; a second kernel merges.
//
// The work is cut into items (request, split, kv head, tile of up to 8 query heads). How a request is split depends on its
// own length alone, never on the batch: chunks of clamp(ceil(length/16) rounded up to 64, 64, 1024) tokens. So a request
// gives the same bits in every batch. A fixed grid of blocks walks the items by stride; each block finds them by a prefix
// sum over the lengths, which it takes from device memory, so a captured graph serves every length.
// A block of 4 warps owns an item; a warp owns every fourth tile of 16 tokens of it (at multiples of 16), with its own ring
// of cp.async stages, running maximum, denominator and output (registers), so the main loop has no block barrier. The ring
// runs ahead across items. The warps' results meet in shared memory and go to the scratch in f32, or, when the request has
// one split, to the output. The merge kernel owns a (request, query head) a block, sums the splits in their order.
// Both products are transposed, so that the 16 rows of mma m16n8k16 are tokens (K Q^T) and elements (V^T P^T) and only the 8
// columns are query heads, padded with zeros; movmatrix turns the scores into the second operand. Tokens outside the
// length, the window or the mask are read as zeros and scored -inf, so what memory holds there never enters.
// Variants: dense; paged, a tile within one page (page of 16 tokens or more); gather, a page id a token (smaller pages).
// Append: with new_k/new_v the last token of each request comes from there and is also written to its page.
// Shared memory: stages * 4 warps * 2 * 16 rows of 2D bytes (swizzled; padded by 16 at D 96 and 192), plus 4 * rows *
// (D + 4) floats and 3B + 2 ints.
// Rows aligned to 16 bytes. Any arch. Papers: Dao 2023 (FlashDecoding), Ye et al. 2025 (FlashInfer).
#include "mma.cuh"

namespace {
constexpr int WARPS = 4, TILE = 16, HEADS = 8;
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
enum Layout { DENSE, PAGED, GATHER };

struct Params {
  void* out;           // [B,Hq,D], packed
  float* lse;          // [B,Hq] or null
  const void* q;       // [B,Hq,D], packed
  const void* k;       // dense [B,L,Hk,D] by strides, or the pool [pages,page,Hk,D]
  const void* v;
  const int* lengths;        // dense: [B]
  const int* page_indptr;    // paged: [B+1], in pages
  const int* page_indices;   // paged
  const int* last_page_len;  // paged: [B]
  const uint8_t* mask;       // [B,mask_stride], nonzero keeps, or null
  const void* new_k;         // paged: [B,Hk,D] or null
  const void* new_v;
  const float* sinks;        // [Hq], logits that join the denominator, or null
  float* scratch;            // [B][max_splits][Hk][tiles][rows][D+4]
  long request_stride, token_stride, head_stride;  // elements
  long mask_stride;
  int batch, hq, hk, page_log2, window;  // window: tokens seen besides the own one, or -1
  int max_splits;
  float scale, softcap;
};

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ int chunk_of(int tokens) {
  const int c = ((tokens + 15) / 16 + 63) / 64 * 64;
  return c < 64 ? 64 : c > 1024 ? 1024 : c;
}

// The tokens of request b: length, first live token, and the multiple of 16 at or below it where tiles start.
struct Span {
  int length, low, base, splits;
};
template <Layout LAYOUT> __device__ __forceinline__ Span span_of(const Params& p, int b) {
  Span s;
  if (LAYOUT == DENSE) {
    s.length = p.lengths[b];
  } else {
    const int pages = p.page_indptr[b + 1] - p.page_indptr[b];
    s.length = pages > 0 ? ((pages - 1) << p.page_log2) + p.last_page_len[b] : 0;
  }
  s.low = p.window >= 0 && s.length - 1 - p.window > 0 ? s.length - 1 - p.window : 0;
  s.base = s.low & ~(TILE - 1);
  const int live = s.length - s.base;
  s.splits = live > 0 ? (live + chunk_of(live) - 1) / chunk_of(live) : 1;
  return s;
}

// out and lse of query head h from the sum, maximum (base 2) and denominator of all its splits.
template <class T, int D>
__device__ __forceinline__ void finish(const Params& p, int b, int h, int d, float sum, float m, float l) {
  if (p.sinks && m > -INFINITY) {
    const float sink = p.sinks[h] * LOG2E, x = fmaxf(m, sink), c = exp2f(m - x);
    sum *= c;
    l = l * c + exp2f(sink - x);
    m = x;
  }
  ((T*)p.out)[((long)b * p.hq + h) * D + d] = from_float<T>(l > 0 ? sum / l : 0.f);
  if (p.lse && d == 0) p.lse[(long)b * p.hq + h] = l > 0 ? (m + log2f(l)) * LN2 : -INFINITY;
}

// One item, as a block sees it.
struct Item {
  int request, head, tile, split, splits;
  int first, end, low;  // tokens; those below low are outside the window
};
}  // namespace

template <class T, int D, Layout LAYOUT> struct Decode {
  static constexpr bool SWIZZLED = D % 64 == 0 && D != 192 || D == 32;
  static constexpr int ROW = SWIZZLED ? D * 2 : D * 2 + 16, STAGE = 2 * TILE * ROW, CHUNKS = D / 8;
  // Where 16 bytes of a row lie: eight rows read at one chunk meet eight different banks.
  static __device__ __forceinline__ int place(int row, int chunk) {
    return row * ROW + (SWIZZLED ? chunk ^ (D == 32 ? row >> 1 & 3 : row & 7) : chunk) * 16;
  }
  const Params& p;
  int* starts;   // [B+1] prefix sum of splits
  int* lows;     // [B] first token in the window
  int* lengths;  // [B]
  int group, tiles, items, stride;

  __device__ Decode(const Params& p, int* table) : p(p), starts(table), lows(table + p.batch + 1), lengths(table + 2 * p.batch + 1) {
    group = p.hq / p.hk;
    tiles = (group + HEADS - 1) / HEADS;
  }

  __device__ void prefix() {
    for (int b = threadIdx.x; b < p.batch; b += blockDim.x) {
      const Span s = span_of<LAYOUT>(p, b);
      lengths[b] = s.length;
      lows[b] = s.low;
      starts[b + 1] = s.splits;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      int carry = 0;
      for (int b0 = 0; b0 < p.batch; b0 += 32) {
        const int b = b0 + threadIdx.x;
        int x = b < p.batch ? starts[b + 1] : 0;
        for (int o = 1; o < 32; o *= 2) {
          const int y = __shfl_up_sync(~0u, x, o);
          if (threadIdx.x >= o) x += y;
        }
        if (b < p.batch) starts[b + 1] = carry + x;
        carry += __shfl_sync(~0u, x, 31);
      }
      if (threadIdx.x == 0) starts[0] = 0;
    }
    __syncthreads();
    items = starts[p.batch] * p.hk * tiles;
  }

  __device__ Item item(int index) const {
    Item w;
    const int per = p.hk * tiles, s = index / per, h = index % per;
    int low = 0, high = p.batch;  // the last request whose start is <= s
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (starts[middle] <= s) low = middle; else high = middle;
    }
    w.request = low;
    w.split = s - starts[low];
    w.splits = starts[low + 1] - starts[low];
    w.head = h / tiles;
    w.tile = h % tiles;
    w.low = lows[low];
    const int n = lengths[low], base = w.low & ~(TILE - 1), c = chunk_of(n - base);
    w.first = base + w.split * c;
    w.end = min(w.first + c, n);
    return w;
  }

  // Where the loads of a warp stand: an item and a tile of it. page is the page id of the tile (of this lane's row when
  // gathering), fetched one tile early.
  struct Cursor {
    Item w;
    int index, token, page;
  };
  __device__ void settle(Cursor& c, int warp) const {  // to the first tile at or behind c that exists
    while (c.token >= c.w.end) {
      c.index += stride;
      if (c.index >= items) return;
      c.w = item(c.index);
      c.token = c.w.first + warp * TILE;
    }
    if (LAYOUT == DENSE) return;
    const int row = LAYOUT == PAGED ? c.token : min(c.token + (int)(threadIdx.x % 16), c.w.end - 1);
    c.page = p.page_indices[p.page_indptr[c.w.request] + (row >> p.page_log2)];
  }

  __device__ void issue(const Cursor& c, uint32_t stage) const {
    constexpr int PARTS = TILE * CHUNKS / 32;
    const int lane = threadIdx.x % 32, in_page = (1 << p.page_log2) - 1;
    const int slot = (c.page << p.page_log2) + ((c.token + lane % 16) & in_page);  // of this lane's row, when gathering
    long at = c.w.head * p.head_stride;                                            // of the tile's first row otherwise
    if (LAYOUT == DENSE) at += c.w.request * p.request_stride + (long)c.token * p.token_stride;
    if (LAYOUT == PAGED) at += (((long)c.page << p.page_log2) + (c.token & in_page)) * p.token_stride;
    const T* k = (const T*)p.k + at;
    const T* v = (const T*)p.v + at;
    const bool whole = c.token >= c.w.low && c.token + TILE <= c.w.end && !p.mask && !(p.new_k && c.token + TILE >= lengths[c.w.request]);
    if (whole) {
#pragma unroll
      for (int i = 0; i < PARTS; i++) {
        const int part = i * 32 + lane, row = part / CHUNKS, chunk = part % CHUNKS;
        const long offset = (LAYOUT == GATHER ? __shfl_sync(~0u, slot, row) * p.token_stride : row * p.token_stride) + chunk * 8;
        copy_async16(stage + place(row, chunk), k + offset, true);
        copy_async16(stage + TILE * ROW + place(row, chunk), v + offset, true);
      }
      return;
    }
    const int last = p.new_k ? lengths[c.w.request] - 1 : -1;
#pragma unroll 4
    for (int i = 0; i < PARTS; i++) {
      const int part = i * 32 + lane, row = part / CHUNKS, chunk = part % CHUNKS, token = c.token + row;
      const long from = at + (LAYOUT == GATHER ? __shfl_sync(~0u, slot, row) : row) * p.token_stride;
      bool live = token < c.w.end && token >= c.w.low;
      if (live && p.mask) live = p.mask[c.w.request * p.mask_stride + token];
      const T* ks = (const T*)p.k + (live ? from + chunk * 8 : 0);
      const T* vs = (const T*)p.v + (live ? from + chunk * 8 : 0);
      if (LAYOUT != DENSE && token == last && live) {
        const long source = ((long)c.w.request * p.hk + c.w.head) * D + chunk * 8;
        const T* nk = (const T*)p.new_k + source;
        const T* nv = (const T*)p.new_v + source;
        if (c.w.tile == 0) {
          store16((T*)ks, load16(nk));
          store16((T*)vs, load16(nv));
        }
        ks = nk, vs = nv;
      }
      copy_async16(stage + place(row, chunk), ks, live);
      copy_async16(stage + TILE * ROW + place(row, chunk), vs, live);
    }
  }
};

template <class T, int D, int STAGES, Layout LAYOUT>
__device__ __forceinline__ void decode(const Params& p) {
  using W = Decode<T, D, LAYOUT>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  constexpr int LINE = D + 4;
  const int group = p.hq / p.hk, rows = min(group, HEADS);
  float* meet = reinterpret_cast<float*>(shared + WARPS * STAGES * W::STAGE);  // [WARPS][rows][LINE]
  int* table = reinterpret_cast<int*>(meet + WARPS * rows * LINE);
  grid_wait();
  W work(p, table);
  work.prefix();
  const uint32_t ring = shared_address(shared) + warp * STAGES * W::STAGE;
  // As many blocks as make every one of them own the same number of items, or one less.
  const int rounds = max(1, (work.items + (int)gridDim.x - 1) / (int)gridDim.x);
  work.stride = max(1, (work.items + rounds - 1) / rounds);
  if (blockIdx.x >= work.stride) return;

  typename W::Cursor load;
  load.index = blockIdx.x;
  if (load.index < work.items) {
    load.w = work.item(load.index);
    load.token = load.w.first + warp * TILE;
    work.settle(load, warp);
  }
  int filled = 0, used = 0;  // stages, modulo STAGES
  auto advance = [&]() {
    if (load.index < work.items) {
      work.issue(load, ring + filled * W::STAGE);
      load.token += WARPS * TILE;
      work.settle(load, warp);
    }
    copy_commit();
    filled = filled + 1 == STAGES ? 0 : filled + 1;
  };
#pragma unroll 1
  for (int i = 0; i < STAGES - 1; i++) advance();
  const float scale2 = p.scale * LOG2E;

#pragma unroll 1
  for (int index = blockIdx.x; index < work.items; index += work.stride) {
    const Item w = work.item(index);
    const int head0 = w.head * group + w.tile * HEADS, live_rows = min(HEADS, group - w.tile * HEADS);
    uint32_t qf[D / 16][2];
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      const T* q = (const T*)p.q + ((long)w.request * p.hq + head0 + g) * D + j * 16 + 2 * t;
      qf[j][0] = g < live_rows ? *(const uint32_t*)q : 0;
      qf[j][1] = g < live_rows ? *(const uint32_t*)(q + 8) : 0;
    }
    // Columns (heads) 2t and 2t+1 of each accumulator: o[i] holds elements 16i+g and 16i+g+8 of both.
    float o[D / 16][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < D / 16; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;

#pragma unroll 1
    for (int token = w.first + warp * TILE; token < w.end; token += WARPS * TILE) {
      advance();
      copy_wait<STAGES - 1>();
      __syncwarp();
      const uint32_t stage = ring + used * W::STAGE;
      used = used + 1 == STAGES ? 0 : used + 1;
      float s[4] = {}, r[4] = {};  // two chains
#pragma unroll
      for (int j = 0; j < D / 16; j++) {
        uint32_t a[4];  // tokens 0-7 and 8-15 at d 0-7, then at d 8-15
        ldmatrix4(a, stage + W::place(lane & 15, 2 * j + (lane >> 4)));
        mma16816<T>(j % 2 ? r : s, a, qf[j][0], qf[j][1]);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) s[e] = (s[e] + r[e]) * scale2;
      if (p.softcap > 0) {
        const float cap = p.softcap * LOG2E, inverse = 1.f / cap;
#pragma unroll
        for (int e = 0; e < 4; e++) s[e] = cap * tanhf(s[e] * inverse);
      }
      if (!(token >= w.low && token + TILE <= w.end && !p.mask)) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int at = token + g + e * 8;
          bool live = at < w.end && at >= w.low;
          if (p.mask && live) live = p.mask[w.request * p.mask_stride + at];
          if (!live) s[2 * e] = s[2 * e + 1] = -INFINITY;
        }
      }
      float x[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
#pragma unroll
      for (int k = 4; k < 32; k *= 2) {
        x[0] = fmaxf(x[0], __shfl_xor_sync(~0u, x[0], k));
        x[1] = fmaxf(x[1], __shfl_xor_sync(~0u, x[1], k));
      }
      if (__any_sync(~0u, x[0] > m[0] || x[1] > m[1])) {
        float c[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          x[e] = fmaxf(x[e], m[e]);
          c[e] = x[e] == -INFINITY ? 1.f : power2(m[e] - x[e]);
          m[e] = x[e];
          l[e] *= c[e];
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++) o[i][0] *= c[0], o[i][1] *= c[1], o[i][2] *= c[0], o[i][3] *= c[1];
      }
      const float b0 = m[0] == -INFINITY ? 0.f : m[0], b1 = m[1] == -INFINITY ? 0.f : m[1];
      s[0] = power2(s[0] - b0), s[2] = power2(s[2] - b0), s[1] = power2(s[1] - b1), s[3] = power2(s[3] - b1);
      l[0] += s[0] + s[2], l[1] += s[1] + s[3];
      const uint32_t p0 = transpose8(pack2<T>(s[0], s[1])), p1 = transpose8(pack2<T>(s[2], s[3]));
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        uint32_t a[4];  // tokens 0-7 at d 0-7 and 8-15, then tokens 8-15
        ldmatrix4_trans(a, stage + TILE * W::ROW + W::place((lane & 7) + (lane >> 4) * 8, 2 * i + (lane >> 3 & 1)));
        mma16816<T>(o[i], a, p0, p1);
      }
      __syncwarp();
    }
#pragma unroll
    for (int k = 4; k < 32; k *= 2) {
      l[0] += __shfl_xor_sync(~0u, l[0], k);
      l[1] += __shfl_xor_sync(~0u, l[1], k);
    }

    // The four warps meet.
    __syncthreads();  // the last item's readers are done
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = 2 * t + e;
      if (row < live_rows) {
        float* line = meet + (warp * rows + row) * LINE;
#pragma unroll
        for (int i = 0; i < D / 16; i++) line[16 * i + g] = o[i][e], line[16 * i + g + 8] = o[i][2 + e];
        if (g == 0) line[D] = m[e], line[D + 1] = l[e];
      }
    }
    __syncthreads();
    float* scratch = p.scratch + ((((long)w.request * p.max_splits + w.split) * p.hk + w.head) * work.tiles + w.tile) * rows * LINE;
    for (int i = threadIdx.x; i < live_rows * D; i += blockDim.x) {
      const int row = i / D, d = i % D;
      float m = -INFINITY, sum = 0, l = 0;
#pragma unroll
      for (int k = 0; k < WARPS; k++) m = fmaxf(m, meet[(k * rows + row) * LINE + D]);
      if (m > -INFINITY) {
#pragma unroll
        for (int k = 0; k < WARPS; k++) {
          const float* line = meet + (k * rows + row) * LINE;
          const float c = power2(line[D] - m);
          sum += line[d] * c;
          l += line[D + 1] * c;
        }
      }
      if (w.splits == 1) {
        finish<T, D>(p, w.request, head0 + row, d, sum, m, l);
      } else {
        scratch[row * LINE + d] = sum;
        if (d == 0) scratch[row * LINE + D] = m, scratch[row * LINE + D + 1] = l;
      }
    }
  }
  copy_wait<0>();
}

// Block of D threads (a multiple of 32), one for each element of one query head.
template <class T, int D, Layout LAYOUT> __device__ __forceinline__ void merge(const Params& p) {
  constexpr int LINE = D + 4;
  const int b = blockIdx.y, h = blockIdx.x, d = threadIdx.x, lane = threadIdx.x % 32;
  const int group = p.hq / p.hk, rows = min(group, HEADS), tiles = (group + HEADS - 1) / HEADS;
  grid_wait();
  const int splits = span_of<LAYOUT>(p, b).splits;
  if (splits == 1) return;
  const int head = h / group, in_group = h % group;
  const long step = (long)p.hk * tiles * rows * LINE;
  const float* base = p.scratch + (long)b * p.max_splits * step + (((long)head * tiles + in_group / HEADS) * rows + in_group % HEADS) * LINE;
  float m = -INFINITY;
  for (int k = lane; k < splits; k += 32) m = fmaxf(m, base[k * step + D]);
  m = warp_max(m);
  float sum = 0, l = 0;
  if (m > -INFINITY) {
    for (int k0 = 0; k0 < splits; k0 += 32) {
      const int mine = k0 + lane;
      const float c = mine < splits ? power2(base[mine * step + D] - m) : 0.f, e = mine < splits ? base[mine * step + D + 1] : 0.f;
      const int n = min(32, splits - k0);
#pragma unroll 8
      for (int k = 0; k < n; k++) {
        const float ck = __shfl_sync(~0u, c, k);
        sum += base[(k0 + k) * step + d] * ck;
        l += __shfl_sync(~0u, e, k) * ck;
      }
    }
  }
  finish<T, D>(p, b, h, d, sum, m, l);
}

#define DECODE(T, D, STAGES, NAME, LAYOUT)                                                                                    \
  extern "C" __global__ void __launch_bounds__(128, D <= 128 ? 3 : 2) attention_decode_##NAME##_##T##_##D(const __grid_constant__ Params p) { \
    decode<T, D, STAGES, LAYOUT>(p);                                                                                          \
  }
#define DECODE_D(T, D, STAGES)                                                                                                \
  DECODE(T, D, STAGES, dense, DENSE)                                                                                          \
  DECODE(T, D, STAGES, paged, PAGED)                                                                                          \
  DECODE(T, D, STAGES, gather, GATHER)                                                                                        \
  extern "C" __global__ void __launch_bounds__(D) attention_decode_merge_dense_##T##_##D(const __grid_constant__ Params p) {  \
    merge<T, D, DENSE>(p);                                                                                                    \
  }                                                                                                                           \
  extern "C" __global__ void __launch_bounds__(D) attention_decode_merge_paged_##T##_##D(const __grid_constant__ Params p) {  \
    merge<T, D, PAGED>(p);                                                                                                    \
  }
#define DECODES(T)                                                                                                            \
  DECODE_D(T, 32, 4)                                                                                                          \
  DECODE_D(T, 64, 4)                                                                                                          \
  DECODE_D(T, 96, 3)                                                                                                          \
  DECODE_D(T, 128, 2)                                                                                                         \
  DECODE_D(T, 192, 2)                                                                                                         \
  DECODE_D(T, 256, 2)
DECODES(bf16)
DECODES(f16)
