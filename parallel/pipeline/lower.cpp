#include "parallel/pipeline/lower.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulate.h"

namespace trireme {
namespace {

using UnitKey = std::pair<int, int>;  ///< stage, unit

/// The send of one transfer and the time at which its data is available.
struct SendTime {
  double time;
  Action send;
};

/// All transfers in the one global order. Transfers of equal time may come in any order that is the same for both ends.
std::vector<SendTime> send_times(const Simulation& run, const std::vector<int>& rank_of_stage) {
  const auto leaves = [&](int from, int to) {
    const int stages = static_cast<int>(rank_of_stage.size());
    return to >= 0 && to < stages && rank_of_stage[static_cast<size_t>(from)] != rank_of_stage[static_cast<size_t>(to)];
  };
  std::vector<SendTime> all;
  for (const Timeline& timeline : run.ranks) {
    for (const TimelineEvent& event : timeline) {
      const ActionType type = event.action.type;
      const int stage = event.action.stage, microbatch = event.action.microbatch;
      if (type == ActionType::kForward && leaves(stage, stage + 1)) all.push_back({event.end, {ActionType::kSendForward, stage, microbatch}});
      if ((type == ActionType::kBackward || type == ActionType::kBackwardInput) && leaves(stage, stage - 1))
        all.push_back({event.end, {ActionType::kSendBackward, stage, microbatch}});
    }
  }
  std::sort(all.begin(), all.end(), [](const SendTime& a, const SendTime& b) {
    return std::tuple(a.time, a.send.type, a.send.stage, a.send.microbatch) < std::tuple(b.time, b.send.type, b.send.stage, b.send.microbatch);
  });
  return all;
}

/// Places every transfer in the lists of both its ranks at the time at which its data is available: before all compute that ends later (for blocking
/// transfers: that begins at that time or later). All lists are then subsequences of one order of events, so blocking transfers cannot deadlock.
ActionLists add_transfers(const ActionLists& compute, bool receive_ahead) {
  const std::vector<int> rank_of_stage = stage_ranks(compute);
  // A transfer time above zero places receives before the compute that they can overlap.
  const Simulation run = simulate(compute, [&](const Action& action) {
    if (is_transfer(action.type)) return receive_ahead && is_receive(action.type) ? 0.25 : 0.0;
    return action.type == ActionType::kBackward ? 2.0 : 1.0;
  });
  ActionLists lists(compute.size());
  std::vector<size_t> next(compute.size(), 0);
  std::vector<int> groups(compute.size(), 0);
  std::vector<double> latest(compute.size(), -1);  // time of each list's last transfer

  const auto append = [&](double time, Action transfer) {
    const size_t rank = static_cast<size_t>(rank_of_stage[static_cast<size_t>(transfer.stage)]);
    const Timeline& timeline = run.ranks[rank];
    const auto comes_first = [&](const TimelineEvent& event) { return receive_ahead ? event.end <= time : event.begin < time; };
    ActionList& list = lists[rank];
    while (next[rank] < timeline.size() && comes_first(timeline[next[rank]])) list.push_back(timeline[next[rank]++].action);
    // A group completes as a whole, so it contains only transfers whose data is available at the same time.
    const bool joins = std::exchange(latest[rank], time) == time && is_transfer(list.back().type);
    transfer.group = joins ? list.back().group : groups[rank]++;
    list.push_back(transfer);
  };
  for (const auto& [time, send] : send_times(run, rank_of_stage)) {
    append(time, send);
    append(time, counterpart(send));
  }
  for (size_t rank = 0; rank < lists.size(); ++rank)
    for (; next[rank] < compute[rank].size(); ++next[rank]) lists[rank].push_back(compute[rank][next[rank]]);
  return lists;
}

ActionList split_into_parts(const ActionList& list, const std::vector<StageUnits>& stages) {
  ActionList result;
  for (const Action& action : list) {
    if (!is_compute(action.type)) {
      result.push_back(action);
      continue;
    }
    const StageUnits& stage = stages[static_cast<size_t>(action.stage)];
    const int parts = static_cast<int>(stage.units_of_part.size());
    for (int i = 0; i < parts; ++i) {
      const int part = action.type == ActionType::kForward ? i : parts - 1 - i;
      if (action.type == ActionType::kBackwardWeight && part == stage.fused_part) continue;
      result.push_back(action);
      result.back().part = part;
    }
  }
  return result;
}

/// Adds the movement of parameters and gradients, and the end of the step, to one rank's list of parts and transfers.
class UnitMover {
 public:
  UnitMover(const ActionList& list, const std::vector<StageUnits>& stages, const LoweringPolicy& policy);
  ActionList moved();

 private:
  std::vector<UnitKey> units_of(const Action& part) const;
  bool trainable(const UnitKey& key) const { return stages_[static_cast<size_t>(key.first)].trainable(key.second); }
  bool is_recomputing(const Action& part) const { return part.part == stages_[static_cast<size_t>(part.stage)].recomputing_part; }
  bool adds(const Action& action) const;  ///< whether the action adds to the gradients of its units
  /// Whether the unit is gathered once a step.
  bool once(const UnitKey& key) const { return !policy_.unshard_each_use || stages_[static_cast<size_t>(key.first)].keeps_whole(key.second); }
  void move_parameters_once();
  void move_parameters_each_use();
  void reduce_gradients();
  ActionList interleaved() const;
  ActionList with_waits(const ActionList& list) const;

  const ActionList& list_;
  const std::vector<StageUnits>& stages_;
  const LoweringPolicy& policy_;
  std::vector<size_t> uses_;                ///< positions of the parts that read parameters: F, B and I, and W of a recomputing part
  std::vector<ActionList> before_, after_;  ///< what to issue around each position of the list
  ActionList last_;                         ///< what to issue at the end of the list
};

UnitMover::UnitMover(const ActionList& list, const std::vector<StageUnits>& stages, const LoweringPolicy& policy)
    : list_(list), stages_(stages), policy_(policy), before_(list.size()), after_(list.size()) {
  for (size_t i = 0; i < list.size(); ++i)
    if (is_compute(list[i].type) && (list[i].type != ActionType::kBackwardWeight || is_recomputing(list[i]))) uses_.push_back(i);
}

std::vector<UnitKey> UnitMover::units_of(const Action& part) const {
  std::vector<UnitKey> keys;
  for (const UnitRef& unit : stages_[static_cast<size_t>(part.stage)].units_of_part[static_cast<size_t>(part.part)])
    keys.emplace_back(unit.stage < 0 ? part.stage : unit.stage, unit.unit);
  return keys;
}

bool UnitMover::adds(const Action& action) const {
  if (action.type == ActionType::kBackwardInput) return action.part == stages_[static_cast<size_t>(action.stage)].fused_part;
  return action.type == ActionType::kBackward || action.type == ActionType::kBackwardWeight;
}

void UnitMover::move_parameters_once() {
  std::set<UnitKey> gathered;
  for (size_t use = 0; use < uses_.size(); ++use) {
    const Action& part = list_[uses_[use]];
    const size_t issue = use - std::min(use, static_cast<size_t>(policy_.prefetch));
    for (const UnitKey& key : units_of(part)) {
      if (once(key) && gathered.insert(key).second) before_[uses_[issue]].push_back({ActionType::kUnshard, key.first, -1, key.second});
    }
  }
  for (const auto& [stage, unit] : gathered) last_.push_back({ActionType::kReshard, stage, -1, unit});
}

void UnitMover::move_parameters_each_use() {
  std::map<UnitKey, size_t> last_use;
  for (size_t use = 0; use < uses_.size(); ++use) {
    const Action& part = list_[uses_[use]];
    for (const UnitKey& key : units_of(part)) {
      if (once(key)) continue;
      const auto& [stage, unit] = key;
      const auto [previous, first] = last_use.try_emplace(key, use);
      size_t issue = use - std::min(use, static_cast<size_t>(policy_.prefetch));
      if (!first) {
        const size_t end = std::exchange(previous->second, use);
        if (end + 1 == use) continue;  // consecutive uses share one copy
        after_[uses_[end]].push_back({ActionType::kReshard, stage, -1, unit});
        issue = std::max(issue, end + 1);
      }
      before_[uses_[issue]].push_back({ActionType::kUnshard, stage, -1, unit});
    }
  }
  for (const auto& [key, end] : last_use) after_[uses_[end]].push_back({ActionType::kReshard, key.first, -1, key.second});
}

void UnitMover::reduce_gradients() {
  std::map<UnitKey, size_t> last_of_step;
  std::map<std::pair<UnitKey, int>, size_t> last_of_microbatch;
  for (size_t i = 0; i < list_.size(); ++i) {
    if (!adds(list_[i])) continue;
    for (const UnitKey& key : units_of(list_[i])) last_of_step[key] = last_of_microbatch[{key, list_[i].microbatch}] = i;
  }
  // The all-reduce over replicas needs the completed reduce-scatter. It is issued one unit later, while the next unit's reduce-scatter runs.
  Action waiting{ActionType::kReduceReplicas, -1};
  for (size_t i = 0; i < list_.size(); ++i) {
    if (!adds(list_[i])) continue;
    for (const UnitKey& key : units_of(list_[i])) {
      if (!trainable(key)) continue;
      const auto& [stage, unit] = key;
      const bool last = last_of_step[key] == i;
      const bool reduce = last || (policy_.reduce_each_microbatch && last_of_microbatch[{key, list_[i].microbatch}] == i);
      if (reduce) after_[i].push_back({ActionType::kReduceGrads, stage, -1, unit});
      if (!last) continue;
      if (waiting.stage >= 0) after_[i].push_back(waiting);
      waiting.stage = stage;
      waiting.unit = unit;
    }
  }
  if (waiting.stage >= 0) last_.push_back(waiting);
  for (const auto& [key, unused] : last_of_step)
    if (stages_[static_cast<size_t>(key.first)].tied_unit == key.second) last_.push_back({ActionType::kReduceTied, key.first, -1, key.second});
}

/// Transfers that follow a part are issued before the other actions that follow it, because a neighbour waits for them.
ActionList UnitMover::interleaved() const {
  ActionList result;
  size_t flushed = 0;
  const auto flush_until = [&](size_t end) {
    for (; flushed < end; ++flushed) result.insert(result.end(), after_[flushed].begin(), after_[flushed].end());
  };
  for (size_t i = 0; i < list_.size(); ++i) {
    if (!is_transfer(list_[i].type)) flush_until(i);
    result.insert(result.end(), before_[i].begin(), before_[i].end());
    result.push_back(list_[i]);
  }
  flush_until(list_.size());
  result.insert(result.end(), last_.begin(), last_.end());
  return result;
}

/// Inserts the waits. A reduction overlaps the compute that follows it until something needs its result: the next reduction of the same unit, a
/// gradient that is added to the unit, the end of the list or, for a REDUCE_GRADS, the next REDUCE_GRADS of the rank. The last rule limits the full
/// gradients of a rank to two, plus a tied embedding's, whatever the number of its stages.
ActionList UnitMover::with_waits(const ActionList& list) const {
  ActionList result;
  std::set<UnitKey> in_flight;
  std::optional<UnitKey> scattered;  // unit of the rank's last REDUCE_GRADS
  const auto wait = [&](const UnitKey& key) {
    if (in_flight.erase(key) > 0) result.push_back({ActionType::kWaitGrads, key.first, -1, key.second});
  };
  for (const Action& action : list) {
    const UnitKey key(action.stage, action.unit);
    if (is_compute(action.type) && adds(action)) std::ranges::for_each(units_of(action), wait);
    if (is_reduction(action.type)) wait(key);
    if (action.type == ActionType::kReduceGrads && scattered) wait(*scattered);
    result.push_back(action);
    if (is_reduction(action.type)) in_flight.insert(key);
    if (action.type == ActionType::kReduceGrads)
      scattered = key;
    else if (is_reduction(action.type) && scattered == key)
      scattered.reset();
  }
  while (!in_flight.empty()) wait(UnitKey(*in_flight.begin()));
  return result;
}

ActionList UnitMover::moved() {
  reduce_gradients();
  move_parameters_once();
  move_parameters_each_use();
  ActionList list = with_waits(interleaved());
  std::map<int, std::set<int>> reduced;  // by stage that has a backward: the units with a gradient
  for (const Action& action : list) {
    if (is_compute(action.type) && action.type != ActionType::kForward) reduced[action.stage];
    if (action.type == ActionType::kReduceGrads) reduced[action.stage].insert(action.unit);
  }
  if (reduced.empty()) return list;  // a list that does not train
  for (const auto& [stage, unused] : reduced) list.push_back({ActionType::kSumPartial, stage});
  const StepEnd& end = policy_.end;
  const auto after_updates = std::ranges::find_if(end.actions, follows_updates);
  for (auto type = end.actions.begin(); type != after_updates; ++type) list.push_back({*type});
  for (const auto& [stage, units] : reduced) {
    if (!end.updates) break;
    if (stages_[static_cast<size_t>(stage)].has_matrix_updates) list.push_back({ActionType::kOrthogonalize, stage});
    for (const int unit : units) list.push_back({ActionType::kUpdate, stage, -1, unit});
  }
  for (auto type = after_updates; type != end.actions.end(); ++type) list.push_back({*type});
  return list;
}

}  // namespace

ActionLists lower(const ActionLists& compute, const std::vector<StageUnits>& stages, const LoweringPolicy& policy) {
  TRIREME_CHECK(policy.prefetch >= 0, "invalid prefetch ", policy.prefetch);
  TRIREME_CHECK(stage_ranks(compute).size() == stages.size(), stages.size(), " stage descriptions do not match the schedule's number of stages");
  ActionLists lists = add_transfers(compute, policy.receive_ahead);
  for (ActionList& list : lists) {
    const ActionList parts = split_into_parts(list, stages);
    list = UnitMover(parts, stages, policy).moved();
  }
  return lists;
}

ActionLists with_sample_clipping(const ActionLists& compute) {
  ActionLists lists(compute.size());
  for (size_t rank = 0; rank < compute.size(); ++rank) {
    std::map<int, std::vector<int>> stages;  // of each micro-batch, in the order of their I
    for (const Action& action : compute[rank])
      if (action.type == ActionType::kBackward || action.type == ActionType::kBackwardInput) stages[action.microbatch].push_back(action.stage);
    std::map<int, size_t> done;                   // number of I of each micro-batch
    std::deque<std::pair<int, size_t>> complete;  // micro-batches without W so far, and the number of I of the rank after which it follows
    size_t inputs = 0;
    const auto add_weights = [&](int microbatch) {
      lists[rank].push_back({ActionType::kWaitClip, -1, microbatch});
      for (const int stage : stages[microbatch]) lists[rank].push_back({ActionType::kBackwardWeight, stage, microbatch});
    };
    for (Action action : compute[rank]) {
      if (action.type == ActionType::kBackwardWeight) continue;
      if (action.type == ActionType::kBackward) action.type = ActionType::kBackwardInput;
      lists[rank].push_back(action);
      if (action.type != ActionType::kBackwardInput) continue;
      ++inputs;
      if (++done[action.microbatch] == stages[action.microbatch].size()) {
        lists[rank].push_back({ActionType::kClipSamples, -1, action.microbatch});
        complete.emplace_back(action.microbatch, inputs + rank);
      }
      for (; !complete.empty() && complete.front().second <= inputs; complete.pop_front()) add_weights(complete.front().first);
    }
    for (const auto& [microbatch, unused] : complete) add_weights(microbatch);
  }
  return lists;
}

ActionList without_first(ActionList list, int skipped) {
  std::erase_if(list, [&](const Action& action) { return action.microbatch >= 0 && action.microbatch < skipped; });
  for (Action& action : list)
    if (action.microbatch >= 0) action.microbatch -= skipped;
  return list;
}

int max_in_flight(const ActionList& list) {
  std::map<std::pair<int, int>, size_t> last;  // stage, micro-batch -> its last compute, after which the activations saved by its forward are freed
  for (size_t i = 0; i < list.size(); ++i)
    if (is_compute(list[i].type)) last[{list[i].stage, list[i].microbatch}] = i;
  std::set<std::pair<int, int>> held;
  size_t most = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!is_compute(list[i].type)) continue;
    const std::pair key{list[i].stage, list[i].microbatch};
    held.insert(key);
    most = std::max(most, held.size());
    if (last[key] == i) held.erase(key);
  }
  return static_cast<int>(most);
}

}  // namespace trireme
