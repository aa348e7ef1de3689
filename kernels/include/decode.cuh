// Decode attention: the body that attention_decode.cu (keys and values in the type of q) and attention_decode_e4m3.cu (E4M3
// codes with a step a kv head) share. See attention_decode.cu for what a block and a warp own.
#pragma once
#include "e4m3.cuh"
#include "grid.cuh"
#include "mma.cuh"

namespace {
constexpr int WARPS = 4, THREADS = 32 * WARPS, TILE = 16, HEADS = 8;
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
enum Layout { DENSE, PAGED, GATHER };

struct Params {
  void* out;           // [B,Hq,d], packed
  float* lse;          // [B,Hq] or null
  const void* q;       // [B,Hq,d], packed
  const void* k;       // dense [B,L,Hk,d] by strides, or the pool [pages,page,Hk,d]
  const void* v;
  const int* lengths;        // dense: [B]
  const int* page_indptr;    // paged: [B+1], in pages
  const int* page_indices;   // paged
  const int* last_page_len;  // paged: [B]
  const uint8_t* mask;       // [B,mask_stride], nonzero keeps, or null
  const void* new_k;         // paged: [B,Hk,d] or null
  const void* new_v;
  const float* sinks;        // [Hq], logits that join the denominator, or null
  const int* written;        // paged: [writes], slots of the pools that launches in front may write, or null: any; negative: none
  const float* k_steps;      // [Hk], of E4M3
  const float* v_steps;
  float* scratch;            // [B][max_splits][Hk][tiles] of sums [rows][D], then of maximum and denominator [rows up to 4][2]
  int* ticket;               // 0 before and after: the items taken beyond one a block
  long request_stride, token_stride, head_stride;  // elements
  long mask_stride;
  int batch, hq, hk, d, page_log2, window;  // d <= D: the kernel's missing elements are zeros; window: tokens seen besides the own one, or -1
  int max_splits, early, writes, ahead;  // early: no launch in front writes lengths or the page table; writes: up to 32; ahead: no decode is behind
  float scale, softcap;
};

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 16 bytes that are read once: the first to leave L2.
__device__ __forceinline__ void copy_async16_once(uint32_t dst, const void* src, bool live) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(dst), "l"(src), "r"(live ? 16 : 0), "l"(policy) : "memory");
}

// A store that leaves L2 last.
__device__ __forceinline__ void store_kept(float* to, float x) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(to), "f"(x), "l"(policy) : "memory");
}

// Tokens of a chunk, by the live tokens of a request alone.
__device__ __forceinline__ int chunk_of(int tokens) {
  const int c = ((tokens + 11) / 12 + 63) / 64 * 64;
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
  if (d < p.d) ((T*)p.out)[((long)b * p.hq + h) * p.d + d] = from_float<T>(l == 0 ? 0.f : sum / l);
  if (p.lse && d == 0) p.lse[(long)b * p.hq + h] = l == 0 ? -INFINITY : (m + log2f(l)) * LN2;
}

// Where an item, the how many-th of the launch, leaves the sums of its rows and their maxima and denominators.
struct Scratch {
  int pairs;  // a multiple of 4: whole sectors
  float* sums;
  float2* states;
  __device__ __forceinline__ Scratch(const Params& p, int d, int rows, long item) {
    const int tiles = (p.hq / p.hk + HEADS - 1) / HEADS;
    pairs = (rows + 3) & ~3;
    sums = p.scratch + item * rows * d;
    states = (float2*)(p.scratch + (long)p.batch * p.max_splits * p.hk * tiles * rows * d) + item * pairs;
  }
};

// The maximum of the four warps, at x[0], x[step] and so on, and what each one's sums count for.
__device__ __forceinline__ void weights(float& m, float (&c)[WARPS], const float* x, int step) {
  m = -INFINITY;
#pragma unroll
  for (int k = 0; k < WARPS; k++) m = fmaxf(m, x[k * step]);
#pragma unroll
  for (int k = 0; k < WARPS; k++) c[k] = m > -INFINITY ? power2(x[k * step] - m) : 1.f;  // without a score all sums are 0, or NaN
}

// One item, as a block sees it.
struct Item {
  int request, head, tile, split, splits;
  int first, end, low;  // tokens; those below low are outside the window
};
}  // namespace

template <class KV, int D, Layout LAYOUT> struct Decode {
  static constexpr int BYTES = D * sizeof(KV), CHUNKS = BYTES / 16, PER = 16 / sizeof(KV);
  static constexpr bool SWIZZLED = CHUNKS % 8 == 0 || CHUNKS == 4;
  static constexpr int ROW = SWIZZLED ? BYTES : BYTES + 16, STAGE = 2 * TILE * ROW;
  // Where 16 bytes of a row lie: eight rows read at one chunk meet eight different banks.
  static __device__ __forceinline__ int place(int row, int chunk) {
    return row * ROW + (SWIZZLED ? chunk ^ (CHUNKS == 4 ? row >> 1 & 3 : row & 7) : chunk) * 16;
  }
  const Params& p;
  int* starts;   // [B+1] prefix sum of splits
  int* lows;     // [B] first token in the window
  int* lengths;  // [B]
  int group, tiles, items;

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

  // Where the loads of a warp stand: the how many-th item of the block, its index, and a tile of it. page is the page id of
  // the tile (of this lane's row when gathering), fetched one tile early. A cursor waits when the block does not know yet
  // which item comes next.
  struct Cursor {
    Item w;
    int nth, index, token, page;
    bool waits;
  };
  __device__ void settle(Cursor& c, int warp, const int* tickets, int known) const {  // to the first tile at or behind c that exists
    while (c.token >= c.w.end) {
      c.waits = c.nth + 1 > known;
      if (c.waits) return;
      c.index = tickets[++c.nth & 3];
      if (c.index >= items) return;
      c.w = item(c.index);
      c.token = c.w.first + warp * TILE;
    }
    if (LAYOUT == DENSE) return;
    const int row = LAYOUT == PAGED ? c.token : min(c.token + (int)(threadIdx.x % 16), c.w.end - 1);
    c.page = p.page_indices[p.page_indptr[c.w.request] + (row >> p.page_log2)];
  }

  // The slot in the pools of a tile's first token.
  __device__ int place_of(const Cursor& c) const { return (c.page << p.page_log2) + (c.token & ((1 << p.page_log2) - 1)); }

  __device__ void issue(const Cursor& c, uint32_t stage) const {
    constexpr int PARTS = TILE * CHUNKS / 32;
    const int lane = threadIdx.x % 32, in_page = (1 << p.page_log2) - 1;
    const int slot = (c.page << p.page_log2) + ((c.token + lane % 16) & in_page);  // of this lane's row, when gathering
    long at = c.w.head * p.head_stride;                                            // of the tile's first row otherwise
    if (LAYOUT == DENSE) at += c.w.request * p.request_stride + (long)c.token * p.token_stride;
    if (LAYOUT == PAGED) at += (((long)c.page << p.page_log2) + (c.token & in_page)) * p.token_stride;
    const KV* k = (const KV*)p.k + at;
    const KV* v = (const KV*)p.v + at;
    const bool whole = c.token >= c.w.low && c.token + TILE <= c.w.end && p.d == D && !p.mask && !(p.new_k && c.token + TILE >= lengths[c.w.request]);
    if (whole) {
#pragma unroll
      for (int i = 0; i < PARTS; i++) {
        const int part = i * 32 + lane, row = part / CHUNKS, chunk = part % CHUNKS;
        const long offset = (LAYOUT == GATHER ? __shfl_sync(~0u, slot, row) * p.token_stride : row * p.token_stride) + chunk * PER;
        copy_async16_once(stage + place(row, chunk), k + offset, true);
        copy_async16_once(stage + TILE * ROW + place(row, chunk), v + offset, true);
      }
      return;
    }
    const int last = p.new_k ? lengths[c.w.request] - 1 : -1;
#pragma unroll 4
    for (int i = 0; i < PARTS; i++) {
      const int part = i * 32 + lane, row = part / CHUNKS, chunk = part % CHUNKS, token = c.token + row;
      const long from = at + (LAYOUT == GATHER ? __shfl_sync(~0u, slot, row) : row) * p.token_stride;
      bool live = token < c.w.end && token >= c.w.low;
      live = live && chunk * PER < p.d;
      if (live && p.mask) live = p.mask[c.w.request * p.mask_stride + token];
      const KV* ks = (const KV*)p.k + (live ? from + chunk * PER : 0);
      const KV* vs = (const KV*)p.v + (live ? from + chunk * PER : 0);
      if (LAYOUT != DENSE && sizeof(KV) == 2 && token == last && live) {
        const long source = ((long)c.w.request * p.hk + c.w.head) * p.d + chunk * PER;
        const KV* nk = (const KV*)p.new_k + source;
        const KV* nv = (const KV*)p.new_v + source;
        if (c.w.tile == 0) {
          *(uint4*)ks = *(const uint4*)nk;
          *(uint4*)vs = *(const uint4*)nv;
        }
        ks = nk, vs = nv;
      }
      copy_async16_once(stage + place(row, chunk), ks, live);
      copy_async16_once(stage + TILE * ROW + place(row, chunk), vs, live);
    }
  }
};

// The products of a warp: keys (16 tokens by D) with up to 8 queries, and values with the weights. Columns (heads) 2t and
// 2t+1 of each accumulator; o[i] holds elements 16i + element(0, g) and 16i + element(1, g) of both.
template <class T, class KV, int D, Layout LAYOUT> struct Products {
  using W = Decode<KV, D, LAYOUT>;
  uint32_t qf[D / 16][2];
  float scale[2];  // of the scores of both columns, base 2
  static __device__ __forceinline__ int element(int half, int g) { return g + 8 * half; }

  __device__ __forceinline__ void query(const Params& p, const T* q, bool live, int) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      qf[j][0] = live && j * 16 < p.d ? *(const uint32_t*)(q + j * 16 + 2 * t) : 0;
      qf[j][1] = live && j * 16 + 8 < p.d ? *(const uint32_t*)(q + j * 16 + 2 * t + 8) : 0;
    }
    scale[0] = scale[1] = p.scale * LOG2E;
  }
  __device__ __forceinline__ void scores(float (&s)[4], uint32_t stage) const {
    const int lane = threadIdx.x % 32;
    float r[4] = {};  // a second chain
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      uint32_t a[4];  // tokens 0-7 and 8-15 at d 0-7, then at d 8-15
      ldmatrix4(a, stage + W::place(lane & 15, 2 * j + (lane >> 4)));
      mma16816<T>(j % 2 ? r : s, a, qf[j][0], qf[j][1]);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) s[e] = (s[e] + r[e]) * scale[e % 2];
  }
  __device__ __forceinline__ void values(float (&o)[D / 16][4], const float (&s)[4], uint32_t stage) const {
    const int lane = threadIdx.x % 32;
    const uint32_t p0 = transpose8(pack2<T>(s[0], s[1])), p1 = transpose8(pack2<T>(s[2], s[3]));
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      uint32_t a[4];  // tokens 0-7 at d 0-7 and 8-15, then tokens 8-15
      ldmatrix4_trans(a, stage + TILE * W::ROW + W::place((lane & 7) + (lane >> 4) * 8, 2 * i + (lane >> 3 & 1)));
      mma16816<T>(o[i], a, p0, p1);
    }
  }
};

// With codes both products are in f16, which holds every value of E4M3. Four neighbours of a row arrive in one register: the
// sums over d run in another order, and o[i] holds neighbours.
template <class T, int D, Layout LAYOUT> struct Products<T, e4m3, D, LAYOUT> {
  using W = Decode<e4m3, D, LAYOUT>;
  uint32_t qf[D / 16][2];
  float scale[2];
  static __device__ __forceinline__ int element(int half, int g) { return 2 * g + half; }

  static __device__ __forceinline__ uint32_t widen(uint32_t codes) {
    const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)codes, __NV_E4M3);
    return *reinterpret_cast<const uint32_t*>(&h);
  }
  // bf16 has a wider range than f16: each query is taken times a power of two that puts its largest element below 2.
  __device__ __forceinline__ void query(const Params& p, const T* q, bool live, int head) {
    const int t = threadIdx.x % 4;
    float top = 0;
    uint2 x[D / 16];  // elements 4t..4t+3 of each 16
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      x[j] = live && j * 16 < p.d ? *(const uint2*)(q + j * 16 + 4 * t) : make_uint2(0, 0);
#pragma unroll
      for (int e = 0; e < 4; e++) top = fmaxf(top, fabsf(to_float(reinterpret_cast<const T*>(x + j)[e])));
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const int exponent = top > 0 && top < INFINITY ? (int)(__float_as_uint(top) >> 23) - 127 : 0;
    const float down = exp2f(-exponent), up = exp2f(exponent) * p.scale * LOG2E * p.k_steps[head];
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const T* y = reinterpret_cast<const T*>(x + j) + 2 * e;
        qf[j][e] = pack2<f16>(to_float(y[0]) * down, to_float(y[1]) * down);
      }
    scale[0] = __shfl_sync(~0u, up, 8 * t);
    scale[1] = __shfl_sync(~0u, up, 8 * t + 4);
  }
  __device__ __forceinline__ void scores(float (&s)[4], uint32_t stage) const {
    const int lane = threadIdx.x % 32;
    float r[4] = {};
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
      uint32_t a[4];  // tokens 0-7 and 8-15 at d 0-15, then at d 16-31
      ldmatrix4(a, stage + W::place(lane & 15, 2 * j + (lane >> 4)));
      const uint32_t x[4] = {widen(a[0] & 0xffff), widen(a[1] & 0xffff), widen(a[0] >> 16), widen(a[1] >> 16)};
      const uint32_t y[4] = {widen(a[2] & 0xffff), widen(a[3] & 0xffff), widen(a[2] >> 16), widen(a[3] >> 16)};
      mma16816<f16>(s, x, qf[2 * j][0], qf[2 * j][1]);
      mma16816<f16>(r, y, qf[2 * j + 1][0], qf[2 * j + 1][1]);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) s[e] = (s[e] + r[e]) * scale[e % 2];
  }
  __device__ __forceinline__ void values(float (&o)[D / 16][4], const float (&s)[4], uint32_t stage) const {
    const int lane = threadIdx.x % 32;
    const uint32_t p0 = transpose8(pack2<f16>(s[0], s[1])), p1 = transpose8(pack2<f16>(s[2], s[3]));
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
      uint32_t a[4];  // tokens 0-7 and 8-15 at d 0-15, then at d 16-31: two tokens at d 2g and 2g+1
      ldmatrix4_trans(a, stage + TILE * W::ROW + W::place(lane & 15, 2 * i + (lane >> 4)));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint32_t u = a[2 * h], v = a[2 * h + 1];
        const uint32_t x[4] = {widen(__byte_perm(u, 0, 0x4420)), widen(__byte_perm(u, 0, 0x4431)), widen(__byte_perm(v, 0, 0x4420)), widen(__byte_perm(v, 0, 0x4431))};
        mma16816<f16>(o[2 * i + h], x, p0, p1);
      }
    }
  }
};

template <class T, class KV, int D, int STAGES, Layout LAYOUT>
__device__ __forceinline__ void decode(const Params& p) {
  using W = Decode<KV, D, LAYOUT>;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ int tickets[4];  // the items of the block, by their number modulo 4
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  constexpr int LINE = D + 4;
  const int group = p.hq / p.hk, rows = min(group, HEADS);
  float* meet = reinterpret_cast<float*>(shared + WARPS * STAGES * W::STAGE);  // [WARPS][rows][LINE]
  int* table = reinterpret_cast<int*>(meet + WARPS * rows * LINE);
  grid_launch();
  if (!p.early) grid_block();
  W work(p, table);
  work.prefix();
  // Of the first item the tiles before one that launches in front write are on their way before these have ended.
  const bool settled = LAYOUT == PAGED && p.early && p.written;
  const int slot = settled && lane < p.writes ? p.written[lane] : -1;
  if (!settled) grid_block();
  const bool draws = work.items > (int)gridDim.x;
  // The item of a ticket; -1 draws none.
  auto item_of = [&](int drawn) {
    if (drawn == work.items - 1) *p.ticket = 0;  // every block has drawn one that no item is left for
    return drawn < 0 ? work.items : drawn + (int)gridDim.x;
  };
  int drawn = -1;

  const uint32_t ring = shared_address(shared) + warp * STAGES * W::STAGE;
  typename W::Cursor load;
  load.nth = 0, load.index = blockIdx.x, load.waits = false;
  if (load.index < work.items) {
    load.w = work.item(load.index);
    load.token = load.w.first + warp * TILE;
    work.settle(load, warp, tickets, 0);
  }
  int filled = 0, used = 0, ahead = 0;  // stages, modulo STAGES; tiles asked for and not yet used
  auto advance = [&](int known, bool waited) {
#pragma unroll 1
    while (ahead < STAGES && load.index < work.items) {
      if (load.waits) work.settle(load, warp, tickets, known);
      if (load.waits || load.index >= work.items) break;
      if (!waited && __any_sync(~0u, (unsigned)(slot - work.place_of(load)) < TILE)) break;
      work.issue(load, ring + filled * W::STAGE);
      copy_commit();
      filled = filled + 1 == STAGES ? 0 : filled + 1;
      ahead++;
      load.token += WARPS * TILE;
      work.settle(load, warp, tickets, known);
    }
  };
  // The first tile asked for has arrived.
  auto arrive = [&]() {
    if (STAGES > 3 && ahead > 3) copy_wait<3>();
    else if (STAGES > 2 && ahead > 2) copy_wait<2>();
    else if (ahead > 1) copy_wait<1>();
    else copy_wait<0>();
    ahead--;
    __syncwarp();
  };
#pragma unroll 1
  for (int waited = !settled; waited < 2; waited++) {
    if (waited && threadIdx.x == 0 && draws) drawn = atomicAdd(p.ticket, 1);
    advance(0, waited);
    if (!waited) grid_block();
  }
  if (threadIdx.x == 0) tickets[0] = blockIdx.x, tickets[1] = item_of(drawn);
  __syncthreads();

#pragma unroll 1
  for (int nth = 0, index = blockIdx.x; index < work.items; index = tickets[++nth & 3]) {
    // A ticket for the item behind the next.
    drawn = threadIdx.x == 0 && draws && tickets[(nth + 1) & 3] < work.items ? atomicAdd(p.ticket, 1) : -1;
    const Item w = work.item(index);
    if (load.waits) work.settle(load, warp, tickets, nth + 1);  // a warp without a tile in the item keeps up too
    const int head0 = w.head * group + w.tile * HEADS, live_rows = min(HEADS, group - w.tile * HEADS);
    Products<T, KV, D, LAYOUT> products;
    products.query(p, (const T*)p.q + ((long)w.request * p.hq + head0 + g) * p.d, g < live_rows, w.head);
    float o[D / 16][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < D / 16; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;

#pragma unroll 1
    for (int token = w.first + warp * TILE; token < w.end; token += WARPS * TILE) {
      advance(nth + 1, true);
      arrive();
      const uint32_t stage = ring + used * W::STAGE;
      used = used + 1 == STAGES ? 0 : used + 1;
      float s[4];
      products.scores(s, stage);
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
      products.values(o, s, stage);
      __syncwarp();
    }
#pragma unroll
    for (int k = 4; k < 32; k *= 2) {
      l[0] += __shfl_xor_sync(~0u, l[0], k);
      l[1] += __shfl_xor_sync(~0u, l[1], k);
    }

    // The four warps meet.
    const float step = sizeof(KV) == 1 ? p.v_steps[w.head] : 1.f;
    __syncthreads();  // the last item's readers are done
    if (threadIdx.x == 0) tickets[(nth + 2) & 3] = item_of(drawn);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = 2 * t + e;
      if (row < live_rows) {
        float* line = meet + (warp * rows + row) * LINE;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
          line[16 * i + products.element(0, g)] = sizeof(KV) == 1 ? o[i][e] * step : o[i][e];
          line[16 * i + products.element(1, g)] = sizeof(KV) == 1 ? o[i][2 + e] * step : o[i][2 + e];
        }
        if (g == 0) line[D] = m[e], line[D + 1] = l[e];
      }
    }
    __syncthreads();
    // Stores of whole sectors: L2 need not read what they leave out.
    const Scratch to(p, D, rows, ((w.request * p.max_splits + w.split) * p.hk + w.head) * work.tiles + w.tile);
    for (int i = threadIdx.x; i < live_rows * D; i += blockDim.x) {
      const int row = i / D, d = i % D;
      float m, c[WARPS], sum = 0;
      weights(m, c, meet + row * LINE + D, rows * LINE);
#pragma unroll
      for (int k = 0; k < WARPS; k++) sum += meet[(k * rows + row) * LINE + d] * c[k];
      if (w.splits == 1) {
        float l = 0;
#pragma unroll
        for (int k = 0; k < WARPS; k++) l += meet[(k * rows + row) * LINE + D + 1] * c[k];
        finish<T, D>(p, w.request, head0 + row, d, sum, m, l);
      } else {
        store_kept(to.sums + i, sum);
      }
    }
    if (w.splits > 1 && threadIdx.x < to.pairs) {
      const int row = threadIdx.x;
      float m = -INFINITY, c[WARPS], l = 0;
      if (row < live_rows) {
        weights(m, c, meet + row * LINE + D, rows * LINE);
#pragma unroll
        for (int k = 0; k < WARPS; k++) l += meet[(k * rows + row) * LINE + D + 1] * c[k];
      }
      to.states[row] = make_float2(m, l);
    }
  }
  copy_wait<0>();
}

// Block of D threads (a multiple of 32), one for each element of one query head.
template <class T, int D, Layout LAYOUT> __device__ __forceinline__ void merge(const Params& p) {
  constexpr int HELD = 16;  // splits that a thread asks for at once
  const int b = blockIdx.y, h = blockIdx.x, d = threadIdx.x, lane = threadIdx.x % 32;
  const int group = p.hq / p.hk, rows = min(group, HEADS), tiles = (group + HEADS - 1) / HEADS;
  if (p.ahead) grid_launch();
  if (!p.early) grid_block();
  const int splits = span_of<LAYOUT>(p, b).splits;
  grid_block();
  if (!p.ahead) grid_launch();  // not before: blocks of a decode behind this merge would take places beside those in front of it
  if (splits == 1) return;
  const int head = h / group, in_group = h % group;
  const int step = p.hk * tiles;  // items
  const Scratch from(p, D, rows, ((long)b * p.max_splits * p.hk + head) * tiles + in_group / HEADS);
  const float* sums = from.sums + in_group % HEADS * D + d;
  const float2* states = from.states + in_group % HEADS;
  const long over = (long)step * rows * D, past = (long)step * from.pairs;
  float x[HELD];
#pragma unroll
  for (int k = 0; k < HELD; k++) x[k] = k < splits ? sums[k * over] : 0.f;
  float m = -INFINITY;
  for (int k = lane; k < splits; k += 32) m = fmaxf(m, states[k * past].x);
  m = warp_max(m);
  float sum = 0, l = 0;
  for (int k0 = 0; k0 < splits; k0 += 32) {
    const int mine = k0 + lane;
    const float2 e = mine < splits ? states[mine * past] : make_float2(-INFINITY, 0.f);
    const float c = m > -INFINITY ? power2(e.x - m) : 1.f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (k0 + half * HELD >= splits) break;
      if (k0 + half > 0) {
#pragma unroll
        for (int k = 0; k < HELD; k++) x[k] = k0 + half * HELD + k < splits ? sums[(k0 + half * HELD + k) * over] : 0.f;
      }
#pragma unroll
      for (int k = 0; k < HELD; k++) {
        const float ck = __shfl_sync(~0u, c, half * HELD + k);
        sum += x[k] * ck;
        l += __shfl_sync(~0u, e.y, half * HELD + k) * ck;
      }
    }
  }
  finish<T, D>(p, b, h, d, sum, m, l);
  // What the warp has read is of no more use: where there is much of it, L2 need not write it to memory.
  __syncwarp();
  if ((long)splits * p.batch * step * rows * D > 2 << 20)
    for (int k = lane; k < splits; k += 32) asm volatile("discard.global.L2 [%0], 128;" ::"l"(sums - lane + k * over) : "memory");
}
