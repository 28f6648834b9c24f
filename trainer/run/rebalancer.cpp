#include "trainer/run/rebalancer.h"

#include <algorithm>
#include <numeric>

#include "trainer/run/median.h"

namespace trireme {

double excess_of_slowest(const std::vector<double>& seconds) {
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return sum > 0 ? std::ranges::max(seconds) * static_cast<double>(seconds.size()) / sum - 1 : 0;
}

std::optional<Rebalancer::Decision> Rebalancer::add(const MicroBatchSplit& split, const std::vector<double>& seconds) {
  constexpr double kWorth = 0.95;
  window_.push_back(seconds);
  if (window_.size() < kWindow) return std::nullopt;
  Decision decision;
  std::vector<double> of_microbatch;
  for (size_t rank = 0; rank < split.size(); ++rank) {
    std::vector<double> of_rank;
    for (const std::vector<double>& step : window_) of_rank.push_back(step[rank]);
    const double middle = median(of_rank);
    decision.seconds.push_back(middle);
    of_microbatch.push_back(middle / split[rank]);
  }
  restart();
  decision.split = split_by_speed(config_, of_microbatch);
  if (longest_seconds(decision.split, of_microbatch) > kWorth * longest_seconds(split, of_microbatch)) return std::nullopt;
  return decision;
}

}  // namespace trireme
