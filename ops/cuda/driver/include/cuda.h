/* Wrapper in front of the toolkit's cuda.h. CUDA 13 gave five driver functions a new signature under the old name;
 * gorgonia.org/cu calls the old ones. The driver exports both, so this header points the names back at them. */
#include_next <cuda.h>
#ifndef SEAFAN_CUDA_WRAPPER_H
#define SEAFAN_CUDA_WRAPPER_H
#if CUDA_VERSION >= 13000
#undef cuCtxCreate
#undef cuMemAdvise
#undef cuMemPrefetchAsync
#undef cuGraphAddDependencies
#undef cuGraphGetEdges
#define cuCtxCreate cuCtxCreate_v2
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device);
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream);
CUresult CUDAAPI cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to, size_t numDependencies);
CUresult CUDAAPI cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges);
#endif
#endif
