// Encoded gathers of parameters on GPUs: the layers read what they read on CPUs.
#include <cmath>

#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda/training.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

namespace trireme::test {

TEST_CASE("encoded parameters on GPUs train as on the CPU", "[gpus2]") {
  uint64_t seed = 0;
  for (const char* const spec : {"dp2z1", "pp2dp2z3"}) {
    ParityLayout layout;
    static_cast<Layout&>(layout) = parse_layout(spec);
    Config plain = parity_config(ParityModel::kGpt2, layout, "fp32"), encoded = plain;
    encoded.training.compression.parameters = ParameterEncoding::kInt8;
    encoded.training.compression.block = 32;
    if (!testing::has_gpus(layout.world(), spec)) continue;
    INFO(spec);
    const RunRecord without = train_on_threads(plain, 1, Device::kCpu), on_cpu = train_on_threads(encoded, 3, Device::kCpu);
    testing::set_schedule(seed++);
    const RunRecord on_gpus = train_on_gpus(encoded, 3);
    // The first gather is of equal weights, so all that is read is equal. In the second one an element in thousands has the neighbouring code.
    const double rounding = std::abs(on_cpu.loss[0] - without.loss[0]);
    CHECK(std::abs(on_gpus.loss[0] - on_cpu.loss[0]) < 0.01 * rounding);
    CHECK(std::abs(on_gpus.loss[1] - on_cpu.loss[1]) < 1e-3 * on_cpu.loss[1]);
    CHECK(gradient_error(on_cpu, on_gpus) < 1e-4);
    encoded.kernels.cuda_graph = true;  // the third step is captured
    CHECK(train_on_gpus(encoded, 3) == on_gpus);
  }
}

}  // namespace trireme::test
