#pragma once
// How the micro-batches of a step are split over the data ranks: evenly, unless resilience.rebalance moves some to faster ranks. Data ranks of an elastic
// job differ by one if they do not divide the number of micro-batches.
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// Number of micro-batches of each data rank, those of all islands included. Every split of a configuration has the same sum.
using MicroBatchSplit = std::vector<int>;

/// With resilience.elastic the first data ranks have one micro-batch more if they do not divide the batch.
MicroBatchSplit even_split(const Config& config);

/// What resilience.rebalance may give a data rank. Fewest: one for each pipeline rank, or an even part if that is less. Most: twice an even part, which
/// is what forecasts of memory count.
struct SplitLimits {
  int fewest, most;
};
SplitLimits split_limits(const Config& config);

/// Seconds of the rank that takes longest; `seconds`: of a micro-batch, by data rank.
double longest_seconds(const MicroBatchSplit& split, const std::vector<double>& seconds);

/// The split with the least longest_seconds among those within the limits. Of several, ranks with lower numbers get more.
MicroBatchSplit split_by_speed(const Config& config, const std::vector<double>& seconds);

/// A split in which data rank `rank` has the most micro-batches that it may get.
MicroBatchSplit largest_split(const Config& config, int rank);
/// A split for proofs: the later a data rank, the fewer micro-batches, as far as the limits allow.
MicroBatchSplit uneven_split(const Config& config);

/// True if `split` may have been made by split_by_speed for this configuration.
bool is_split_of(const Config& config, const MicroBatchSplit& split);

}  // namespace trireme
