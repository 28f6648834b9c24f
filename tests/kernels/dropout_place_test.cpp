// The random numbers of dropout masks and initial values against the definition in kernels/core/rng.h, also for indices above 2^32: engines that
// truncate the index in the same way would agree with each other.
#include "tests/kernels/harness.h"
#include "tests/support/catch.h"
#include "trainer/model/microbatch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

constexpr int64_t kRows = 6, kColumns = 37;
constexpr uint64_t kSeed = 7, kStep = 5;
constexpr double kProbability = 0.3;

/// Calls body(device, isa) for every device of this build and every instruction-set level of this CPU.
template <class Body>
void for_each_engine(const Body& body) {
  for (const Device device : devices())
    if (device != Device::kCpu) body(device, best_isa());
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) body(Device::kCpu, static_cast<Isa>(level));
}

/// Number of `values` that are dropped or kept contrary to the draws from `first` on.
int64_t unexplained(const std::vector<double>& values, uint64_t key, uint64_t first) {
  int64_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) wrong += (values[i] != 0) != (random_uniform32(key, first + i, kStep) >= kProbability);
  return wrong;
}

}  // namespace

TEST_CASE("a dropout mask uses all 64 bits of an element's index") {
  const uint64_t key = random_key(kSeed, "dropout:test");
  // The first element has any of the four words of a call.
  for (const uint64_t first : {uint64_t{8}, uint64_t{9}, (uint64_t{1} << 32) + 10, (uint64_t{1} << 34) + 11, (uint64_t{1} << 45) + 12}) {
    const Operation operation{
        "dropout", {input("x", {kRows, kColumns}), assigned("y", {kRows, kColumns})}, [=](Context& ctx, const std::vector<Tensor>& t) {
          dropout(ctx, t[0], {key, kStep, first, kProbability}, t[1]);
        }};
    for_each_engine([&](Device device, Isa isa) {
      INFO(static_cast<int>(device) << " on " << name_of(isa) << ", first index " << first);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
        for (const Alignment alignment : {Alignment::kElement, Alignment::kVector})
          CHECK(unexplained(run(operation, device, dtype, 1, alignment, isa)[1], key, first) == 0);
    });
  }
}

TEST_CASE("dropout of a forward pass uses the index in the global batch, also above 2^32 activations") {
  const uint64_t key = random_key(kSeed, "dropout:embedding");
  for (const int64_t sample : {int64_t{0}, int64_t{3}, int64_t{1} << 20}) {
    const ForwardContext pass{
        .sequence = 1 << 15, .rows = 1 << 15, .first_row = 21, .first_sample = sample, .seed = kSeed, .step = kStep, .dropout = kProbability};
    const Operation operation{"ForwardContext::drop", {in_place("x", {kRows, kColumns})}, [&](Context& ctx, const std::vector<Tensor>& t) {
                                pass.drop(ctx, "embedding", t[0]);
                              }};
    const auto first = static_cast<uint64_t>((sample * pass.sequence + pass.first_row) * kColumns);
    for_each_engine([&](Device device, Isa isa) {
      INFO(static_cast<int>(device) << " on " << name_of(isa) << ", first index " << first);
      CHECK(unexplained(run(operation, device, DType::kF32, 1, Alignment::kElement, isa)[0], key, first) == 0);
    });
  }
}

TEST_CASE("initial values use all 64 bits of an element's index") {
  constexpr int64_t kGlobalColumns = 41, kFirstColumn = 2;
  for (const int64_t row : {int64_t{0}, (int64_t{1} << 32) / kGlobalColumns + 9, int64_t{1} << 40}) {
    const Operation operation{"fill_normal", {assigned("out", {kRows, kColumns})}, [row](Context& ctx, const std::vector<Tensor>& t) {
                                fill_normal(ctx, 42, 0.5, kGlobalColumns, row, kFirstColumn, t[0]);
                              }};
    std::vector<double> expected;
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c)
        expected.push_back(0.5 * random_normal(42, static_cast<uint64_t>((row + r) * kGlobalColumns + kFirstColumn + c)));
    for_each_engine([&](Device device, Isa isa) {
      INFO(static_cast<int>(device) << " on " << name_of(isa) << ", row " << row);
      CHECK(normalised_error(run(operation, device, DType::kF32, 1, Alignment::kElement, isa)[0], expected) <= 1e-6);
    });
  }
}
