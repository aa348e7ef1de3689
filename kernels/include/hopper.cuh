// Hopper's own instructions as thin functions: mbarrier, the bulk tensor copy engine, wgmma, register reallocation.
// Everything here exists only in code compiled for sm_90a.
//
// Shared-memory tiles for wgmma are rows of 128 bytes (64 elements of 16 bits) with the 128-byte swizzle that the copy
// engine writes, aligned to 1024 bytes. K-major operands (row = M or N index): descriptor at the tile plus 32 bytes for
// each 16 of k. MN-major B operands (row = k index): columns in blocks of 64, `block` bytes apart, 2048 bytes each 16 of k.
// An accumulator of N columns: thread 32w+4g+t of the warpgroup holds rows 16w+g and 16w+g+8; d[4i+0,1] are columns 8i+2t
// and 8i+2t+1 of the first row, d[4i+2,3] of the second.
#pragma once
#include <cuda.h>
#include "mma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SEAFAN_HOPPER 1

__device__ __forceinline__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_expect(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Arrives at the barrier at the same place in another block of the cluster.
__device__ __forceinline__ void barrier_arrive_remote(uint64_t* b, uint32_t block) {
  asm volatile("{\n\t.reg .b32 r;\n\tmapa.shared::cluster.u32 r, %0, %1;\n\tmbarrier.arrive.shared::cluster.b64 _, [r];\n\t}" ::"r"(
                   shared_address(b)), "r"(block)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tagain_%=:\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t@p bra done_%=;\n\tbra again_%=;\n\tdone_%=:\n\t}" ::"r"(
          shared_address(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap* m) { asm volatile("prefetch.tensormap [%0];" ::"l"(m) : "memory"); }
__device__ __forceinline__ void copy_tensor2(void* dst, const CUtensorMap* m, uint64_t* bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(dst)), "l"(m),
               "r"(shared_address(bar)), "r"(x), "r"(y)
               : "memory");
}
__device__ __forceinline__ void copy_tensor2_multicast(void* dst, const CUtensorMap* m, uint64_t* bar, int x, int y, uint16_t blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
                   shared_address(dst)),
               "l"(m), "r"(shared_address(bar)), "r"(x), "r"(y), "h"(blocks)
               : "memory");
}
__device__ __forceinline__ void copy_tensor3(void* dst, const CUtensorMap* m, uint64_t* bar, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(dst)),
               "l"(m), "r"(shared_address(bar)), "r"(x), "r"(y), "r"(z)
               : "memory");
}
__device__ __forceinline__ void copy_tensor4(void* dst, const CUtensorMap* m, uint64_t* bar, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
                   shared_address(dst)),
               "l"(m), "r"(shared_address(bar)), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

template <int N> __device__ __forceinline__ void registers_give() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void registers_take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t block = 16) {
  return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(block >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Keeps the compiler from moving reads or writes of an accumulator across the asynchronous instructions.
template <int N> __device__ __forceinline__ void wgmma_pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ __forceinline__ void wgmma_pin(uint32_t (&a)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}
#endif

#include "wgmma.cuh"
