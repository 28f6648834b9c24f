#include "kernels/core/arena.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/core/tensor.h"
#include "tests/support/catch.h"

using namespace trireme;

TEST_CASE("the arena counts exactly the requested bytes, by category") {
  for (Device device : {Device::kReference, Device::kMeta}) {
    Arena arena(device);
    {
      const auto weights = arena.allocate(100, MemoryCategory::kParameters);
      auto first = arena.allocate(33, MemoryCategory::kActivations);
      first.reset();
      const auto second = arena.allocate(20, MemoryCategory::kActivations);
      CHECK(arena.current_bytes(MemoryCategory::kParameters) == 100);
      CHECK(arena.current_bytes(MemoryCategory::kActivations) == 20);
      CHECK(arena.peak_bytes(MemoryCategory::kActivations) == 33);
      CHECK(arena.peak_bytes() == 133);
      CHECK(arena.peak_bytes(MemoryCategory::kGradients) == 0);
      arena.reset_peak();
      CHECK(arena.peak_bytes(MemoryCategory::kActivations) == 20);
      CHECK(arena.peak_bytes() == 120);
    }
    CHECK(arena.current_bytes(MemoryCategory::kParameters) == 0);
    CHECK(arena.current_bytes(MemoryCategory::kActivations) == 0);
    CHECK(arena.peak_bytes(MemoryCategory::kParameters) == 100);
  }
}

TEST_CASE("the peak of the sum is not the sum of the peaks") {
  Arena arena(Device::kMeta);
  arena.allocate(10, MemoryCategory::kWorkspace);
  arena.allocate(30, MemoryCategory::kData);
  CHECK(arena.peak_bytes() == 30);
}

TEST_CASE("a phase counts memory that exists at its start and memory that it allocates, and keeps its peaks after other phases") {
  Arena arena(Device::kMeta);
  const auto weights = arena.allocate(100, MemoryCategory::kParameters);
  CHECK(arena.peak_bytes(MemoryPhase::kLoad) == 100);
  CHECK(arena.peak_bytes(MemoryPhase::kForward) == 0);  // has not run
  arena.set_phase(MemoryPhase::kForward);
  auto activation = arena.allocate(30, MemoryCategory::kActivations);
  arena.set_phase(MemoryPhase::kBackward);
  activation.reset();
  const auto gradient = arena.allocate(20, MemoryCategory::kGradients);
  arena.set_phase(MemoryPhase::kSave);
  arena.set_phase(MemoryPhase::kForward);
  arena.allocate(5, MemoryCategory::kActivations);
  CHECK(arena.peak_bytes(MemoryPhase::kForward) == 130);  // from the first time, not the last
  CHECK(arena.peak_bytes(MemoryPhase::kForward, MemoryCategory::kActivations) == 30);
  CHECK(arena.peak_bytes(MemoryPhase::kForward, MemoryCategory::kGradients) == 20);
  CHECK(arena.peak_bytes(MemoryPhase::kBackward) == 130);  // at its start
  CHECK(arena.peak_bytes(MemoryPhase::kBackward, MemoryCategory::kActivations) == 30);
  CHECK(arena.peak_bytes(MemoryPhase::kSave) == 120);
  CHECK(arena.peak_bytes(MemoryPhase::kSave, MemoryCategory::kActivations) == 0);
  CHECK(arena.peak_bytes(MemoryPhase::kLoad) == 100);
  CHECK(arena.peak_bytes(MemoryPhase::kOptimizer) == 0);
  arena.reset_peak();
  CHECK(arena.peak_bytes(MemoryPhase::kBackward) == 0);
  CHECK(arena.peak_bytes(MemoryPhase::kForward) == 120);
}

TEST_CASE("a second round of the same sizes needs no system allocation") {
  Arena arena(Device::kCpu);
  const auto step = [&] {
    std::vector<std::shared_ptr<void>> buffers;
    for (int64_t bytes : {0, 1, 64, 65, 1000, 4097, 100000}) buffers.push_back(arena.allocate(bytes, MemoryCategory::kActivations));
    return buffers.back();
  };
  step();
  const int64_t allocations = arena.system_allocations();
  CHECK(allocations > 0);
  for (int i = 0; i < 3; ++i) step();
  CHECK(arena.system_allocations() == allocations);
}

TEST_CASE("buffers are aligned to 64 bytes and do not overlap") {
  Arena arena(Device::kCpu);
  std::vector<std::pair<char*, char*>> ranges;
  std::vector<std::shared_ptr<void>> buffers;
  for (int64_t bytes = 1; bytes < 5000; bytes = bytes * 3 / 2 + 1) {
    buffers.push_back(arena.allocate(bytes, MemoryCategory::kWorkspace));
    CHECK(reinterpret_cast<uintptr_t>(buffers.back().get()) % 64 == 0);
    std::memset(buffers.back().get(), 1, static_cast<size_t>(bytes));
    char* first = static_cast<char*>(buffers.back().get());
    ranges.emplace_back(first, first + bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) CHECK(ranges[i - 1].second <= ranges[i].first);
}

TEST_CASE("a poisoned arena returns NaN in fresh and in reused memory") {
  Arena arena(Device::kReference, /*poison=*/true);
  for (int round = 0; round < 2; ++round) {
    const auto buffer = arena.allocate(333, MemoryCategory::kWorkspace);
    auto* bytes = static_cast<unsigned char*>(buffer.get());
    CHECK(std::all_of(bytes, bytes + 333, [](unsigned char byte) { return byte == 0xFF; }));
    std::memset(bytes, 0, 333);
  }
  CHECK(arena.system_allocations() == 1);
}

TEST_CASE("a buffer may outlive its arena") {
  std::optional<Arena> arena(std::in_place, Device::kCpu);
  Context ctx{Device::kCpu, &*arena};
  const Tensor tensor = Tensor::zeros(ctx, {3}, DType::kF64, MemoryCategory::kData);
  arena.reset();
  tensor.data<double>()[2] = 7;
  CHECK(tensor.data<double>()[0] == 0);
  CHECK(tensor.data<double>()[2] == 7);
}

TEST_CASE("the meta device counts memory without allocating it") {
  Arena arena(Device::kMeta);
  Context ctx{Device::kMeta, &arena};
  const Tensor tensor = Tensor::zeros(ctx, {1 << 20, 1 << 20}, DType::kF32, MemoryCategory::kParameters);
  CHECK(tensor.raw() == nullptr);
  CHECK(tensor.rows(5, 2).flat(1, 3).raw() == nullptr);
  CHECK(arena.current_bytes(MemoryCategory::kParameters) == int64_t{4} << 40);
  CHECK(arena.system_allocations() == 0);
}

TEST_CASE("views of a tensor share its memory and stay inside it") {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena};
  std::optional<Tensor> whole = Tensor::zeros(ctx, {4, 3}, DType::kF32, MemoryCategory::kData);
  for (int i = 0; i < 12; ++i) whole->data<float>()[i] = static_cast<float>(i);
  const Tensor rows = whole->rows(1, 2);
  CHECK(rows.shape() == Shape{2, 3});
  CHECK(rows.data<float>()[0] == 3);
  const Tensor block = whole->flat_view(6, {2, 1, 3});
  CHECK(block.shape().str() == "[2, 1, 3]");
  CHECK(block.data<float>()[5] == 11);
  CHECK(block.rows(1, 1).data<float>()[0] == 9);
  CHECK(whole->flat(11, 1).data<float>()[0] == 11);
  CHECK(whole->view({3, 4}).rows(2, 1).data<float>()[0] == 8);
  CHECK_THROWS_AS(whole->view({3, 5}), InternalError);
  CHECK_THROWS_AS(whole->flat(11, 2), InternalError);
  CHECK_THROWS_AS(whole->rows(3, 2), InternalError);
  CHECK_THROWS_AS(whole->rows(-1, 2), InternalError);
  CHECK_THROWS_AS(whole->data<double>(), InternalError);
  CHECK_THROWS_AS(Tensor().flat(0, 0), InternalError);
  CHECK_THROWS_AS((Shape{1, -1}), InternalError);
  whole.reset();
  CHECK(arena.current_bytes(MemoryCategory::kData) == 48);  // the views keep it alive
  CHECK(block.data<float>()[0] == 6);
}

TEST_CASE("memory categories have different names") {
  std::vector<std::string> names;
  for (int category = 0; category < kMemoryCategories; ++category) names.emplace_back(name_of(static_cast<MemoryCategory>(category)));
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}
