#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::report {

/// Step times of every rank over a run. Consecutive steps share a bin, and bins are merged in pairs when there are too many, so that the memory is
/// O(ranks) however long the run is.
///
/// They come from the optional field `rank_step_seconds` of a step event in metrics.jsonl: one number per rank, in the order of the ranks, the
/// seconds that this rank needed for the step; null where a rank reported none. Runs without the field have no heat map.
class RankStepTimes {
 public:
  struct Bin {
    int64_t first_step = 0, last_step = 0;
    std::vector<double> ratio;   ///< by rank: sum over steps of its seconds / the median of all ranks in that step
    std::vector<int64_t> count;  ///< by rank: number of steps in `ratio`
  };
  /// Figures of one rank over all steps.
  struct Rank {
    int64_t steps = 0;
    double seconds = 0;  ///< sum
    double low = 0, high = 0;
    double ratio = 0;     ///< sum, as in Bin
    int64_t slowest = 0;  ///< number of steps in which no rank was slower
  };

  /// `seconds` by rank; values that are not finite and positive do not count.
  void add(int64_t step, std::span<const double> seconds);

  bool empty() const { return bins_.empty(); }
  int64_t steps() const { return steps_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  const std::vector<Bin>& bins() const { return bins_; }
  /// Mean over steps of (max - min) / mean of the ranks' seconds.
  double imbalance() const { return steps_ > 0 ? imbalance_ / static_cast<double>(steps_) : 0; }

  static constexpr size_t kMostBins = 240;  ///< never more; at least half as many once there are that many steps

 private:
  void halve();

  std::vector<Bin> bins_;
  int64_t bin_steps_ = 1;  ///< steps per bin
  int64_t in_last_ = 0;    ///< steps in the last bin
  int64_t steps_ = 0;
  double imbalance_ = 0;
  std::vector<Rank> ranks_;
  std::vector<double> sorted_;  ///< scratch
};

}  // namespace trireme::report
