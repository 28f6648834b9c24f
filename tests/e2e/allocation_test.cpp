// Steps after the second allocate no memory: a longer run allocates the same number of large buffers as a shorter one. Arena::system_allocations
// counts those of the arena; this test counts those of the complete process with a preloaded library.
#include <sstream>

#include "kernels/core/isa.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace trireme::test {
namespace {

/// Activations of 512 rows: 128 KiB and more in every precision.
const std::string kWide = R"(run: {directory: run}
model: {layers: 2, hidden_size: 256, heads: 4, kv_heads: 2, ffn_size: 512, dropout: 0.1}
training: {steps: 2, sequence_length: 128, micro_batch_size: 4, global_batch_size: 8}
data: {train: [train]}
checkpoint: {every: 100}
)";

struct Counts {
  long of_library = 0, of_others = 0;
};

/// Number of buffers of 64 KiB or more that a run of `steps` steps allocates in all of its processes.
Counts large_buffers(const TemporaryDirectory& directory, const std::string& precision, int steps) {
  const std::string name = precision + "-" + std::to_string(steps), file = (directory / (name + ".txt")).string();
  const Arguments preloaded{"env", "LD_PRELOAD=" + shim("allocations"), "TRIREME_SHIM_BYTES=65536", "TRIREME_SHIM_COUNT_FILE=" + file};
  const Arguments settings = sets({"training.precision=" + precision, "training.steps=" + std::to_string(steps), "run.directory=" + name});
  Process process(preloaded + Arguments{kBinary, "train", "wide.yaml"} + settings, directory.path());
  const Outcome outcome = process.wait();
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  std::istringstream lines(read_file(file));
  Counts counts, line;
  while (lines >> line.of_library >> line.of_others) {
    counts.of_library += line.of_library;
    counts.of_others += line.of_others;
  }
  return counts;
}

TEST_CASE("allocations: steps after the second allocate no large buffer") {
  TemporaryDirectory directory;
  build_data(directory);
  write_file(directory / "wide.yaml", kWide);
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    INFO(precision);
    const Counts two = large_buffers(directory, precision, 2), five = large_buffers(directory, precision, 5);
    CHECK(two.of_others > 10);  // parameters and activations are counted
    CHECK(five.of_others == two.of_others);
    // dnnl_sgemm allocates packing buffers at each call and cannot be given any; bf16 products keep theirs in the primitive.
    if (precision == "bf16" && best_isa() >= Isa::kAvx512Bf16) CHECK(five.of_library == two.of_library);
  }
}

}  // namespace
}  // namespace trireme::test

#endif
