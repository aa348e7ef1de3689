// The loop of products of few rows on Hopper, whose time is that of reading w once. Kernels differ in what multiplies a stage.
//
// The roles are swapped: rows of w are the rows of the wgmma tile and the COLS tokens its columns. Two warps of a block keep a ring
// of stages filled, one with 128 bytes of k of a tile's rows and one with those of x, from which two warpgroups multiply. A tile is
// `pair` wgmma tiles of up to 64 rows of w each, of which the first `rows` count.
// Alone, for many rows, a block owns `tiles` tiles and all of their k, and a warpgroup half of a tile's wgmma tiles.
// Otherwise a cluster of two blocks owns them, and each block takes half of k. With Turns the warpgroups of a block take turns of
// its stages, and at the end of a tile each of the four warpgroups of the cluster gets a quarter of the sums from the other three
// through distributed shared memory, adds them up in an order that is the same for all four, and finishes them. With Halves, for many
// rows, a warpgroup has two of four wgmma tiles, whose sums it shares with its twin of the other block.
// The cuts depend on N and K, not on M, so a token's sums do not depend on how many tokens share the launch.
// Weights never depend on the launch in front: the ring is full of them before that has ended.
// With DUAL, w is [2F,K]: the first wgmma tile is of the first half and the second the matching rows of the second, and y[M,F]
// is silu(first) * second.
// x is a tensor map, or Rows of 16 bits of which a block makes codes: of up to 8 rows, to shared memory behind the sums.
#pragma once
#include "fp8.cuh"
#include "grid.cuh"
#include "stream_rows.cuh"
#include "wgmma_fp8.cuh"

namespace {
struct Params {
  Sink sink;
  Steps steps;
  int m, n, k;  // n counts columns of y
  int early;    // w may be read before the launch in front has ended
  int rows, pair, tiles, stages;  // of a wgmma tile that count, a multiple of 8; wgmma tiles of a tile; of a cluster or block; of the ring
};
constexpr int MAX_STAGES = 24, CLUSTER = 2;
enum Form { Turns, Halves, Alone };
}  // namespace

#ifdef SEAFAN_HOPPER
// Evict first: the weights are not read again before everything else is.
__device__ __forceinline__ void copy_first2(void* dst, const CUtensorMap* m, uint64_t* bar, int x, int y, uint64_t policy) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(dst)), "l"(m),
               "r"(shared_address(bar)), "r"(x), "r"(y), "l"(policy)
               : "memory");
}
__device__ __forceinline__ uint32_t remote_address(const void* p, uint32_t block) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(shared_address(p)), "r"(block));
  return r;
}
// Floats to a block of the cluster; its barrier counts the bytes.
__device__ __forceinline__ void store_remote(uint32_t to, float a, float b, uint32_t bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(a), "f"(b), "r"(bar) : "memory");
}
__device__ __forceinline__ void store_remote(uint32_t to, float a, float b, float c, float d, uint32_t bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d), "r"(bar) : "memory");
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Four neighbours, or what is left of them.
template <class Out> __device__ __forceinline__ void put4(const Sink& s, long i, const float (&u)[4], int left) {
  Out* to = (Out*)s.y + i;
  if (left < 4 || (uintptr_t)to % (4 * sizeof(Out))) {
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (e < left) put<Out>(s, i + e, u[e]);
  } else if constexpr (sizeof(Out) == 4) {
    *(float4*)to = make_float4(u[0], u[1], u[2], u[3]);
  } else if constexpr (sizeof(Out) == 2) {
    *(uint2*)to = make_uint2(pack2<Out>(u[0], u[1]), pack2<Out>(u[2], u[3]));
  } else {
#pragma unroll
    for (int e = 0; e < 4; e += 2) put2<Out>(s, to + e, u[e], u[e + 1]);
  }
}

// Math has BK, the k of a stage; XTILES, the boxes of 128 bytes that x comes in; Bias, its type; STEPS, whether operands are codes, and
// BLOCK, whether with steps that change along k; step(d, w, x, second, release, of_w, of_x), which adds a stage's product to d (the
// second wgmma tile, unless `second` is 0, lies that many bytes behind the first) and calls release when it no longer reads the stage;
// READERS, how many warps of a warpgroup say so, 1 or 4; LATE, whether it leaves products under way and means the stage before; and
// dispatch(out, f), which calls f with the types of the result and of the residual.
template <class Math, int COLS, bool DUAL, Form FORM, class Source>
__device__ __forceinline__ void stream(const Source& source, const CUtensorMap& wmap, const Params& p) {
  constexpr bool CODING = IsRows<Source>::value, ALONE = FORM == Alone, HALVES = FORM == Halves, OWN = ALONE || HALVES;
  // What a warpgroup gets of another's sums: floats of a thread for each of the two wgmma tiles, bytes. From how many. Blocks that share
  // the k of a tile.
  constexpr int PART = OWN ? COLS / 4 : COLS == 8 ? 1 : COLS / 8, PART_BYTES = PART * 2 * 4 * 128, SENDERS = OWN ? 1 : 3, BLOCKS = ALONE ? 1 : CLUSTER;
  constexpr int BK = Math::BK, X = Math::XTILES * COLS * 128;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES], received[2], freed[2], coded;  // the last: every thread has coded its part of the rows
  __shared__ float x_steps[Math::STEPS ? COLS : 1];
  unsigned char* ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
  const int W = p.rows * p.pair * 128, STAGE = W + X;
  const int rank = blockIdx.x % BLOCKS, owner = blockIdx.x / BLOCKS;
  unsigned char* sums = ring + p.stages * STAGE;  // of each warpgroup: from the three behind it, float2 or float4 [PART / 2][128]; else float2 or float4 [tiles][2][PART / 4][128]
  unsigned char* rows = sums + (OWN ? p.pair * COLS * 128 : 6 * PART_BYTES);  // codes [m][count * BK], what they are made of; or steps of x
  const int steps = (p.k + BK - 1) / BK, k_first = steps * rank / BLOCKS, count = steps * (rank + 1) / BLOCKS - k_first;
  const int tile_rows = p.rows * p.pair / (DUAL ? 2 : 1), row_first = owner * p.tiles * tile_rows;
  int tiles = 1;
  while (tiles < p.tiles && row_first + tiles * tile_rows < p.n) tiles++;
  const int total = tiles * count, primed = min(p.stages, total);
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  auto load_w = [&](int tile, int s, int slot) {
    if (CODING && threadIdx.x != 256) return;
    unsigned char* w = ring + slot * STAGE;
    const int row = row_first + tile * tile_rows, k = (k_first + s) * BK;
    barrier_expect(full + slot, CODING ? W : STAGE);
    copy_first2(w, &wmap, full + slot, k, row, policy);
    if (DUAL) copy_first2(w + W / 2, &wmap, full + slot, k, p.n + row, policy);
  };
  auto prime = [&]() {
    if (!p.early) grid_block();
    // Behind the first 48 KB at the memory's pace: small kernels beside would wait in the queue of a ring full of loads.
    constexpr int AT_ONCE = 48 << 10, CLOCKS = 440;  // for 8 KB a block
    const long long start = clock64();
    for (int tile = 0, s = 0, slot = 0; slot < primed; slot++) {
      if (threadIdx.x % 32 == 0)
        while (clock64() - start < (long long)(slot * W - AT_ONCE) * CLOCKS / 8192) {}
      load_w(tile, s, slot);
      if (++s == count) s = 0, tile++;
    }
  };
  if (threadIdx.x == (OWN ? 256 : 0)) {
    prefetch_map(&wmap);
    if constexpr (!CODING) prefetch_map(&source);
    if (CODING) barrier_init(&coded, 256);
    for (int i = 0; i < p.stages; i++) {
      barrier_init(full + i, CODING ? 2 : 1);
      barrier_init(empty + i, (OWN ? 2 : 1) * Math::READERS);
    }
    for (int i = 0; i < 2 && !ALONE; i++) {
      barrier_init(received + i, 1);
      barrier_init(freed + i, SENDERS);
    }
    barrier_init_fence();
    for (int i = 0; i < 2 && !ALONE; i++) barrier_expect(received + i, SENDERS * PART_BYTES);
    if (OWN) prime();  // before all else; with few rows of w, thus the other form, the launch in front would end later
  }
  __syncwarp();
  __syncthreads();
  grid_launch();
  // What waits for the launch in front must not queue behind a ring full of weights: x has a warp of its own, unless it is coded.
  const bool loader = threadIdx.x >= 256, loads_w = CODING ? threadIdx.x / 32 == 8 : threadIdx.x == 256, loads_x = CODING ? loads_w : threadIdx.x == 288;
  auto load_x = [&](int s, int slot) {
    unsigned char* x = ring + slot * STAGE + W;
    if constexpr (CODING) {
      for (int i = threadIdx.x % 32; i < p.m * 8; i += 32)  // 16 bytes of a row, where the copy engine would put them
        *(uint4*)(x + (i ^ i / 8 % 8) * 16) = *(const uint4*)(rows + (i / 8 * count + s) * 128 + i % 8 * 16);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncwarp();
      if (threadIdx.x == 256) barrier_arrive(full + slot);
    } else {
#pragma unroll
      for (int i = 0; i < Math::XTILES; i++) copy_tensor2(x + i * COLS * 128, &source, full + slot, (k_first + s) * BK + i * (BK / Math::XTILES), 0);
    }
  };
  if (!ALONE) cluster_arrive();
  if (loads_w) {
    if (!OWN) prime();
    if (CODING)
      for (int slot = threadIdx.x % 32; slot < primed; slot += 32) barrier_arrive(full + slot);  // in place of x, for which all wait below
  } else if (loads_x) {
    grid_block();
    for (int slot = 0, s = 0; slot < primed; slot++) {
      load_x(s, slot);
      if (++s == count) s = 0;
    }
  } else if (!loader) {
    if constexpr (CODING) {
      code_rows(Coded{rows, ring + W, count, primed, STAGE}, x_steps, source, p.m, p.k, k_first * BK, rows + p.m * count * BK);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      barrier_arrive(&coded);  // each lane: racecheck does not follow one that arrives for its warp
    } else {
      grid_block();
    }
  }
  if (CODING) barrier_wait(&coded, 0);
  __syncwarp();
  if (loader) {
    if (!ALONE) cluster_wait();  // racecheck takes an arrival for one when the thread waits or ends
    if (loads_w || loads_x) {
      int tile = count ? primed / count : 0, s = count ? primed % count : 0, slot = primed == p.stages ? 0 : primed, parity = 0;
      for (int unit = primed; unit < total; unit++) {
        barrier_wait(empty + slot, parity);
        if (loads_w) load_w(tile, s, slot);
        if (loads_x) load_x(s, slot);
        if (++slot == p.stages) slot = 0, parity ^= 1;
        if (++s == count) s = 0, tile++;
      }
    }
    return;
  }
  // Steps of x that change along k, [count][COLS]: pairs of columns are swizzled, as a warp writes those of one column.
  constexpr bool XK = Math::BLOCK && Math::XTILES == 1;
  auto xk_at = [&](int s, int column) { return (float*)rows + s * COLS + (column ^ 2 * s % (COLS < 32 ? COLS : 32)); };
  if (Math::STEPS && !CODING) {
    if (threadIdx.x < COLS) x_steps[threadIdx.x] = p.steps.x && threadIdx.x < p.m ? p.steps.x[(long)threadIdx.x * p.steps.x_row] : 1.f;
    if (XK)
      for (int r = threadIdx.x / 32; r < COLS; r += 8)
        for (int s = threadIdx.x % 32; s < count; s += 32) *xk_at(s, r) = p.steps.xk && r < p.m ? p.steps.xk[(long)r * p.steps.xk_row + k_first + s] : 1.f;
    asm volatile("bar.sync 3, 256;" ::: "memory");
  }
  if (!ALONE) cluster_wait();
  const int wg = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int mine = threadIdx.x % 128;
  // A warpgroup's first stage and the way to the next, its part of a stage's rows, where those of its second wgmma tile begin.
  constexpr int TURN = OWN ? 1 : 2;
  const int start = OWN ? 0 : wg, above = OWN ? wg * p.rows : 0;
  const uint32_t second = OWN ? (HALVES || DUAL ? 2 * p.rows * 128 : 0) : p.pair == 2 ? p.rows * 128 : 0;
  auto apart = [&]() { return ALONE ? 8 : HALVES ? 2 * p.rows : p.rows; };  // the two rows of w that a thread finishes
  auto w_step = [&](long row, bool live) { return Math::STEPS && p.steps.w && live ? p.steps.w[row * p.steps.w_row] : 1.f; };
  auto bias_of = [&](int c, bool live) { return p.sink.bias && live ? to_float(((const typename Math::Bias*)p.sink.bias)[c]) : 0.f; };
  auto residual_of = [&](auto type, int r, int c) { return p.sink.residual && r < p.m ? to_float(((const decltype(type)*)p.sink.residual)[r * p.sink.residual_stride + c]) : 0.f; };
  float amax = 0.f;
  // One result of row r of x from the sums of its row of w, and of the second half's with DUAL.
  auto result = [&](auto type, int r, float u, float z, float fu, float fz, float bias, float more) {
    if (Math::STEPS) {
      const float fx = x_steps[r];
      u *= fx * fu, z *= fx * fz;
    }
    if (DUAL) u = u / (1.f + (sizeof(type) == 4 ? expf(-u) : __expf(-u))) * z;
    u += bias;
    u += more;
    if (Math::STEPS) amax = fmaxf(amax, fabsf(u));
    return u;
  };
  int slot = start % p.stages, parity = start / p.stages & 1, at = start, held = -1;
  for (int tile = 0; tile < tiles; tile++) {
    const int row = row_first + tile * tile_rows + above;
    const int line = warp * 16 + g + rank * 8, c = row + line;  // what this thread finishes first
    const bool live[2] = {line < p.rows && c < p.n, ALONE ? line + 8 < p.rows && c + 8 < p.n : line < p.rows && (HALVES || p.pair == 2) && c + apart() < p.n};
    float fw[2], fz[2], bias[2];
    auto columns_of_w = [&]() {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int next = c + i * apart();
        fw[i] = DUAL && !OWN && i ? w_step(c + p.n, live[0]) : w_step(next, live[i]);
        fz[i] = DUAL && OWN ? w_step(next + p.n, live[i]) : 1.f;
        bias[i] = bias_of(next, live[i] && (OWN || !DUAL || !i));
      }
    };
    if (ALONE || COLS < 64) columns_of_w();  // ahead of the stages where there are registers for it
    float d[2][COLS / 2];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < COLS / 2; j++) d[i][j] = 0.f;
    for (int s = start; s < count; s += TURN) {
      if (!OWN)
        for (slot += tile * count + s - at, at = tile * count + s; slot >= p.stages; slot -= p.stages) parity ^= 1;
      // Steps of this k: before the stage is waited for, but where wgmma by turns leaves no registers for it.
      constexpr bool EARLY = Math::BLOCK && (Math::READERS > 1 || Math::XTILES == 1 || HALVES);
      auto of_w = [&](int i, int half) {
        const int c = min(row + (DUAL ? 0 : i * apart()) + warp * 16 + g + half * 8, p.n - 1) + (DUAL && i ? p.n : 0);
        return p.steps.wk ? p.steps.wk[(long)(c / 128) * p.steps.wk_row + k_first + s] : 1.f;
      };
      float wk[2][2], xk[COLS / 4];
      if (EARLY)
#pragma unroll
        for (int i = 0; i < 4; i++) wk[i / 2][i % 2] = of_w(i / 2, i % 2);
      if (XK)
#pragma unroll
        for (int j = 0; j < COLS / 4; j += 2) {
          const float2 two = *(const float2*)xk_at(s, j * 4 + 2 * t);
          xk[j] = two.x, xk[j + 1] = two.y;
        }
      barrier_wait(full + slot, parity);
      const uint32_t stage = shared_address(ring + slot * STAGE);
      Math::step(
          d, stage + above * 128, stage + W, second, [&]() { if ((Math::READERS > 1 ? lane : mine) == 0 && (!Math::LATE || held >= 0)) barrier_arrive(empty + (Math::LATE ? held : slot)); },
          [&](int i, int half) { return EARLY ? wk[i][half] : of_w(i, half); }, [&](int j) { return xk[j]; });
      held = slot;
      if (OWN && ++slot == p.stages) slot = 0, parity ^= 1;
    }
    if (Math::LATE) {
      wgmma_wait<0>();
      wgmma_pin(d[0]);
      wgmma_pin(d[1]);
      if (mine == 0 && held >= 0) barrier_arrive(empty + held);
      held = -1;
    }
    if constexpr (OWN) {
      // Rows 8 half and on of every 16; in two blocks they are block half's. Each warp puts its sums aside and gives them by a loop: what
      // runs once a tile comes from memory instruction by instruction. TURNED, four neighbours of a row of y at a time.
      constexpr bool TURNED = COLS >= 32 && !DUAL;
      constexpr int VECTOR = PART < 4 ? PART : 4;
      struct alignas(VECTOR * 4) Vector { float v[VECTOR]; };
      auto part = [&](int half, int i, int q) { return half ? d[i][q / 2 * 4 + 2 + q % 2] : d[i][q / 2 * 4 + q % 2]; };
      auto aside = [&](int i) { return (Vector*)(sums + ((i * 2 + wg) * 4 + warp) * COLS * 32) + lane; };  // [PART / VECTOR][32]
      auto put_aside = [&](int i, int q, const Vector& f) {
        if (TURNED) {
#pragma unroll
          for (int e = 0; e < VECTOR; e++) ((float*)(aside(i) - lane))[(q + e) * 32 + t * 8 + g] = f.v[e];
        } else {
          aside(i)[q / VECTOR * 32] = f;
        }
      };
      if constexpr (HALVES) {
        if (tile) barrier_wait(freed + wg, (tile - 1) & 1);
        const uint32_t dst = remote_address(aside(0), rank ^ 1), bar = remote_address(received + wg, rank ^ 1);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
          for (int q = 0; q < PART; q += 4) store_remote(dst + i * COLS * 256 + q * 128, part(rank ^ 1, i, q), part(rank ^ 1, i, q + 1), part(rank ^ 1, i, q + 2), part(rank ^ 1, i, q + 3), bar);
        if (COLS >= 64) columns_of_w();
        barrier_wait(received + wg, tile & 1);
        if (mine == 0 && tile + 1 < tiles) barrier_expect(received + wg, PART_BYTES);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          Vector f[PART / VECTOR];
#pragma unroll
          for (int q = 0; q < PART; q++) {
            if (q % VECTOR == 0) f[q / VECTOR] = aside(i)[q / VECTOR * 32];
            f[q / VECTOR].v[q % VECTOR] += part(rank, i, q);
          }
          __syncwarp();
#pragma unroll
          for (int q = 0; q < PART; q += VECTOR) put_aside(i, q, f[q / VECTOR]);
        }
      }
#pragma unroll 1
      for (int pass = 0; pass < (HALVES && DUAL ? 1 : 2); pass++) {
        if (ALONE)
#pragma unroll
          for (int i = 0; i < (DUAL ? 2 : 1); i++)
#pragma unroll
            for (int q = 0; q < PART; q += VECTOR) {
              Vector f;
#pragma unroll
              for (int e = 0; e < VECTOR; e++) f.v[e] = part(pass, i, q + e);
              put_aside(i, q, f);
            }
        // What this thread gives: of its own row of w, or of four.
        const int four = lane % 2 * 4, here = c + pass * apart() - (TURNED ? g - four : 0), left = TURNED ? p.n - here : VECTOR;
        float fu[VECTOR], fv[VECTOR], b[VECTOR];
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
          auto of = [&](float x) { return TURNED ? __shfl_sync(~0u, x, (four + e) * 4) : x; };
          fu[e] = of(pass ? fw[1] : fw[0]), fv[e] = DUAL ? of(pass ? fz[1] : fz[0]) : 1.f, b[e] = of(pass ? bias[1] : bias[0]);
        }
        if (TURNED) __syncwarp();
        auto finish = [&](auto out, auto residual) {
          typedef decltype(out) Out;
#pragma unroll 1
          for (int q = 0; q < PART; q += VECTOR) {
            const int unit = q / VECTOR * 32 + lane;
            auto column = [&](int e) { return TURNED ? unit / 16 * 8 + unit / 2 % 4 * 2 + unit / 8 % 2 : (q + e) / 2 * 8 + 2 * t + e % 2; };
            auto given = [&](int e) { return column(e) < p.m && e < left; };
            float more[VECTOR], v[VECTOR];  // in front of the stores, as below
#pragma unroll
            for (int e = 0; e < VECTOR; e++) more[e] = e < left ? residual_of(residual, column(e), TURNED ? here + e : here) : 0.f;
            const Vector u = aside(HALVES && !DUAL ? pass : 0)[q / VECTOR * 32], z = aside(DUAL ? 1 : 0)[q / VECTOR * 32];
#pragma unroll
            for (int e = 0; e < VECTOR; e++) {
              if (!given(e)) continue;
              v[e] = result(out, column(e), u.v[e], z.v[e], fu[e], fv[e], b[e], more[e]);
              if (!TURNED) put<Out>(p.sink, column(e) * p.sink.stride + here, v[e]);
            }
            if constexpr (TURNED)
              if (column(0) < p.m) put4<Out>(p.sink, column(0) * p.sink.stride + here, v, left);
          }
        };
        const bool inside = TURNED ? line - g + (ALONE ? pass * 8 : 0) < p.rows && left > 0 : pass ? live[1] : live[0];
        if (inside) Math::dispatch(p.sink.out, finish);
        __syncwarp();
      }
      if (HALVES && tile + 1 < tiles) {
        asm volatile("bar.sync %0, 128;" ::"r"(1 + wg) : "memory");
        if (mine == 0) barrier_arrive_remote(freed + wg, rank ^ 1);
      }
    } else {
      // Rows 8 half and on of every 16 are block half's, half of the columns each warpgroup's of it.
      auto part = [&](int half, int side, int i, int q) { return COLS == 8 ? d[i][half * 2 + side] : d[i][(side * (COLS / 16) + q / 2) * 4 + half * 2 + q % 2]; };
      if (tile) barrier_wait(freed + wg, (tile - 1) & 1);
#pragma unroll
      for (int to = 0; to < 4; to++) {
        const int half = to / 2, side = to % 2;
        if (to == rank * 2 + wg) continue;
        const uint32_t dst = remote_address(sums + (side * 3 + ((rank * 2 + wg - to - 1) & 3)) * PART_BYTES, half), bar = remote_address(received + side, half);
        if (COLS == 8) store_remote(dst + mine * 8, part(half, side, 0, 0), part(half, side, 1, 0), bar);
        else
#pragma unroll
          for (int q = 0; q < PART; q += 2) store_remote(dst + (q / 2 * 128 + mine) * 16, part(half, side, 0, q), part(half, side, 0, q + 1), part(half, side, 1, q), part(half, side, 1, q + 1), bar);
      }
      float v[2][PART];
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int q = 0; q < PART; q++) {
          const float a = rank ? part(1, 0, i, q) : part(0, 0, i, q), b = rank ? part(1, 1, i, q) : part(0, 1, i, q);
          v[i][q] = wg ? b : a;
        }
      auto column = [&](int q) { return COLS == 8 ? 2 * t + wg : (wg * (COLS / 16) + q / 2) * 8 + 2 * t + q % 2; };
      auto finish = [&](auto out, auto residual) {
        constexpr int TILES = DUAL ? 1 : 2, CHUNK = PART < 4 ? PART : 4;
        // What is read comes in front of the first store: y may be the residual, so a load would wait for the store before it.
        float e[TILES][CHUNK];
        auto residuals = [&](int q0) {
#pragma unroll
          for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int q = 0; q < CHUNK; q++)
              e[i][q] = live[i] ? residual_of(residual, column(q0 + q), c + i * p.rows) : 0.f;
        };
        if (COLS >= 64) columns_of_w();
        residuals(0);
        barrier_wait(received + wg, tile & 1);
        if (mine == 0 && tile + 1 < tiles) barrier_expect(received + wg, 3 * PART_BYTES);
        // Its own and its twin's, those of the other block, then both: the same sum whichever of the four finishes it.
        const unsigned char* from = sums + wg * 3 * PART_BYTES;
        const unsigned char *twin = from + (wg ? 2 : 0) * PART_BYTES, *third = from + (wg ? 0 : 1) * PART_BYTES, *fourth = third + PART_BYTES;
        if (COLS == 8) {
          const float2 a = ((const float2*)twin)[mine], b = ((const float2*)third)[mine], c = ((const float2*)fourth)[mine];
          v[0][0] = v[0][0] + a.x + (b.x + c.x), v[1][0] = v[1][0] + a.y + (b.y + c.y);
        } else {
#pragma unroll
          for (int q = 0; q + 1 < PART; q += 2) {
            const float4 a = ((const float4*)twin)[q / 2 * 128 + mine], b = ((const float4*)third)[q / 2 * 128 + mine], c = ((const float4*)fourth)[q / 2 * 128 + mine];
            v[0][q] = v[0][q] + a.x + (b.x + c.x), v[0][q + 1] = v[0][q + 1] + a.y + (b.y + c.y);
            v[1][q] = v[1][q] + a.z + (b.z + c.z), v[1][q + 1] = v[1][q + 1] + a.w + (b.w + c.w);
          }
        }
        if (tile + 1 < tiles) {
          asm volatile("bar.sync %0, 128;" ::"r"(1 + wg) : "memory");
          if (mine < 4 && mine != rank * 2 + wg) barrier_arrive_remote(freed + mine % 2, mine / 2);
        }
#pragma unroll
        for (int q0 = 0; q0 < PART; q0 += CHUNK) {
          if (q0) residuals(q0);
#pragma unroll
          for (int i = 0; i < TILES; i++) {
            if (!live[i]) continue;
#pragma unroll
            for (int q = 0; q < CHUNK; q++) {
              const int r = column(q0 + q);
              if (r >= p.m) continue;
              const float u = result(out, r, v[i][q0 + q], v[1][q0 + q], fw[i], fw[1], bias[i], e[i][q]);
              put<decltype(out)>(p.sink, r * p.sink.stride + (c + i * p.rows), u);
            }
          }
        }
      };
      Math::dispatch(p.sink.out, finish);
      __syncwarp();
    }
  }
  if (Math::STEPS) put_amax(p.sink, amax);
}
#endif
