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

/// The first batch that is to be computed again, or else one that no worker has had; nullopt if there is none.
std::optional<int64_t> UpdateOrder::next_batch() {
  if (!again_.empty()) return again_.extract(again_.begin()).value();
  if (given_ < batches_) return given_++;
  return {};
}

void UpdateOrder::start_those_within_bound(std::vector<Assignment>& starts) {
  const int64_t slowest = std::ranges::min(clocks_);
  std::vector<int> still;
  for (const int worker : waiting_) {
    const auto w = static_cast<size_t>(worker);
    const bool has_sent_all = rules_.equal && clocks_[w] == batches_ / rules_.workers;
    const bool waits = rules_.discards_late ? clocks_[w] > version() : clocks_[w] - slowest > rules_.staleness;
    const std::optional<int64_t> batch = has_sent_all || waits ? std::nullopt : next_batch();
    if (!batch) {
      still.push_back(worker);
      continue;
    }
    computing_[w] = {worker, *batch, version()};
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
  arrival.counts = !rules_.discards_late || arrival.staleness == 0;
  if (arrival.counts) {
    ++arrived_;
    arrival.applies = arrived_ % rules_.apply_after == 0;
    clocks_[w] = rules_.discards_late ? arrival.update + 1 : clocks_[w] + 1;
  }
  if (arrival.applies && rules_.discards_late)
    for (const std::optional<Assignment>& late : computing_)
      if (late && late->version == arrival.update) again_.insert(late->batch);
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
