#include "trainer/bench/operations.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/operation_log.h"
#include "kernels/ops/elementwise.h"
#include "trainer/bench/phases.h"

namespace trireme::bench {
namespace {

struct Sum {
  OperationKind kind = OperationKind::kElementwise;
  int64_t calls = 0;
  double seconds = 0, flops = 0, bytes = 0;
};
using Sums = std::map<std::pair<std::string, std::string>, Sum>;  ///< by operation and layer

std::vector<OperationRecord> timed_operations(Context& ctx, Trainer& trainer, const Config& config) {
  run_forward_backward(ctx, trainer, config);  // warm-up: caches and library handles
  OperationLog log(OperationLog::Clock::now());
  Context logged = ctx;
  logged.log = &log;
  run_forward_backward(logged, trainer, config);
  return log.take();
}

Sums sums_of(const std::vector<OperationRecord>& operations) {
  Sums sums;
  for (const OperationRecord& operation : operations) {
    if (operation.kind == OperationKind::kCollective) continue;  // asynchronous: only its start is recorded here
    Sum& sum = sums[{operation.name, operation.layer}];
    sum.kind = operation.kind;
    ++sum.calls;
    sum.seconds += operation.seconds;
    sum.flops += operation.flops();
    sum.bytes += static_cast<double>(operation.bytes);
  }
  return sums;
}

}  // namespace

double copy_bandwidth(const Context& like, const Effort& effort) {
  constexpr int64_t kElements = int64_t{1} << 26;
  Workbench bench(like);
  const Tensor from = random_tensor(bench.ctx(), {kElements}, DType::kF32), to = random_tensor(bench.ctx(), {kElements}, DType::kF32);
  return 2.0 * static_cast<double>(from.bytes()) / measure(bench.ctx(), effort, [&](int64_t) { copy(bench.ctx(), from, to); }).median;
}

nlohmann::ordered_json operations_of(Context& ctx, Trainer& trainer, const Config& config, const OperationLimits& limits) {
  using nlohmann::ordered_json;
  const Sums sums = sums_of(timed_operations(ctx, trainer, config));
  constexpr double kShortest = 1e-9;  // below clock resolution
  double all = kShortest;
  for (const auto& [name, sum] : sums) all += sum.seconds;
  std::vector<std::pair<double, ordered_json>> rows;
  for (const auto& [name, sum] : sums) {
    const bool computes = sum.kind != OperationKind::kElementwise;
    const double rate = (computes ? sum.flops : sum.bytes) / std::max(sum.seconds, kShortest);
    ordered_json of_limit;  // null for attention, whose limit is unknown
    if (sum.kind == OperationKind::kProduct) of_limit = rate / limits.product_flops;
    if (!computes) of_limit = rate / limits.bandwidth;
    rows.push_back({sum.seconds,
                    {{"operation", name.first},
                     {"layer", name.second},
                     {"calls", sum.calls},
                     {"seconds", sum.seconds},
                     {"share", sum.seconds / all},
                     {"tflops", computes ? ordered_json(rate / 1e12) : ordered_json()},
                     {"gb_per_second", computes ? ordered_json() : ordered_json(rate / 1e9)},
                     {"of_limit", of_limit}}});
  }
  std::ranges::stable_sort(rows, std::greater(), [](const auto& row) { return row.first; });
  ordered_json table = ordered_json::array();
  for (auto& [seconds, row] : rows) table.push_back(std::move(row));
  return table;
}

}  // namespace trireme::bench
