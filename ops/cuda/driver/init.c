/* cuInit of the driver stub: loads libcuda.so.1 once, fills the slots of slots.S, and reports success whatever happened,
 * because gorgonia.org/cu ends the process when cuInit fails. The real outcome waits in seafan_driver_result and
 * seafan_driver_message. A slot without a symbol keeps answering CUDA_ERROR_NO_DEVICE. */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char *const seafan_slot_names[];
extern void *seafan_slots[];
extern const int seafan_slot_count;

int seafan_driver_result = CUDA_ERROR_NO_DEVICE;
char seafan_driver_message[256] = "the driver was not asked for yet";

int seafan_no_device(void) { return CUDA_ERROR_NO_DEVICE; }

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
  /* SEAFAN_CUDA_VARIANT=ptx runs the portable code from its PTX: the driver must ignore the machine code of the image. */
  const char *variant = getenv("SEAFAN_CUDA_VARIANT");
  if (variant && strcmp(variant, "ptx") == 0) setenv("CUDA_FORCE_PTX_JIT", "1", 1);
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    snprintf(seafan_driver_message, sizeof seafan_driver_message, "no CUDA driver: %s", dlerror());
    return;
  }
  CUresult (*init)(unsigned int) = (CUresult (*)(unsigned int))dlsym(lib, "cuInit");
  if (!init) {
    snprintf(seafan_driver_message, sizeof seafan_driver_message, "libcuda.so.1 has no cuInit");
    return;
  }
  for (int i = 0; i < seafan_slot_count; i++) {
    void *f = dlsym(lib, seafan_slot_names[i]);
    if (f) seafan_slots[i] = f;
  }
  seafan_driver_result = init(0);
  if (seafan_driver_result == CUDA_SUCCESS)
    seafan_driver_message[0] = 0;
  else
    snprintf(seafan_driver_message, sizeof seafan_driver_message, "libcuda.so.1 is present, cuInit answered %d", seafan_driver_result);
}

CUresult CUDAAPI cuInit(unsigned int flags) {
  (void)flags;
  pthread_once(&once, load);
  return CUDA_SUCCESS;
}
