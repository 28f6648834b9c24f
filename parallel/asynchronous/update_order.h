#pragma once
// The rules of asynchronous SGD with a parameter server, without any communication: which weights a gradient was computed from, when an update
// follows, and which workers wait. Everything is a function of the order in which gradients arrive, so a rerun with a logged order repeats a run.
// Sources: Dean et al. 2012 (Downpour SGD); Ho et al. 2013 (stale synchronous parallel: bounded staleness); Zhang et al. 2015, arXiv:1511.05950
// (staleness-aware learning rate); Chen et al. 2016, arXiv:1604.00981 (backup workers).
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace trireme {

struct UpdateRules {
  int workers = 1;        ///< numbered from 0
  int apply_after = 1;    ///< gradients in an update, 1 to workers
  int64_t staleness = 0;  ///< a worker waits while it has sent more than this many gradients more than the slowest worker
  bool equal = false;     ///< every worker sends the same number in a round, which the workers divide
  /// A gradient of older weights is left out, and its batch is computed again by the newest ones: workers - apply_after of them are backups. Staleness
  /// is not bounded then; a worker waits while the update that its last gradient is part of is not complete.
  bool discards_late = false;
};
/// The rules of elastic averaging, with exchanges in place of gradients: no worker waits for another one, and each exchange is an update.
UpdateRules exchange_rules(int workers);

/// Order of a worker to compute a gradient. `batch`: its place among the batches of the round, each of which is part of one update. `version`: number
/// of updates in the weights that it uses.
struct Assignment {
  int worker = 0;
  int64_t batch = 0;
  int64_t version = 0;
  bool operator==(const Assignment&) const = default;
};

/// What follows from the arrival of a gradient.
struct Arrival {
  Assignment of;                   ///< the gradient that has arrived
  int64_t update = 0;              ///< index of the update that it is part of, or if it is left out of the current one
  int64_t staleness = 0;           ///< updates applied between the weights that it was computed from and this one
  bool counts = true;              ///< it is part of the update, and not left out because it is late
  bool applies = false;            ///< it is the last gradient of the update, which is applied now
  std::vector<Assignment> starts;  ///< workers that get the weights after it, and another batch
};

/// One round of asynchronous training: a number of updates after which no gradient is in flight. Versions and batches count from the start of the
/// round.
class UpdateOrder {
 public:
  UpdateOrder(const UpdateRules& rules, int64_t updates);

  /// The workers that start with the weights of version 0: one for each of the first batches.
  const std::vector<Assignment>& first() const { return first_; }
  /// Errors: InternalError if `worker` is not computing a gradient.
  Arrival arrive(int worker);
  int workers() const { return rules_.workers; }
  bool is_computing(int worker) const { return static_cast<bool>(computing_[static_cast<size_t>(worker)]); }
  int64_t version() const { return arrived_ / rules_.apply_after; }
  bool is_over() const {
    return !has_updates_left() && std::ranges::none_of(computing_, [](const auto& one) { return one.has_value(); });
  }
  bool has_updates_left() const { return arrived_ < batches_; }

 private:
  void start_those_within_bound(std::vector<Assignment>& starts);
  std::optional<int64_t> next_batch();

  UpdateRules rules_;
  int64_t batches_, given_ = 0, arrived_ = 0;
  std::set<int64_t> again_;  ///< batches that are computed again
  std::vector<Assignment> first_;
  std::vector<int64_t> clocks_;  ///< gradients that each worker has sent; if late ones are discarded, the version after its last update
  std::vector<std::optional<Assignment>> computing_;  ///< by worker
  std::vector<int> waiting_;                          ///< in the order of their arrivals
};

/// The first arrival, from 0, that `order` (the worker of each arrival of a round) cannot have had; nullopt if all of the round are possible.
std::optional<size_t> first_impossible_arrival(const UpdateRules& rules, int64_t updates, const std::vector<int>& order);

/// Factor of the learning rate for a gradient of this staleness: 1 / max(1, staleness).   Source: Zhang et al. 2015, arXiv:1511.05950.
double staleness_factor(int64_t staleness);

/// Number of gradients of each staleness.
class StalenessHistogram {
 public:
  void add(int64_t staleness);
  const std::vector<int64_t>& counts() const { return counts_; }  ///< index: staleness; the last count is above 0
 private:
  std::vector<int64_t> counts_;
};

}  // namespace trireme
