// A CUDA driver without a GPU, in place of libcuda.so.1: what cuDNN calls to compile and load the kernels of a plan. Nothing can be launched.
// cuDNN 9.19 looks up the other functions too, and refuses to compile without them.
namespace {
int g_anything;
constexpr int kNotSupported = 801;
}  // namespace

extern "C" {

int cuInit(unsigned /*flags*/) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 0;
  return 0;
}
int cuGetExportTable(const void** /*table*/, const void* /*id*/) { return kNotSupported; }
int cuLibraryLoadData(void** library) {
  *library = &g_anything;
  return 0;
}
int cuLibraryGetKernel(void** kernel) {
  *kernel = &g_anything;
  return 0;
}
int cuLibraryUnload(void* /*library*/) { return 0; }

#define TRIREME_UNSUPPORTED(name) \
  int name() { return kNotSupported; }
TRIREME_UNSUPPORTED(cuGetErrorName)
TRIREME_UNSUPPORTED(cuGetErrorString)
TRIREME_UNSUPPORTED(cuCtxGetCurrent)
TRIREME_UNSUPPORTED(cuCtxGetLimit)
TRIREME_UNSUPPORTED(cuCtxPopCurrent)
TRIREME_UNSUPPORTED(cuCtxPushCurrent)
TRIREME_UNSUPPORTED(cuStreamGetCtx)
TRIREME_UNSUPPORTED(cuLinkCreate)
TRIREME_UNSUPPORTED(cuLinkAddData)
TRIREME_UNSUPPORTED(cuLinkComplete)
TRIREME_UNSUPPORTED(cuLinkDestroy)
TRIREME_UNSUPPORTED(cuLaunchKernel)
TRIREME_UNSUPPORTED(cuLaunchKernelEx)
TRIREME_UNSUPPORTED(cuLaunchCooperativeKernel)
TRIREME_UNSUPPORTED(cuDeviceGet)
TRIREME_UNSUPPORTED(cuLibraryLoadFromFile)
TRIREME_UNSUPPORTED(cuKernelSetAttribute)
TRIREME_UNSUPPORTED(cuKernelGetAttribute)
TRIREME_UNSUPPORTED(cuOccupancyMaxPotentialClusterSize)

}  // extern "C"
