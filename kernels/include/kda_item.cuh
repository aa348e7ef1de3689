// What the two kernels of chunked Kimi Delta Attention share: the item of memory that a chunk of a value head becomes.
#pragma once
#include "kda.cuh"
#include "mma.cuh"

constexpr int C = 64; // tokens of a chunk

// 16-byte place of column pack p (8 elements) in row r of a tile with `packs` packs a row, spread over the banks.
__device__ __forceinline__ int swizzled(int r, int p, int packs) {
  return packs == 4 ? r * 4 + (p ^ (r >> 1 & 3)) : r * packs + (p ^ (r & 7));
}

// An item in elements of T: W, Qg, Kg [C,KP], P [C,C], gamma [KP] f32, then U in tiles [C,32].
template <int KP> struct Item {
  static constexpr int W = 0, Q = C * KP, K = 2 * C * KP, P = 3 * C * KP, GAMMA = P + C * C, SHARED = GAMMA + 2 * KP, TILE = C * 32;
};
