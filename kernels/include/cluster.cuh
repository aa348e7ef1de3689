// The blocks of a cluster, as any GPU has them: before Hopper, and in code of another machine's PTX, a block is alone.
#pragma once
#include <stdint.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ int cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ int cluster_blocks() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The same place in the shared memory of another block.
template <class T> __device__ __forceinline__ T* cluster_peer(T* p, int rank) {
  T* r;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(r) : "l"(p), "r"(rank));
  return r;
}
#else
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ int cluster_blocks() { return 1; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() { __syncthreads(); }
template <class T> __device__ __forceinline__ T* cluster_peer(T* p, int) { return p; }
#endif
// All threads of all blocks, and what they wrote to any shared memory.
__device__ __forceinline__ void cluster_meet() {
  cluster_arrive();
  cluster_wait();
}
