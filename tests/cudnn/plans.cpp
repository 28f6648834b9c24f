// Builds the product's attention graphs with the real cuDNN for GPUs that are described to it: it must support them, and need no more workspace than
// the memory forecast counts. It needs no GPU: cuDNN compiles plans for a described one, and the driver is that of driver.cpp. Nothing is executed.
//   cudnn_plans DRIVER      exit code 77: cuDNN is not installed
#include <dlfcn.h>

#include <cstdio>
#include <exception>
#include <string>

#include "kernels/core/check.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/cudnn_library.h"

using namespace trireme;
using trireme::cuda::AttentionPart;

namespace {

/// A GPU in cuDNN's JSON, with the figures of CUDA's properties.
struct DescribedGpu {
  const char* name;
  int capability;  ///< times ten
  int multiprocessors;
  int shared_bytes;  ///< that a block may have
};
constexpr DescribedGpu kGpus[] = {{"NVIDIA A100-SXM4-80GB", 80, 108, 166912},
                                  {"NVIDIA L40S", 89, 142, 101376},
                                  {"NVIDIA H100 80GB HBM3", 90, 132, 232448},
                                  {"NVIDIA B200", 100, 148, 232448},
                                  {"NVIDIA GeForce RTX 5090", 120, 170, 101376}};

std::string properties_of(const DescribedGpu& gpu) {
  return concat(
      R"({"deviceVer":)", 10 * gpu.capability, R"(,"driverVer":13000,"cudaDeviceId":0,"totalGlobalMem":34359738368,)",
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":)", gpu.multiprocessors,
      R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)", gpu.shared_bytes,
      R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":24,"maxThreadsPerBlock":1024,"maxThreadsPerSM":1536,)",
      R"("pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1700000,"memClockRateKHz":2600000,"l2CacheSize":41943040,)",
      R"("deviceName":")", gpu.name, R"("})");
}

/// Shapes of configs/, of small models, and awkward ones: shared kv heads, windows, lengths and head sizes that are no multiples of tiles, odd lengths of slices.
struct Case {
  AttentionShape shape;
  DType dtype;
};
constexpr Case kCases[] = {{{8, 2048, 16, 16, 128}, DType::kBF16}, {{1, 8192, 32, 8, 128}, DType::kBF16}, {{2, 1000, 8, 2, 96, 100}, DType::kF16},
                           {{1, 77, 4, 1, 40, 5}, DType::kBF16},   {{3, 333, 6, 3, 64, 1}, DType::kF16},  {{1, 5, 1, 1, 8}, DType::kBF16}};

/// Returns the number of failures.
int check(const DescribedGpu& gpu, const Case& one, bool backward) {
  constexpr int64_t kForward = int64_t{4} << 20;  // what Gpu has for libraries before Hopper
  AttentionPart part{.whole = one.shape, .sequences = one.shape.batch, .kv_heads = one.shape.kv_heads, .dtype = one.dtype};
  int64_t allowed = kForward;
  if (backward) {
    const cuda::CudnnSlice slice = cuda::cudnn_slice(one.shape, cuda::GpuOptions{}.cudnn_workspace);
    part.sequences = slice.sequences;
    part.kv_heads = slice.kv_heads;
    allowed = cuda::cudnn_workspace_bytes(one.shape, one.dtype);
  }
  std::string why;
  const auto graph = cuda::CudnnGraph::build({.compute_capability = gpu.capability, .properties = properties_of(gpu)}, part, backward, why);
  const int64_t bytes = graph != nullptr ? graph->workspace_bytes() : 0;
  const bool fits = graph != nullptr && bytes <= allowed;
  const AttentionShape& s = one.shape;
  std::printf("%s  sm_%-3d %-8s %ld x %ld tokens, %ld heads, %ld kv heads of size %ld, window %ld: %ld bytes of %ld%s%s\n", fits ? "ok  " : "FAIL",
              gpu.capability, backward ? "backward" : "forward", s.batch, s.sequence, s.heads, s.kv_heads, s.head_size, s.window, bytes, allowed,
              graph == nullptr ? ": " : "", why.c_str());
  return fits ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  if (dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) == nullptr) {  // cuDNN asks for libcuda.so.1, which is loaded then
    std::printf("%s\n", dlerror());
    return 1;
  }
  try {
    std::printf("cuDNN %s\n", cuda::cudnn_version_text(cuda::cudnn().version()).c_str());
  } catch (const ConfigError& error) {
    std::printf("%s\n", error.what());
    return 77;
  }
  int failures = 0;
  for (const DescribedGpu& gpu : kGpus)
    for (const Case& one : kCases)
      for (const bool backward : {false, true}) failures += check(gpu, one, backward);
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
