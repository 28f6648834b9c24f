#include "tests/support/gpu.h"

namespace trireme::testing {

cuda::Gpu& test_gpu() {
  static auto* const gpu = new cuda::Gpu(0, {});  // never destroyed: at exit the simulated machine may be destroyed first
  return *gpu;
}

}  // namespace trireme::testing
