// Shared memory of the norms' backward, which depends on the row.
#include "kernels/ops/norm.h"
#include <algorithm>
#include "kernels/ops/transfer.h"

#include "kernels/core/gpu.h"
#include "tests/cuda/launched_memory.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

/// Launches the backward of both norms with zeros.
std::map<std::string, int64_t> backward_of(int64_t columns, DType dtype, bool centred) {
  cuda_sim::reset(3, {.devices = 1});
  cuda::Gpu gpu(0, {});
  Arena arena{gpu};
  Context ctx{Device::kCuda, &arena, 1, &gpu};
  const auto zeros = [&](const Shape& shape, DType type) { return Tensor::zeros(ctx, shape, type, MemoryCategory::kWorkspace); };
  const Tensor x = zeros({4, columns}, dtype), dx = zeros({4, columns}, dtype), w = zeros({columns}, dtype);
  const Tensor statistic = zeros({4}, DType::kF32), dw = zeros({columns}, DType::kF32), db = zeros({columns}, DType::kF32);
  if (centred)
    layernorm_backward(ctx, x, x, w, statistic, statistic, {}, dx, dw, db);
  else
    rmsnorm_backward(ctx, x, x, w, statistic, {}, dx, dw);
  to_host(ctx, dw);  // waits for the launches
  return launched_memory();
}

}  // namespace

TEST_CASE("norms: tests/kernels/sass.txt has the shared memory of the widest row of each kernel") {
  const std::map<std::string, int64_t> recorded = recorded_memory();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const int64_t vector = dtype == DType::kF32 ? 4 : 8;
    for (const bool centred : {false, true}) {
      std::map<std::string, int64_t> widest;
      // The widest rows of one, two, four and eight accesses a thread, and an odd row: one column less than the widest.
      for (const int64_t columns : {256 * vector, 512 * vector, 1024 * vector, centred ? int64_t{12288} : int64_t{16384}, int64_t{4095}})
        for (const auto& [name, bytes] : backward_of(columns, dtype, centred))
          if (name.starts_with("norm_backward<")) widest[name] = std::max(widest[name], bytes + (columns == 4095 ? (centred ? 8 : 4) : 0));
      CHECK(widest.size() == (dtype == DType::kF32 ? 5 : 4));
      for (const auto& [name, bytes] : widest) {
        INFO(name);
        REQUIRE(recorded.count(name) == 1);
        CHECK(recorded.at(name) == bytes);
      }
    }
  }
}
