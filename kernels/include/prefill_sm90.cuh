// Prefill attention by wgmma: the body that attention_prefill_sm90.cu (keys and values in the type of q, by the copy engine) and
// attention_prefill_sm90_e4m3.cu (E4M3 codes) share. See the first for what a block and a warpgroup own.
#pragma once
#include <type_traits>
#include "epilogue.cuh"
#include "fp8.cuh"
#include "hopper.cuh"

namespace {
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

struct Params {
  void* out;   // packed [T,Hq,D]
  float* lse;  // dense [B,Hq,Lq], ragged [Hq,T], or null
  const int* qo_indptr;   // ragged: [B+1], in tokens
  const int* tile_batch;  // ragged: [tiles]
  const int* tile_index;
  const int* page_indptr;  // ragged: pages
  const int* page_indices;
  const int* last_page_len;
  const float* sinks;  // [Hq] or null
  int* ticket;         // 0 before and after
  int hq, hk, lq, lk, tokens, page_log2, window;
  int causal;
  float scale, softcap;
  int tiles, items;  // of query rows: of a request, ragged of the batch; all of them, for every head
  int section;       // dense: so many heads of a request come before the next ones, their keys and values stay in L2
};

// What a block works on: 128 or 192 rows of a head, and the tiles of keys that they see.
struct Item {
  int head, kv_head, request, q_first, row0, lq, lk, first_page, pages, tile0, tiles, done;  // done: tiles of keys of the block's items before
};

// Where keys and values come from: tensors of the type of q, or pages of E4M3 codes, value = step * code.
struct Maps {
  const CUtensorMap &k, &v;
};
struct Pools {
  const uint8_t *k, *v;           // [tokens of the pool,Hk,D]
  const float *k_steps, *v_steps;  // [Hk]
};

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class T> struct Exponents {  // of two numbers in a word
  static constexpr uint32_t MASK = 0x7f807f80u;
};
template <> struct Exponents<f16> {
  static constexpr uint32_t MASK = 0x7c007c00u;
};

// Warpgroups of 64 rows each, beside the producer.
constexpr int prefill_groups(int d, bool codes) { return d == 64 && !codes ? 3 : 2; }
}  // namespace

#ifdef SEAFAN_HOPPER
// The producer warpgroup over pages of codes: copies 16 codes a thread at a time to a ring of its own, RAW tiles of keys and of
// values in turn, and widens what it copied itself to f16 into the tiles that the tensor cores read. From keys on there are zeros.
// A warp turns 8 rows at a time, so that 8 lanes store to 8 different places of the swizzle.
template <int D, int KEYS, int RAW, class Find, class Begun, class Free, class Filled>
__device__ __forceinline__ void widen_tiles(const Pools& pools, int heads, int head, int keys, int first_key, int tiles, uint32_t ring, const Find& find, const Begun& begun, const Free& free, const Filled& filled) {
  constexpr int COLS = D / 64, ROWS_EACH = KEYS / 32, PIECES = ROWS_EACH * COLS, BYTES = KEYS * D, KB = KEYS * 128;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t own = ring + threadIdx.x * 16;
  auto issue = [&](int n) {
    const uint8_t* from = (n % 2 ? pools.v : pools.k) + head * D + lane / 8 * 16;
    const int key = first_key - n / 2 * KEYS + warp * (KEYS / 4) + lane % 8;
    uint32_t at[ROWS_EACH];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; r++) at[r] = key + r * 8 < keys ? find(key + r * 8) : 0;
#pragma unroll
    for (int i = 0; i < PIECES; i++)
      copy_async16(own + n % RAW * BYTES + i * 2048, from + (uint64_t)at[i / COLS] * (uint32_t)(heads * D) + i % COLS * 64, key + i / COLS * 8 < keys);
  };
#pragma unroll 1
  for (int n = 1 - RAW; n < 2 * tiles; n++) {
    if (n + RAW - 1 < 2 * tiles) issue(n + RAW - 1);
    copy_commit();
    if (n < 0) continue;
    if (n == 0) begun();
    copy_wait<RAW - 1>();
    unsigned char* to = free(n / 2, n % 2) + (warp * (KEYS / 4) + lane % 8) * 128;
    const int first = ((lane / 8 * 2) ^ (lane % 8)) * 16;
    uint32_t codes[PIECES][4];  // all loaded before the first is stored: a load waits for the store before it
#pragma unroll
    for (int i = 0; i < PIECES; i++)
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(codes[i][0]), "=r"(codes[i][1]), "=r"(codes[i][2]), "=r"(codes[i][3]) : "r"(own + n % RAW * BYTES + i * 2048) : "memory");
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
      uint32_t x[8];
#pragma unroll
      for (int j = 0; j < 8; j++) x[j] = fp8_widen<f16>(codes[i][j / 2] >> 16 * (j % 2));
      unsigned char* row = to + i / COLS * 1024 + i % COLS * KB;
      *(uint4*)(row + first) = make_uint4(x[0], x[1], x[2], x[3]);
      *(uint4*)(row + (first ^ 16)) = make_uint4(x[4], x[5], x[6], x[7]);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();  // on together, not lane by lane
    filled(n / 2, n % 2);
  }
}

// Without a branch, whose predicate takes longer.
__device__ __forceinline__ void barrier_arrive_if(bool yes, uint64_t* b) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %0, 0;\n\t@p mbarrier.arrive.shared::cta.b64 _, [%1];\n\t}" ::"r"((int)yes), "r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void give_turn(bool yes, int turn) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %0, 0;\n\t@p bar.arrive %1, 256;\n\t}" ::"r"((int)yes), "r"(turn) : "memory");
}

// A warpgroup turns its 64 rows of the query, BLOCKS tiles `block` bytes apart, from T to f16 where they lie, and notes by what
// their scores are to be multiplied, which is not negative. A row of bf16 is multiplied by the power of two that brings its
// largest magnitude below 2^15: what f16 lacks lies 2^-39 below that magnitude.
template <class T, int BLOCKS> __device__ __forceinline__ void narrow_query(unsigned char* tile, int block, float* scales, float scale) {
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t x[BLOCKS][4], top = 0;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
      *(uint4*)x[b] = *(const uint4*)(tile + b * block + (i * 128 + thread) * 16);
#pragma unroll
      for (int e = 0; e < 4; e++) top = __vmaxu2(top, x[b][e] & 0x7fff7fff);
    }
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) top = __vmaxu2(top, __shfl_xor_sync(~0u, top, lanes));
    const uint32_t exponent = max(max(top & 0xffff, top >> 16) >> 7, 15u);  // bf16's 8 bits
    const uint32_t sign = __float_as_uint(scale) & 0x80000000;
    const float factor = __uint_as_float((268 - exponent) << 23 | sign);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        x[b][e] = std::is_same<T, f16>::value ? x[b][e] ^ (sign | sign >> 16)
                                              : pack2<f16>(__uint_as_float(x[b][e] << 16) * factor, __uint_as_float(x[b][e] & 0xffff0000) * factor);
      *(uint4*)(tile + b * block + (i * 128 + thread) * 16) = *(const uint4*)x[b];
    }
    if (thread % 8 == 0) scales[i * 16 + thread / 8] = fabsf(scale) * (std::is_same<T, f16>::value ? 1 : __uint_as_float((exponent - 14) << 23));
  }
}

// The descriptor of what lies so many bytes behind, by one addition: between two products there is no time to make another.
__device__ __forceinline__ uint64_t behind(uint64_t d, uint32_t bytes) {
  uint32_t low, high;
  asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(d));
  low += bytes >> 4;
  asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(low), "r"(high));
  return d;
}
#endif

template <class T, int D, int KEYS, bool PAGED, class Source>
__device__ __forceinline__ void prefill(const CUtensorMap& qmap, const Source& source, const Params& p) {
#ifdef SEAFAN_HOPPER
  constexpr bool CODES = std::is_same<Source, Pools>::value;
  typedef typename std::conditional<CODES, f16, T>::type W;  // of the products
  constexpr int ITEMS = 4, GROUPS = prefill_groups(D, CODES), ROWS = GROUPS * 64, RAW = D > 128 ? 2 : 4, BLOCKS = D / 64, QB = ROWS * 128, OWN = 64 * 128, KB = KEYS * 128, Q = BLOCKS * QB, TILE = BLOCKS * KB;
  constexpr uint32_t STAGES = 2;
  constexpr bool LAZY = D > 64;  // a row is scaled again when its maximum has grown by more than 2^8, which f16 bears
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t item_full[ITEMS], item_empty[ITEMS], q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  __shared__ Item items[ITEMS];
  __shared__ int next, handed_on;  // of the thread that hands items on, not in a register of every producer: the next item, tiles of keys
  __shared__ int bad[KEYS];
  __shared__ float scales[CODES ? ROWS : 1];
  unsigned char* qs = shared + (1024 - shared_address(shared) % 1024) % 1024;
  unsigned char* kring = qs + Q;
  unsigned char* vring = kring + STAGES * TILE;
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    next = blockIdx.x, handed_on = 0;
    barrier_init(&q_full, 1);
    barrier_init(&q_empty, GROUPS);
    for (int i = 0; i < ITEMS; i++) {
      barrier_init(item_full + i, 1);
      barrier_init(item_empty + i, (CODES ? 128 : 32) + GROUPS * 128);  // all who look at it
    }
    for (int i = 0; i < STAGES; i++) {
      barrier_init(k_full + i, CODES ? 128 : 1);
      barrier_init(v_full + i, CODES ? 128 : 1);
      barrier_init(k_empty + i, GROUPS);
      barrier_init(v_empty + i, CODES ? GROUPS * 128 : GROUPS);
    }
    barrier_init_fence();
    prefetch_map(&qmap);
    if constexpr (!CODES) {
      prefetch_map(&source.k);
      prefetch_map(&source.v);
    }
  }
  __syncthreads();
  grid_wait();
  // Item n as the producer hands it on. False: it has no rows.
  auto look_up = [&](int n, Item& item) {
    int tile;
    if (PAGED) {
      const int at = n / p.hq;
      item.head = n % p.hq;
      item.request = p.tile_batch[p.tiles - 1 - at];  // a request's longest rows first
      if (item.request < 0) return false;
      tile = p.tile_index[p.tiles - 1 - at];
      item.q_first = p.qo_indptr[item.request];
      item.lq = p.qo_indptr[item.request + 1] - item.q_first;
      item.first_page = p.page_indptr[item.request];
      item.pages = p.page_indptr[item.request + 1] - item.first_page;
      item.lk = item.pages > 0 ? ((item.pages - 1) << p.page_log2) + p.last_page_len[item.request] : 0;
    } else {
      const int each = p.tiles * p.section, part = n / each, rest = n % each, sections = p.hq / p.section;
      item.request = part / sections;
      item.head = part % sections * p.section + rest % p.section;
      tile = p.tiles - 1 - rest / p.section;  // the longest rows first
      item.lq = p.lq, item.lk = p.lk;
      item.q_first = item.request * p.lq;
    }
    item.kv_head = item.head / (p.hq / p.hk);
    const int row0 = tile * ROWS, shift = item.lk - item.lq, last_row = min(row0 + ROWS, item.lq) - 1;
    const int end = p.causal ? max(0, min(item.lk, last_row + shift + 1)) : item.lk;
    const int low = p.window >= 0 ? max(0, row0 + shift - p.window) : 0;
    item.row0 = row0;
    item.tile0 = low / KEYS;
    item.tiles = end > low ? (end + KEYS - 1) / KEYS - item.tile0 : 0;
    return row0 < item.lq;
  };

  auto take = [&] {
    const int n = atomicAdd(p.ticket, 1);
    if (n == p.items - 1) *p.ticket = 0;  // each block takes until there is nothing left, p.items times altogether
    return n + (int)gridDim.x;
  };

  if (group == 0) {
    registers_give<GROUPS == 3 ? 32 : CODES ? 88 : 40>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Hands on the next item; false: there was none left.
    auto hand_on = [&](int j) {
      Item& item = items[j % ITEMS];
      barrier_wait(item_empty + j % ITEMS, (j / ITEMS & 1) ^ 1);
      bool found = false;
      while (next < p.items && !found) {
        found = look_up(next, item);
        next = take();
      }
      if (!found) item.tiles = -1;
      item.done = handed_on;
      handed_on += item.tiles;
      barrier_arrive(item_full + j % ITEMS);
      return found;
    };
    auto load_query = [&](int j) {
      const Item& item = items[j % ITEMS];
      barrier_wait(&q_empty, (j & 1) ^ 1);
      barrier_expect(&q_full, Q);
      for (int i = 0; i < BLOCKS; i++) {
        if (PAGED) copy_tensor3(qs + i * QB, &qmap, &q_full, i * 64, item.head, item.q_first + item.row0);
        else copy_tensor4(qs + i * QB, &qmap, &q_full, i * 64, item.head, item.row0, item.request);
      }
    };
    if (!CODES && warp > 0) {
      if (threadIdx.x == 32)
        for (int j = 0; hand_on(j); j++) load_query(j);
      return;
    }
    int n = 0;  // tiles of keys and of values up to here
    for (int j = 0;; j++) {
      if (CODES && threadIdx.x == 0) hand_on(j);
      const Item& item = items[j % ITEMS];
      barrier_wait(item_full + j % ITEMS, j / ITEMS & 1);
      const int tiles = item.tiles;
      if (tiles < 0) return;
      if constexpr (CODES) {
        auto find = [&](int key) { return (p.page_indices[item.first_page + (key >> p.page_log2)] << p.page_log2) + (key & ((1 << p.page_log2) - 1)); };
        auto begun = [&] {
          if (threadIdx.x == 0) load_query(j);
        };
        auto free = [&](int it, bool values) {
          barrier_wait((values ? v_empty : k_empty) + (item.done + it) % STAGES, ((item.done + it) / STAGES & 1) ^ 1);
          return (values ? vring : kring) + (item.done + it) % STAGES * TILE;
        };
        auto filled = [&](int it, bool values) { barrier_arrive((values ? v_full : k_full) + (item.done + it) % STAGES); };
        if (tiles == 0) begun();  // no tile at which to load the query
        widen_tiles<D, KEYS, RAW>(source, p.hk, item.kv_head, item.lk, (item.tile0 + tiles - 1) * KEYS, tiles, shared_address(vring + STAGES * TILE), find, begun, free, filled);
      } else {
        // A lane copies a box: 64 columns of all keys of a tile, or of those in a page.
        const int box = PAGED ? min(KEYS, 1 << p.page_log2) : KEYS, column = lane % BLOCKS, key = lane / BLOCKS * box;
        int at = (item.tile0 + tiles - 1) * KEYS + key;
#pragma unroll 1
        for (const int end = n + 2 * tiles; n < end; n++) {  // keys and values in turn
          const int slot = n / 2 % STAGES;
          uint64_t* full = (n % 2 ? v_full : k_full) + slot;
          barrier_wait((n % 2 ? v_empty : k_empty) + slot, (n / 2 / STAGES & 1) ^ 1);
          if (lane == 0) barrier_expect(full, TILE);
          __syncwarp();
          if (key < KEYS) {
            const CUtensorMap& map = n % 2 ? source.v : source.k;
            unsigned char* to = (n % 2 ? vring : kring) + slot * TILE + column * KB + key * 128;
            if (PAGED) {
              const int page = p.page_indices[item.first_page + min(at >> p.page_log2, item.pages - 1)];  // behind the end: the last page again
              copy_tensor3(to, &map, full, column * 64, item.kv_head, (page << p.page_log2) + (at & ((1 << p.page_log2) - 1)));
            } else {
              copy_tensor4(to, &map, full, column * 64, item.kv_head, at, item.request);
            }
          }
          if (n % 2) at -= KEYS;
        }
      }
      barrier_arrive(item_empty + j % ITEMS);
    }
  }
  registers_take<GROUPS == 3 ? 160 : CODES ? 208 : 232>();
  const int wg = __shfl_sync(~0u, group - 1, 0), warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool leader = threadIdx.x % 128 == 0;
  // The loop over tiles has what it asks for at hand: addresses that the compiler would make anew each time, a register's wait for
  // the block's number in its cluster, and numbers that it takes to be uniform.
  auto known = [](uint64_t* b) {
    asm volatile("" : "+l"(b));
    return b;
  };
  auto same = [](int x) { return __shfl_sync(~0u, x, 0); };
  uint64_t *const kf = known(k_full), *const vf = known(v_full), *const ke = known(k_empty), *const ve = known(v_empty), *const qe = known(&q_empty);
  uint32_t first_keys = shared_address(kring), first_values = shared_address(vring);
  asm volatile("" : "+r"(first_keys), "+r"(first_values));
  for (int j = 0;; j++) {
    barrier_wait(item_full + j % ITEMS, j / ITEMS & 1);
    const Item& item = items[j % ITEMS];
    const int row0 = same(item.row0), lk = same(item.lk), shift = lk - same(item.lq), tile0 = same(item.tile0), tiles = same(item.tiles), done = same(item.done);
    if (tiles < 0) return;
    auto first_row = [&] {  // of this thread's two, worked out where it is wanted: a register less on the way
      int thread;
      asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
      return row0 + (thread - 128) / 32 * 16 + thread % 32 / 4;
    };
    float o[D / 2], s[KEYS / 2], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, c[2];
    uint32_t pf[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0;
    barrier_wait(&q_full, j & 1);
    if constexpr (CODES) {
      narrow_query<T, BLOCKS>(qs + wg * OWN, QB, scales + wg * 64, source.k_steps[item.kv_head] * p.scale);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync %0, 128;" ::"r"(wg + 2) : "memory");
    }
    auto scale = [&](int r) { return CODES ? scales[wg * 64 + warp * 16 + g + r * 8] : p.scale; };
    const float scale2[2] = {(p.softcap > 0 ? 1 : scale(0)) * LOG2E, (p.softcap > 0 ? 1 : scale(1)) * LOG2E};  // of what softmax finds

    // Row i sees the keys from the first to before the second.
    auto sees = [&](int i, int& from, int& to) {
      to = p.causal ? min(lk, i + shift + 1) : lk;
      from = p.window >= 0 ? max(0, i + shift - p.window) : 0;
    };
    // Every row sees all of a tile whose first key is one of `whole` from low on.
    const int low = p.window >= 0 ? max(0, row0 + ROWS - 1 + shift - p.window) : 0;
    const int whole = max(0, (p.causal ? min(lk, row0 + shift + 1) : lk) - KEYS + 1 - low), plain = p.softcap > 0 ? 0 : whole;
    auto partial = [&](int key0) { return (uint32_t)(key0 - low) >= (uint32_t)whole; };
    auto scores = [&](uint64_t keys) {
      const uint64_t a = descriptor(shared_address(qs) + wg * OWN);
      // All registers of both products are settled before either starts.
      wgmma_pin(s);
      wgmma_pin(o);
      wgmma_pin(pf);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < D / 16; j++)
        Wgmma<W, KEYS, 0>::shared(s, behind(a, j / 4 * QB + j % 4 * 32), behind(keys, j / 4 * KB + j % 4 * 32), j);
      wgmma_commit();
    };
    // Zeroes what is not finite in a tile of V and notes its rows. Every warpgroup of rows takes part. Mostly nothing is: words of two
    // numbers are looked at, whose exponents of ones carry into their signs.
    auto cleanse = [&](int slot) {
      constexpr uint32_t EXPONENTS = Exponents<W>::MASK, ONE = EXPONENTS & ~(EXPONENTS << 1);
      const int thread = threadIdx.x - 128;
      const uint4* words = (const uint4*)(vring + slot * TILE);
      uint32_t found = 0;
#pragma unroll 4
      for (int part = thread; part < TILE / 16; part += GROUPS * 128) {
        const uint4 w = words[part];
        found |= (((w.x & EXPONENTS) + ONE) | ((w.y & EXPONENTS) + ONE) | ((w.z & EXPONENTS) + ONE) | ((w.w & EXPONENTS) + ONE)) & 0x80008000u;
      }
      int dirty_tile;
      asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbar.red.or.pred q, 1, %2, p;\n\tselp.s32 %0, 1, 0, q;\n\t}" : "=r"(dirty_tile) : "r"(found), "n"(GROUPS * 128) : "memory");
      if (!dirty_tile) return false;
      if (thread < KEYS) bad[thread] = 0;
      asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory");
#pragma unroll 1
      for (int part = thread; part < TILE / 16; part += GROUPS * 128) {
        W* v = (W*)(vring + slot * TILE + part * 16);
        Pack<W> x = load16(v);
        bool dirty = false;
#pragma unroll
        for (int e = 0; e < 8; e++)
          if (!isfinite(to_float(x.v[e]))) x.v[e] = from_float<W>(0.f), dirty = true;
        if (dirty) store16(v, x);
        const uint32_t lanes = __ballot_sync(~0u, dirty) >> lane & 0xff;  // 8 have 128 bytes of a row
        if (lanes && lane % 8 == 0) bad[part % (KB / 16) / 8] = 1;
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory");
      return true;
    };
    auto mask = [&](int key0) {  // and softcap
      if (p.softcap > 0) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) s[i] = p.softcap * tanhf(s[i] * scale(i / 2 % 2) / p.softcap);
      }
      if (partial(key0)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          int from, to;
          sees(first_row() + r * 8, from, to);
          const int at = key0 + 2 * t - from;
          const uint32_t count = max(to - from, 0);
#pragma unroll
          for (int i = 0; i < KEYS / 8; i++) {
            if ((uint32_t)(at + i * 8) >= count) s[4 * i + 2 * r] = -INFINITY;
            if ((uint32_t)(at + i * 8 + 1) >= count) s[4 * i + 2 * r + 1] = -INFINITY;
          }
        }
      }
    };
    // Softmax of a row of this thread in four steps: its maximum, the exponentials, their sum, the packing.
    float base[2];
    auto maximum = [&](int r) {
      float x = m[r];
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) x = fmaxf(x, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
      if (LAZY && (x - m[r]) * scale2[r] <= 8) x = m[r];
      c[r] = x == -INFINITY ? 1.f : power2((m[r] - x) * scale2[r]);
      m[r] = x;
      base[r] = x == -INFINITY ? 0.f : x * scale2[r];
    };
    auto exponents = [&](int r) {
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) {
        s[4 * i + 2 * r] = power2(s[4 * i + 2 * r] * scale2[r] - base[r]);
        s[4 * i + 2 * r + 1] = power2(s[4 * i + 2 * r + 1] * scale2[r] - base[r]);
      }
    };
    auto add_up = [&](int r) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) sum += s[4 * i + 2 * r] + s[4 * i + 2 * r + 1];
      l[r] = l[r] * c[r] + sum;
    };
    auto pack = [&](int r) {
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) pf[i / 2][i % 2 * 2 + r] = pack2<W>(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]);
    };
    auto finish = [&] {  // what can wait until the product before has read pf
      exponents(1);
      add_up(0);
      pack(0);
      add_up(1);
      pack(1);
    };
    auto values = [&](uint64_t v) {
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < KEYS / 16; j++) Wgmma<W, D, 1>::mixed(o, pf[j], behind(v, j * 2048), 1);
      wgmma_commit();
    };
    // Rows that see a key whose value was not finite become NaN.
    auto taint = [&](int key0) {
      for (int r = 0; r < 2; r++) {
        int from, to;
        sees(first_row() + r * 8, from, to);
#pragma unroll 1
        for (int j = max(from - key0, 0); j < min(to - key0, KEYS); j++)
          if (bad[j]) l[r] = NAN;
      }
    };

    auto ready = [&](int n, int key0) {  // V of this tile has arrived and is clean
      barrier_wait(vf + n % STAGES, n / STAGES & 1);
      if (partial(key0) && cleanse(n % STAGES)) taint(key0);
    };
    if (tiles == 0) {  // no product in which its warps meet
      asm volatile("bar.sync %0, 128;" ::"r"(wg + 2) : "memory");
      barrier_arrive_if(leader, qe);
    }
    if (tiles > 0) {
      // Uniform to the compiler, which otherwise moves each descriptor to where wgmma finds it.
      auto keys = [&](int n) { return descriptor(same(first_keys + n % STAGES * TILE)); };
      auto value = [&](int n) { return descriptor(same(first_values + n % STAGES * TILE), KB); };
      int key0 = (tile0 + tiles - 1) * KEYS;
      barrier_wait(kf + done % STAGES, done / STAGES & 1);
      scores(keys(done));
      wgmma_wait<0>();
      wgmma_pin(s);
      barrier_arrive_if(leader, ke + done % STAGES);
      barrier_arrive_if(leader && tiles == 1, qe);
      if ((uint32_t)(key0 - low) >= (uint32_t)plain) mask(key0);
      maximum(0);
      maximum(1);
      exponents(0);
      ready(done, key0);
      finish();
      // The warpgroups take turns: one's products run beside the others' softmax.
      const int turn = wg + 5, next_turn = (wg + 1) % GROUPS + 5;
      give_turn(wg == GROUPS - 1 && tiles > 1, next_turn);
      for (int n = done + 1; n < done + tiles; n++) {
        const bool last = n == done + tiles - 1;
        key0 -= KEYS;
        const uint64_t k = keys(n), v = value(n - 1);
        barrier_wait(kf + n % STAGES, n / STAGES & 1);
        asm volatile("bar.sync %0, 256;" ::"r"(turn) : "memory");
        scores(k);
        values(v);
        give_turn(wg < GROUPS - 1 || !last, next_turn);
        wgmma_wait<1>();
        wgmma_pin(s);
        // The keys, in the end the query too, are no longer needed.
        barrier_arrive_if(leader, ke + n % STAGES);
        barrier_arrive_if(leader && last, qe);
        if ((uint32_t)(key0 - low) >= (uint32_t)plain) mask(key0);
        maximum(0);
        maximum(1);
        exponents(0);
        ready(n, key0);  // its wait holds the one for P V back, which the compiler would put before the softmax
        wgmma_wait<0>();
        wgmma_pin(o);
        wgmma_pin(pf);
        barrier_arrive_if(CODES || leader, ve + (n - 1) % STAGES);
        if (!LAZY || __any_sync(~0u, c[0] != 1 || c[1] != 1)) {
#pragma unroll
          for (int i = 0; i < D / 8; i++) o[4 * i] *= c[0], o[4 * i + 1] *= c[0], o[4 * i + 2] *= c[1], o[4 * i + 3] *= c[1];
        }
        finish();
      }
      wgmma_pin(o);
      wgmma_pin(pf);
      values(value(done + tiles - 1));
      wgmma_wait<0>();
      wgmma_pin(o);
      barrier_arrive_if(CODES || leader, ve + (done + tiles - 1) % STAGES);
    }
    const int i0 = first_row(), lq = item.lq, head = item.head;
    const long q_first = item.q_first;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      l[r] += __shfl_xor_sync(~0u, l[r], 1);
      l[r] += __shfl_xor_sync(~0u, l[r], 2);
      const int i = i0 + r * 8;
      float top = m[r] * scale2[r], factor = 1;  // base 2
      if (p.sinks && m[r] > -INFINITY) {
        const float sink = p.sinks[head] * LOG2E, x = fmaxf(top, sink);
        factor = exp2f(top - x);
        l[r] = l[r] * factor + exp2f(sink - x);
        top = x;
      }
      factor = l[r] == 0 ? 0.f : factor / l[r];
      if constexpr (CODES) factor *= source.v_steps[item.kv_head];
      T* out = (T*)p.out + ((q_first + i) * p.hq + head) * D + 8 * t;
#pragma unroll
      for (int j = 0; j < D / 32; j++) {
        uint32_t v[4];
#pragma unroll
        for (int q = 0; q < 4; q++) v[q] = pack2<T>(o[16 * j + 4 * q + 2 * r] * factor, o[16 * j + 4 * q + 2 * r + 1] * factor);
        transpose4(v, t);
        if (i < lq) *(uint4*)(out + 32 * j) = make_uint4(v[0], v[1], v[2], v[3]);
      }
      if (p.lse && t == 0 && i < lq)
        p.lse[PAGED ? (long)head * p.tokens + q_first + i : ((long)item.request * p.hq + head) * p.lq + i] = l[r] == 0 ? -INFINITY : (top + log2f(l[r])) * LN2;
    }
    barrier_arrive(item_empty + j % ITEMS);
  }
#endif
}
