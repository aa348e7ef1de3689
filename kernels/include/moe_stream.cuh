// What the streaming products of a mixture of experts share: the list of an expert's choices, and where the partial sums of
// warps meet.
#pragma once
#include "mma.cuh"

// grid_wait with the start of the next launch behind the wait.
__device__ __forceinline__ void wait_first() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The row of x that a choice of m reads: its token's, or its own.
__device__ __forceinline__ int row_of(int choice, int divide, int m) {
  if (divide == 0) return choice;
  return choice < m ? choice / divide : choice - m;
}

// Lists the choices of an expert in their order and counts them on; all 256 threads.
__device__ __forceinline__ void choices_of(int& count, int expert, const int* ids, int m, int* list, int* counts) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i0 = 0; i0 < m; i0 += 256) {
    const int i = i0 + threadIdx.x;
    const bool own = i < m && ids[i] == expert;
    const unsigned vote = __ballot_sync(~0u, own);
    if (lane == 0) counts[warp] = __popc(vote);
    __syncthreads();
    int at = count;
    for (int w = 0; w < 8; w++) {
      if (w < warp) at += counts[w];
      count += counts[w];
    }
    if (own) list[at + __popc(vote & ((1u << lane) - 1))] = i;
    __syncthreads();
  }
}

// Adds up the sums of the WK parts of k, in order, and writes y [M,N] for the listed choices: d[i] are columns `column` and
// 8 beyond for tokens 8i + 2t and the next; with DUAL the gate and what it lets through.
template <class Out, int WC, int WK, bool DUAL, int NT>
__device__ __forceinline__ void meet(Out* all, int n, float (&d)[NT][4], int column, const int* list, int count, float (*partial)[WC][16][32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4, wc = warp % WC, wk = warp / WC;
  if (wk > 0) {
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) partial[wk - 1][wc][i * 4 + j][lane] = d[i][j];
  }
  __syncthreads();
  if (wk == 0) {
#pragma unroll
    for (int o = 0; o < WK - 1; o++)
#pragma unroll
      for (int i = 0; i < NT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) d[i][j] += partial[o][wc][i * 4 + j][lane];
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int token = i * 8 + 2 * t + j;
        if (token >= count) continue;
        Out* y = all + (long)list[token] * n;
        const float u = d[i][j], v = d[i][j + 2];
        if (DUAL) {
          if (column < n) y[column] = from_float<Out>(u / (1.f + __expf(-u)) * v);
        } else {
          if (column < n) y[column] = from_float<Out>(u);
          if (column + 8 < n) y[column + 8] = from_float<Out>(v);
        }
      }
  }
  __syncthreads();
}

