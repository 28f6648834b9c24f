#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::report {

/// Busy seconds per step of every rank, measured once in several steps. Consecutive measurements share a bin, and bins are merged in pairs when there are
/// too many, so that the memory is O(ranks) however long the run is.
///
/// They are `busy_seconds` of the events "ranks" of metrics.jsonl: one number per rank, in the order of the ranks, the part of a step in which this rank
/// did not wait for another one; null where a rank reported none. Runs without them have no heat map.
class RankStepTimes {
 public:
  struct Bin {
    int64_t first_step = 0, last_step = 0;
    std::vector<double> ratio;   ///< by rank: sum over measurements of its seconds / the median of all ranks
    std::vector<int64_t> count;  ///< by rank: number of measurements in `ratio`
  };
  /// Figures of one rank over all measurements.
  struct Rank {
    int64_t count = 0;
    double seconds = 0;  ///< sum
    double low = 0, high = 0;
    double ratio = 0;     ///< sum, as in Bin
    int64_t slowest = 0;  ///< number of measurements in which no rank was slower
  };

  /// `seconds` per step by rank, as a mean over `steps` steps, the last of which is `step`; values that are not finite and positive do not count.
  void add(int64_t step, std::span<const double> seconds, int64_t steps = 1);

  bool empty() const { return bins_.empty(); }
  int64_t count() const { return count_; }  ///< number of measurements
  const std::vector<Rank>& ranks() const { return ranks_; }
  const std::vector<Bin>& bins() const { return bins_; }
  /// Mean over measurements of (max - min) / mean of the ranks' seconds.
  double imbalance() const { return count_ > 0 ? imbalance_ / static_cast<double>(count_) : 0; }

  static constexpr size_t kMostBins = 240;  ///< never more; at least half as many once there are that many measurements

 private:
  void halve();

  std::vector<Bin> bins_;
  int64_t bin_size_ = 1;  ///< measurements per bin
  int64_t in_last_ = 0;   ///< measurements in the last bin
  int64_t count_ = 0;
  double imbalance_ = 0;
  std::vector<Rank> ranks_;
  std::vector<double> sorted_;  ///< scratch
};

}  // namespace trireme::report
