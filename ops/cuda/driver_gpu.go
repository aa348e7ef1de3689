//go:build gpu

package cuda

// The driver calls that gorgonia.org/cu lacks, and the probe of the driver stub.

/*
#cgo CFLAGS: -Wno-deprecated-declarations
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

extern int seafan_driver_result;
extern char seafan_driver_message[];

static int driverResult(void) { return seafan_driver_result; }
static const char *driverMessage(void) { return seafan_driver_message; }

static const char *errorText(int code) {
  const char *text = 0;
  if (cuGetErrorString((CUresult)code, &text) != CUDA_SUCCESS || !text) return "unknown error";
  return text;
}

// The driver says where each parameter of a kernel lies; the block has them at the same distances from the first. (They
// do not start at 0 when the first is a tensor map, which is aligned to 128 bytes in constant memory.) Answers -1 when the
// block is not as long as the parameters.
static int launch(CUfunction f, CUstream stream, unsigned gx, unsigned gy, unsigned gz, unsigned block, unsigned shared,
                  unsigned cluster, int overlap, void *args, size_t size, int count) {
  CUlaunchAttribute attr[2];
  CUlaunchConfig cfg;
  memset(&cfg, 0, sizeof cfg);
  memset(attr, 0, sizeof attr);
  cfg.gridDimX = gx; cfg.gridDimY = gy; cfg.gridDimZ = gz;
  cfg.blockDimX = block; cfg.blockDimY = 1; cfg.blockDimZ = 1;
  cfg.sharedMemBytes = shared;
  cfg.hStream = stream;
  cfg.attrs = attr;
  if (cluster > 1) {
    attr[cfg.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attr[cfg.numAttrs].value.clusterDim.x = cluster;
    attr[cfg.numAttrs].value.clusterDim.y = 1;
    attr[cfg.numAttrs].value.clusterDim.z = 1;
    cfg.numAttrs++;
  }
  if (overlap) {
    attr[cfg.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attr[cfg.numAttrs].value.programmaticStreamSerializationAllowed = 1;
    cfg.numAttrs++;
  }
  void *params[64];
  size_t first = 0, offset = 0, bytes = 0, end = 0;
  for (int n = 0; n < count; n++) {
    CUresult code = cuFuncGetParamInfo(f, n, &offset, &bytes);
    if (code != CUDA_SUCCESS) return code;
    if (n == 0) first = offset;
    params[n] = (char *)args + (offset - first);
    end = offset - first + bytes;
  }
  if (end < size || end - size >= 8) return -1; // a struct at the end may be padded
  return cuLaunchKernelEx(&cfg, f, params, 0);
}

// How many parameters a kernel has, 64 at most: asked once a kernel, because the driver says it by an error.
static int paramCount(CUfunction f) {
  size_t offset, bytes;
  int n = 0;
  while (n < 64 && cuFuncGetParamInfo(f, n, &offset, &bytes) == CUDA_SUCCESS) n++;
  return n;
}

static int encodeMap(void *dst, int type, unsigned rank, unsigned long long base, void *dims, void *strides, void *box, int swizzle) {
  CUtensorMap map __attribute__((aligned(64)));
  cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  int code = cuTensorMapEncodeTiled(&map, (CUtensorMapDataType)type, rank, (void *)base, (const cuuint64_t *)dims,
      (const cuuint64_t *)strides, (const cuuint32_t *)box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, (CUtensorMapSwizzle)swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  memcpy(dst, &map, sizeof map);
  return code;
}

static int beginCapture(CUstream s) { return cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL); }
static int endCapture(CUstream s, CUgraph *g) { return cuStreamEndCapture(s, g); }
static int instantiate(CUgraphExec *e, CUgraph g) { return cuGraphInstantiate(e, g, 0); }
static int allowShared(CUfunction f, int bytes) {
  return cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
}
static int pinned(void **p, size_t n) { return cuMemHostAlloc(p, n, CU_MEMHOSTALLOC_PORTABLE); }
*/
import "C"

import (
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"gorgonia.org/cu"
)

// probe answers nil when a driver was found and started, else what was looked for.
func probe() error {
	if C.driverResult() == 0 {
		return nil
	}
	return errors.New(C.GoString(C.driverMessage()))
}

func check(code C.int, call string) error {
	if code == 0 {
		return nil
	}
	return &Error{Call: call, Code: int(code), Reason: C.GoString(C.errorText(code))}
}

// wrap gives an error of cu the same form as our own.
func wrap(err error, call string) error {
	if err == nil {
		return nil
	}
	e := &Error{Call: call, Reason: err.Error()}
	var code int
	if _, scan := fmt.Sscanf(fmt.Sprintf("%d", err), "%d", &code); scan == nil {
		e.Code, e.Reason = code, C.GoString(C.errorText(C.int(code)))
	}
	return e
}

func function(f cu.Function) C.CUfunction { return *(*C.CUfunction)(unsafe.Pointer(&f)) }
func stream(s cu.Stream) C.CUstream       { return *(*C.CUstream)(unsafe.Pointer(&s)) }

func paramCount(f cu.Function) int { return int(C.paramCount(function(f))) }

// launchRaw launches with an argument block that has 8 bytes of room behind its end.
func launchRaw(f cu.Function, params int, s cu.Stream, l Launch, block []byte) error {
	overlap := C.int(0)
	if l.Overlap {
		overlap = 1
	}
	code := C.launch(function(f), stream(s), C.uint(l.Grid[0]), C.uint(l.Grid[1]), C.uint(l.Grid[2]), C.uint(l.Block),
		C.uint(l.Shared), C.uint(l.Cluster), overlap, unsafe.Pointer(unsafe.SliceData(block)), C.size_t(len(block)), C.int(params))
	switch code {
	case 0:
		return nil
	case -1:
		return fmt.Errorf("cuda: the arguments of %s fill %d bytes, which is not what the kernel takes", l.Kernel, len(block))
	}
	return check(code, fmt.Sprintf("launch of %s, grid %v, block %d, shared memory %d", l.Kernel, l.Grid, l.Block, l.Shared))
}

func encodeMap(dst []byte, m TensorMap) error {
	if len(m.Dims) < 1 || len(m.Dims) > 5 || len(m.Strides) != len(m.Dims)-1 || len(m.Box) != len(m.Dims) {
		return fmt.Errorf("tensor map: 1 to 5 dims, one stride fewer and as many box sides are required, got %v", m)
	}
	kinds := map[DType]C.int{BF16: C.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, F16: C.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, F32: C.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, E4M3: C.CU_TENSOR_MAP_DATA_TYPE_UINT8, E5M2: C.CU_TENSOR_MAP_DATA_TYPE_UINT8}
	swizzles := map[int]C.int{0: C.CU_TENSOR_MAP_SWIZZLE_NONE, 32: C.CU_TENSOR_MAP_SWIZZLE_32B, 64: C.CU_TENSOR_MAP_SWIZZLE_64B, 128: C.CU_TENSOR_MAP_SWIZZLE_128B}
	swizzle, ok := swizzles[m.Swizzle]
	if !ok {
		return fmt.Errorf("tensor map: swizzle %d: 0, 32, 64 or 128 bytes are possible", m.Swizzle)
	}
	strides := m.Strides
	if len(strides) == 0 {
		strides = []uint64{0}
	}
	code := C.encodeMap(unsafe.Pointer(&dst[0]), kinds[m.Type], C.uint(len(m.Dims)), C.ulonglong(m.Base.Addr),
		unsafe.Pointer(&m.Dims[0]), unsafe.Pointer(&strides[0]), unsafe.Pointer(&m.Box[0]), swizzle)
	return check(code, "tensor map "+m.String())
}

func allowShared(f cu.Function, bytes int) error {
	return check(C.allowShared(function(f), C.int(bytes)), "shared memory of "+strconv.Itoa(bytes)+" bytes a block")
}

func beginCapture(s cu.Stream) error { return check(C.beginCapture(stream(s)), "begin capture") }

// executable is an instantiated CUDA graph.
type executable struct{ exec C.CUgraphExec }

// endCapture ends the capture; build says whether to instantiate what was captured.
func endCapture(s cu.Stream, build bool) (executable, error) {
	var g C.CUgraph
	var e executable
	if err := check(C.endCapture(stream(s), &g), "end capture"); err != nil {
		return e, err
	}
	defer C.cuGraphDestroy(g)
	if !build {
		return e, nil
	}
	return e, check(C.instantiate(&e.exec, g), "instantiate graph")
}

func (e executable) launch(s cu.Stream) error {
	return check(C.int(C.cuGraphLaunch(e.exec, stream(s))), "launch graph")
}

func (e executable) destroy() error {
	return check(C.int(C.cuGraphExecDestroy(e.exec)), "destroy graph")
}

func pinned(n int64) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	err := check(C.pinned(&p, C.size_t(n)), fmt.Sprintf("%d bytes of pinned host memory", n))
	return p, err
}
