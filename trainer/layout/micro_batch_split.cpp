#include "trainer/layout/micro_batch_split.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/layout/lowered_schedule.h"

namespace trireme {

MicroBatchSplit even_split(const Config& config) {
  const auto ranks = static_cast<size_t>(data_ranks(config.parallel));
  MicroBatchSplit split(ranks, microbatches_of(config));
  if (!is_elastic(config.resilience)) return split;
  const int64_t surplus =
      microbatches_of(config) * data_ranks(config.parallel) - config.training.global_batch_size / config.training.micro_batch_size;
  for (int64_t i = 0; i < surplus; ++i) --split[ranks - 1 - static_cast<size_t>(i)];
  return split;
}

SplitLimits split_limits(const Config& config) {
  const int even = microbatches_of(config), others = static_cast<int>(data_ranks(config.parallel)) - 1;
  const int fewest = std::min(even, static_cast<int>(config.parallel.pipeline));
  return {fewest, std::min(2 * even, even + others * (even - fewest))};
}

double longest_seconds(const MicroBatchSplit& split, const std::vector<double>& seconds) {
  double longest = 0;
  for (size_t rank = 0; rank < split.size(); ++rank) longest = std::max(longest, split[rank] * seconds[rank]);
  return longest;
}

/// Gives one micro-batch after the other to the rank that ends it first, which is optimal because a rank's micro-batches cost the same.
MicroBatchSplit split_by_speed(const Config& config, const std::vector<double>& seconds) {
  const SplitLimits limits = split_limits(config);
  MicroBatchSplit split(seconds.size(), limits.fewest);
  using End = std::pair<double, size_t>;  // of a rank with one more micro-batch
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  const auto offer = [&](size_t rank) {
    if (split[rank] < limits.most) ends.emplace((split[rank] + 1) * seconds[rank], rank);
  };
  for (size_t rank = 0; rank < seconds.size(); ++rank) offer(rank);
  const MicroBatchSplit even = even_split(config);
  const int all = std::reduce(even.begin(), even.end());
  for (int left = all - limits.fewest * static_cast<int>(seconds.size()); left > 0; --left) {
    const size_t best = ends.top().second;
    ends.pop();
    ++split[best];
    offer(best);
  }
  return split;
}

MicroBatchSplit largest_split(const Config& config, int rank) {
  std::vector<double> seconds(static_cast<size_t>(data_ranks(config.parallel)), 1.0);
  seconds[static_cast<size_t>(rank)] = 0;
  return split_by_speed(config, seconds);
}

MicroBatchSplit uneven_split(const Config& config) {
  std::vector<double> seconds(static_cast<size_t>(data_ranks(config.parallel)));
  std::iota(seconds.begin(), seconds.end(), 1.0);
  return split_by_speed(config, seconds);
}

bool is_split_of(const Config& config, const MicroBatchSplit& split) {
  const MicroBatchSplit even = even_split(config);
  const auto [fewest, most] = split_limits(config);
  return split.size() == even.size() && std::reduce(split.begin(), split.end()) == std::reduce(even.begin(), even.end()) &&
         std::ranges::all_of(split, [fewest = fewest, most = most](int count) { return count >= fewest && count <= most; });
}

}  // namespace trireme
