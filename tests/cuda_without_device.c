/* A libcuda.so.1 that answers what libraries ask before they have work for a device, and does
   nothing: every function succeeds.  The device has compute capability 9.0. */

#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, NOT_FOUND = 500, VERSION = 13000, MAJOR = 75 };

/* What cuDNN looks up by name in the library, and calls without harm if it does nothing. */
#define SILENT(f)                                                                                  \
  f(cuCtxGetCurrent) f(cuCtxGetDevice) f(cuCtxGetLimit) f(cuCtxPopCurrent) f(cuCtxPushCurrent)     \
  f(cuDevicePrimaryCtxRelease) f(cuDevicePrimaryCtxReset) f(cuDevicePrimaryCtxRetain)              \
  f(cuFuncGetAttribute) f(cuFuncSetAttribute) f(cuGetErrorName) f(cuGetErrorString)                \
  f(cuKernelGetAttribute) f(cuKernelSetAttribute) f(cuLaunchCooperativeKernel) f(cuLaunchKernel)   \
  f(cuLaunchKernelEx) f(cuLibraryUnload) f(cuLinkAddData) f(cuLinkAddData_v2) f(cuLinkAddFile_v2)  \
  f(cuLinkComplete) f(cuLinkCreate) f(cuLinkCreate_v2) f(cuLinkDestroy) f(cuMemcpyDtoH_v2)         \
  f(cuModuleGetGlobal_v2) f(cuModuleUnload) f(cuOccupancyMaxActiveBlocksPerMultiprocessor)         \
  f(cuOccupancyMaxPotentialClusterSize) f(cuStreamGetCtx) f(cuStreamGetGreenCtx)                   \
  f(cuStreamSynchronize) f(cuTensorMapEncodeIm2col) f(cuTensorMapEncodeTiled)
#define DEFINED(name)                                                                              \
  int name(void) { return SUCCESS; }
SILENT(DEFINED)

/* What gives a library, a kernel or a function, which must not be a null pointer. */
#define GIVING(f)                                                                                  \
  f(cuKernelGetFunction) f(cuLibraryGetKernel) f(cuLibraryLoadData) f(cuLibraryLoadFromFile)       \
  f(cuModuleGetFunction) f(cuModuleLoadData) f(cuModuleLoadDataEx) f(cuModuleLoadFatBinary)
#define GIVEN(name)                                                                                \
  int name(void **found) {                                                                         \
    *found = "something";                                                                          \
    return SUCCESS;                                                                                \
  }
GIVING(GIVEN)

static int silent(void) { return SUCCESS; }

int cuInit(unsigned flags) { return SUCCESS; }

int cuDriverGetVersion(int *version) {
  *version = VERSION;
  return SUCCESS;
}

int cuDeviceGetCount(int *count) {
  *count = 1;
  return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == MAJOR ? 9 : 0;
  return SUCCESS;
}

/* A table of functions that the CUDA runtime asks for; the first word is its size.  One of another
   kind, whose functions would have to give objects, is missing. */
int cuGetExportTable(const void **found, const void *id) {
  static void *table[512];
  if (*(const uint32_t *)id == 0xd35191da)
    return NOT_FOUND;
  table[0] = (void *)sizeof table;
  for (size_t i = 1; i < sizeof table / sizeof *table; i++)
    table[i] = (void *)silent;
  *found = table;
  return SUCCESS;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status);

int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, found, version, flags, 0);
}

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
  static const struct {
    const char *name;
    void *function;
  } answering[] = {
      {"cuInit", (void *)cuInit},
      {"cuDriverGetVersion", (void *)cuDriverGetVersion},
      {"cuDeviceGetCount", (void *)cuDeviceGetCount},
      {"cuDeviceGet", (void *)cuDeviceGet},
      {"cuDeviceGetAttribute", (void *)cuDeviceGetAttribute},
      {"cuGetExportTable", (void *)cuGetExportTable},
  };
  *found = (void *)silent;
  if (status)
    *status = SUCCESS;
  if (!strcmp(name, "cuGetProcAddress"))
    *found = version < 12000 ? (void *)cuGetProcAddress : (void *)cuGetProcAddress_v2;
  for (size_t i = 0; i < sizeof answering / sizeof *answering; i++)
    if (!strcmp(name, answering[i].name))
      *found = answering[i].function;
  return SUCCESS;
}
