#include "tests/support/gpu.h"

namespace trireme::testing {

cuda::Gpu& test_gpu() {
  static auto* const gpu = new cuda::Gpu(0, {});  // never destroyed: at exit the machine may be gone before it
  return *gpu;
}

}  // namespace trireme::testing
