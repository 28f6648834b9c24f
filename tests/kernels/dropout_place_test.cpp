// Which numbers a dropout mask and initial values are drawn by, held against the definition in kernels/core/rng.h: above 2^32 too, where engines that cut the
// index in the same way would agree with each other.
#include "tests/kernels/harness.h"
#include "tests/support/catch.h"
#include "trainer/model/microbatch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

constexpr int64_t kRows = 6, kColumns = 37;
constexpr uint64_t kSeed = 7, kStep = 5;
constexpr double kProbability = 0.3;

/// body(device, isa): on every kind of kernels that this build and this processor have.
template <class Body>
void for_each_engine(const Body& body) {
  for (const Device device : devices())
    if (device != Device::kCpu) body(device, best_isa());
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) body(Device::kCpu, static_cast<Isa>(level));
}

/// How many of `values` are dropped or kept against the draws from `first` on.
int64_t unexplained(const std::vector<double>& values, uint64_t key, uint64_t first) {
  int64_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) wrong += (values[i] != 0) != (random_uniform(key, first + i, kStep) >= kProbability);
  return wrong;
}

}  // namespace

TEST_CASE("a dropout mask is drawn by all 64 bits of an element's index") {
  const uint64_t key = random_key(kSeed, "dropout:test");
  for (const uint64_t first : {uint64_t{11}, (uint64_t{1} << 32) + 11, (uint64_t{1} << 45) + 11}) {
    const Operation operation{
        "dropout", {input("x", {kRows, kColumns}), assigned("y", {kRows, kColumns})}, [=](Context& ctx, const std::vector<Tensor>& t) {
          dropout(ctx, t[0], {key, kStep, first, kProbability}, t[1]);
        }};
    for_each_engine([&](Device device, Isa isa) {
      INFO(static_cast<int>(device) << " with instructions " << name_of(isa) << ", first index " << first);
      CHECK(unexplained(run(operation, device, DType::kF32, 1, Alignment::kElement, isa)[1], key, first) == 0);
    });
  }
}

TEST_CASE("a pass drops by the place in the global batch, in batches of more than 2^32 activations too") {
  const uint64_t key = random_key(kSeed, "dropout:embedding");
  for (const int64_t sample : {int64_t{0}, int64_t{3}, int64_t{1} << 20}) {
    const ForwardContext pass{
        .sequence = 1 << 15, .rows = 1 << 15, .first_row = 21, .first_sample = sample, .seed = kSeed, .step = kStep, .dropout = kProbability};
    const Operation operation{
        "a pass drops", {in_place("x", {kRows, kColumns})}, [&](Context& ctx, const std::vector<Tensor>& t) { pass.drop(ctx, "embedding", t[0]); }};
    const auto first = static_cast<uint64_t>((sample * pass.sequence + pass.first_row) * kColumns);
    for_each_engine([&](Device device, Isa isa) {
      INFO(static_cast<int>(device) << " with instructions " << name_of(isa) << ", first index " << first);
      CHECK(unexplained(run(operation, device, DType::kF32, 1, Alignment::kElement, isa)[0], key, first) == 0);
    });
  }
}

TEST_CASE("initial values are drawn by all 64 bits of an element's index") {
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
      INFO(static_cast<int>(device) << " with instructions " << name_of(isa) << ", row " << row);
      CHECK(normalised_error(run(operation, device, DType::kF32, 1, Alignment::kElement, isa)[0], expected) <= 1e-6);
    });
  }
}
