#include "tests/support/gpu.h"

#include "tests/support/catch.h"

namespace trireme::testing {

cuda::Gpu& test_gpu() {
  static auto* const gpu = new cuda::Gpu(0, {});  // never destroyed: at exit the simulated machine may be destroyed first
  return *gpu;
}

bool has_gpus(int needed, const std::string& what) {
  const int found = cuda::gpu_count();
  if (needed > found) WARN("not run, as it needs " << needed << " GPUs and this machine has " << found << ": " << what);
  return needed <= found;
}

}  // namespace trireme::testing
