#include "trainer/report/rank_step_times.h"

#include <algorithm>
#include <cmath>

namespace trireme::report {
namespace {

bool counts(double seconds) { return std::isfinite(seconds) && seconds > 0; }

void add_to(RankStepTimes::Bin& bin, size_t rank, double ratio, int64_t count) {
  if (bin.ratio.size() <= rank) {
    bin.ratio.resize(rank + 1, 0);
    bin.count.resize(rank + 1, 0);
  }
  bin.ratio[rank] += ratio;
  bin.count[rank] += count;
}

}  // namespace

void RankStepTimes::add(int64_t step, std::span<const double> seconds, int64_t steps) {
  sorted_.clear();
  std::copy_if(seconds.begin(), seconds.end(), std::back_inserter(sorted_), counts);
  if (sorted_.empty()) return;
  const auto middle = sorted_.begin() + static_cast<ptrdiff_t>(sorted_.size() / 2);
  std::nth_element(sorted_.begin(), middle, sorted_.end());
  const double median = *middle;
  double sum = 0, low = sorted_.front(), high = low;
  for (const double one : sorted_) {
    sum += one;
    low = std::min(low, one);
    high = std::max(high, one);
  }
  imbalance_ += (high - low) / (sum / static_cast<double>(sorted_.size()));
  ++count_;

  if (bins_.empty() || in_last_ == bin_size_) {
    if (bins_.size() == kMostBins) halve();
    bins_.push_back({step - steps + 1, step, {}, {}});
    in_last_ = 0;
  }
  ++in_last_;
  Bin& bin = bins_.back();
  bin.last_step = std::max(bin.last_step, step);
  if (ranks_.size() < seconds.size()) ranks_.resize(seconds.size());
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    const double one = seconds[rank];
    if (!counts(one)) continue;
    add_to(bin, rank, one / median, 1);
    Rank& all = ranks_[rank];
    all.low = all.count == 0 ? one : std::min(all.low, one);
    all.high = std::max(all.high, one);
    ++all.count;
    all.seconds += one;
    all.ratio += one / median;
    if (one == high) ++all.slowest;
  }
}

/// Merges the bins in pairs. kMostBins is even and every bin is full, so every new bin is full too.
void RankStepTimes::halve() {
  for (size_t i = 0; i < bins_.size() / 2; ++i) {
    Bin merged = std::move(bins_[2 * i]);
    const Bin& second = bins_[2 * i + 1];
    merged.last_step = std::max(merged.last_step, second.last_step);
    for (size_t rank = 0; rank < second.ratio.size(); ++rank) add_to(merged, rank, second.ratio[rank], second.count[rank]);
    bins_[i] = std::move(merged);
  }
  bins_.resize(bins_.size() / 2);
  bin_size_ *= 2;
}

}  // namespace trireme::report
