#include "parallel/asynchronous/update_order.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/core/check.h"

namespace trireme {

UpdateRules exchange_rules(int workers) { return {workers, 1, std::numeric_limits<int64_t>::max(), true}; }

UpdateOrder::UpdateOrder(const UpdateRules& rules, int64_t updates)
    : rules_(rules),
      batches_(updates * rules.apply_after),
      clocks_(static_cast<size_t>(rules.workers), 0),
      computing_(static_cast<size_t>(rules.workers)) {
  TRIREME_CHECK(rules.workers >= 1 && rules.apply_after >= 1 && rules.apply_after <= rules.workers && rules.staleness >= 0 && updates >= 1,
                "rules of ", rules.workers, " workers, updates of ", rules.apply_after, " gradients, staleness ", rules.staleness);
  TRIREME_CHECK(!rules.equal || batches_ % rules.workers == 0, batches_, " gradients of ", rules.workers, " workers that send the same number");
  for (int worker = 0; worker < rules.workers; ++worker) waiting_.push_back(worker);
  start_those_within_bound(first_);
}

void UpdateOrder::start_those_within_bound(std::vector<Assignment>& starts) {
  const int64_t slowest = std::ranges::min(clocks_);
  std::vector<int> still;
  for (const int worker : waiting_) {
    const auto w = static_cast<size_t>(worker);
    const bool has_sent_all = rules_.equal ? clocks_[w] == batches_ / rules_.workers : given_ == batches_;
    if (has_sent_all || clocks_[w] - slowest > rules_.staleness) {
      still.push_back(worker);
      continue;
    }
    computing_[w] = {worker, given_++, version()};
    starts.push_back(*computing_[w]);
  }
  waiting_ = std::move(still);
}

Arrival UpdateOrder::arrive(int worker) {
  TRIREME_CHECK(worker >= 0 && worker < rules_.workers && is_computing(worker), "a gradient of worker ", worker, ", which is not computing one");
  const auto w = static_cast<size_t>(worker);
  Arrival arrival;
  arrival.of = *std::exchange(computing_[w], std::nullopt);
  arrival.update = version();
  arrival.staleness = arrival.update - arrival.of.version;
  ++arrived_;
  arrival.applies = arrived_ % rules_.apply_after == 0;
  ++clocks_[w];
  waiting_.push_back(worker);
  start_those_within_bound(arrival.starts);
  return arrival;
}

std::optional<size_t> first_impossible_arrival(const UpdateRules& rules, int64_t updates, const std::vector<int>& order) {
  UpdateOrder replayed(rules, updates);
  for (size_t i = 0; i < order.size(); ++i) {
    if (replayed.is_over() || order[i] < 0 || order[i] >= rules.workers || !replayed.is_computing(order[i])) return i;
    replayed.arrive(order[i]);
  }
  return {};
}

double staleness_factor(int64_t staleness) { return 1.0 / static_cast<double>(std::max<int64_t>(1, staleness)); }

void StalenessHistogram::add(int64_t staleness) {
  if (std::ssize(counts_) <= staleness) counts_.resize(static_cast<size_t>(staleness) + 1);
  ++counts_[static_cast<size_t>(staleness)];
}

}  // namespace trireme
