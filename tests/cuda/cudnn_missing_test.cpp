// Builds without the headers of cuDNN; the others have cudnn_test.cpp.
#include "kernels/core/check.h"
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "trainer/machine/machine.h"

namespace trireme::test {

TEST_CASE("cuDNN attention: a build without its headers refuses it before anything starts, and nothing else") {
  Config config;
  config.run.device = DeviceType::kCuda;
  config.training.precision = Arithmetic::kBf16;
  const auto open = [&] { const Machine machine(std::make_unique<SelfCommunicator>("world"), {0, 1}, config); };
  testing::reset_gpus(0);
  CHECK_NOTHROW(open());
  config.kernels.attention = AttentionEngine::kCudnn;
  try {
    open();
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    CHECK_THAT(error.what(), Catch::Matchers::Contains("kernels.attention=cudnn: this build has no cuDNN attention"));
  }
}

}  // namespace trireme::test
