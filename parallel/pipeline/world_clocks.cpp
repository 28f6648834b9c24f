#include "parallel/pipeline/world_clocks.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace trireme {
namespace {

bool is_backward(ActionType type) { return type == ActionType::kBackward || type == ActionType::kBackwardInput; }

/// Checks that a list names only stages, parts and units of its rank.
void check(const ActionList& list, int pipeline_rank, const std::vector<StageUnits>& stages, const std::vector<int>& stage_rank) {
  for (const Action& action : list) {
    const ActionScope scope = facts_of(action.type).scope;
    if (scope == ActionScope::kStep || scope == ActionScope::kMicrobatch) continue;
    const size_t stage = static_cast<size_t>(action.stage);
    TRIREME_CHECK(action.stage >= 0 && stage < stages.size() && stage_rank[stage] == pipeline_rank, to_string(action), " on pipeline rank ",
                  pipeline_rank, ", which has no such stage");
    if (scope != ActionScope::kPart && scope != ActionScope::kUnit) continue;
    const bool is_part = scope == ActionScope::kPart;
    const int all = is_part ? static_cast<int>(stages[stage].units_of_part.size()) : stages[stage].units;
    const int named = is_part ? action.part : action.unit;
    TRIREME_CHECK(named < all && (named >= 0 || is_part), to_string(action), " is out of range; parts or units of its stage: ", all);
  }
}

}  // namespace

WorldClocks::Cost WorldClocks::cost_of(const Action& action, const WorldCosts& costs) {
  const ActionFacts& facts = facts_of(action.type);
  const bool computes = facts.scope == ActionScope::kPart, starts = !facts.axes.empty() && !facts.blocks;
  return {facts.blocks && !computes ? 0 : costs.seconds(action), computes && costs.tensor ? costs.tensor(action) : 0,
          starts ? costs.collective(action) : 0};
}

WorldClocks::WorldClocks(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<int>& stage_rank,
                         const std::vector<StageUnits>& stages, const WorldCosts& costs, const std::vector<int>& traced)
    : stages_(stages), in_launch_order_(costs.in_launch_order), ranks_(lists.size()), streams_(kMeshGroups * lists.size(), 0.0) {
  std::vector<int> units_of(static_cast<size_t>(mesh.pipeline), 0);
  for (size_t s = 0; s < stages.size(); ++s) {
    TRIREME_CHECK(stage_rank[s] >= 0, "no rank computes stage ", s);
    first_unit_.push_back(units_of[static_cast<size_t>(stage_rank[s])]);
    units_of[static_cast<size_t>(stage_rank[s])] += stages[s].units;
  }
  for (size_t r = 0; r < lists.size(); ++r) {
    const int pipeline = coordinate_of(mesh, static_cast<int>(r)).pipeline;
    const auto [known, is_new] = costs_.try_emplace(lists[r]);
    if (is_new) {
      check(*lists[r], pipeline, stages, stage_rank);
      for (const Action& action : *lists[r]) known->second.push_back(cost_of(action, costs));
    }
    Rank& rank = ranks_[r];
    rank.list = lists[r];
    rank.costs = known->second.data();
    rank.units.resize(static_cast<size_t>(units_of[static_cast<size_t>(pipeline)]));
  }
  for (const auto& [rank, factor] : costs.slowdown) {
    TRIREME_CHECK(rank >= 0 && rank < mesh.world() && factor > 0, "invalid slowdown: rank ", rank, " of ", mesh.world(), ", ", factor,
                  " times slower");
    at(rank).slowdown = factor;
  }
  for (const int rank : traced) {
    TRIREME_CHECK(rank >= 0 && rank < mesh.world(), "rank ", rank, " is outside a world of size ", mesh.world());
    at(rank).timeline = &timelines_[rank];
    at(rank).timeline->resize(at(rank).list->size(), {{}, 0, 0});
  }
}

double WorldClocks::own_seconds(const Rank& rank, const Action& action) {
  const Cost& seconds = cost(rank, action);
  return seconds.tensor + (seconds.seconds - seconds.tensor) * rank.slowdown;
}

void WorldClocks::record(const Rank& rank, const Action& action, double begin, double end) {
  if (rank.timeline != nullptr) (*rank.timeline)[index(rank, action)] = {action, begin, end};
}

WorldClocks::UnitTimes& WorldClocks::unit(Rank& rank, int stage, const UnitRef& ref) const {
  return rank.units[static_cast<size_t>(first_unit_[static_cast<size_t>(ref.stage < 0 ? stage : ref.stage)] + ref.unit)];
}

void WorldClocks::wait(Rank& rank, WaitCause cause, double until) {
  if (until <= rank.clock) return;
  rank.times.waits[static_cast<size_t>(cause)] += until - rank.clock;
  rank.clock = until;
}

/// Adds the time for which an action other than compute blocks its rank.
void WorldClocks::hold(Rank& rank, const Action& action) {
  const double begin = rank.clock, seconds = cost(rank, action).seconds;
  rank.clock += seconds;
  (rank.ended ? rank.times.update : rank.times.held) += seconds;
  record(rank, action, begin, rank.clock);
}

double WorldClocks::launch(Rank& rank, double stream) const {
  const double begin = std::max(rank.clock, stream);
  if (!in_launch_order_) return begin;
  rank.group = -1;
  return rank.launched = std::max(begin, rank.launched);
}

double WorldClocks::launch_transfer(Rank& rank, const Action& transfer) const {
  if (!in_launch_order_) return rank.clock;
  if (transfer.group >= 0 && transfer.group == rank.group) return rank.launched;
  const double begin = launch(rank, rank.transfers);
  rank.group = transfer.group;
  return begin;
}

void WorldClocks::run_local(int which, const Action& action) {
  Rank& rank = at(which);
  if (action.type == ActionType::kWaitGrads) wait(rank, WaitCause::kReduce, unit(rank, action.stage, action.unit).reduced);
  hold(rank, action);
}

void WorldClocks::await_input(Rank& rank, const Action& action) {
  const ActionType type = action.type == ActionType::kForward ? ActionType::kRecvForward : ActionType::kRecvBackward;
  const auto mine = [&](const Arrival& a) {
    return a.receive->type == type && a.receive->stage == action.stage && a.receive->microbatch == action.microbatch;
  };
  const auto arrival = std::ranges::find_if(rank.arrivals, mine);
  if (arrival == rank.arrivals.end()) return;  // input of the step, handed over by a stage of this rank, or already read by an earlier part
  wait(rank, WaitCause::kStage, arrival->begin);
  wait(rank, WaitCause::kTransfer, arrival->end);
  rank.arrivals.erase(arrival);
}

void WorldClocks::await_units(Rank& rank, const Action& action, int part) const {
  const StageUnits& stage = stages_[static_cast<size_t>(action.stage)];
  if (action.type == ActionType::kBackwardWeight && part != stage.recomputing_part) return;  // it reads no parameters
  for (const UnitRef& ref : stage.units_of_part[static_cast<size_t>(part)]) wait(rank, WaitCause::kGather, unit(rank, action.stage, ref).gathered);
}

void WorldClocks::reach(int which, const Action& action) {
  Rank& rank = at(which);
  rank.at = &action;
  if (is_compute(action.type)) {
    if (action.type == ActionType::kForward || is_backward(action.type)) await_input(rank, action);
    const int parts = static_cast<int>(stages_[static_cast<size_t>(action.stage)].units_of_part.size());
    for (int part = std::max(0, action.part); part < (action.part < 0 ? parts : action.part + 1); ++part) await_units(rank, action, part);
    return;
  }
  hold(rank, action);
}

void WorldClocks::compute_together(std::span<const int> members) {
  double start = 0, longest = 0;
  for (const int member : members) {
    Rank& rank = at(member);
    start = std::max(start, cost(rank, *rank.at).tensor > 0 ? launch(rank, 0) : rank.clock);
    longest = std::max(longest, own_seconds(rank, *rank.at));
  }
  for (const int member : members) {
    Rank& rank = at(member);
    const double own = own_seconds(rank, *rank.at);
    rank.times.compute += own;
    rank.times.waits[static_cast<size_t>(WaitCause::kTensor)] += (start - rank.clock) + (longest - own);
    rank.clock = start + longest;
    record(rank, *rank.at, start, rank.clock);
  }
}

/// CLIP, SUM_PARTIAL and the blocking collectives after it hold every rank until the last has reached them.
void WorldClocks::wait_together(std::span<const int> members) {
  double start = 0;
  for (const int member : members) start = std::max(start, launch(at(member), 0));
  for (const int member : members) {
    Rank& rank = at(member);
    const bool of_step = facts_of(rank.at->type).scope == ActionScope::kStep;
    if (of_step && !std::exchange(rank.ended, true)) rank.times.end = rank.clock;
    wait(rank, of_step ? WaitCause::kLast : WaitCause::kTensor, start);
    record(rank, *rank.at, rank.clock, rank.clock);
  }
}

void WorldClocks::start_sum(int which, int64_t pipeline, int microbatch) {
  double& last = sums_[{pipeline, microbatch}];
  last = std::max(last, at(which).clock);
}

void WorldClocks::await_sum(int which, const Action& action, int64_t pipeline) {
  wait(at(which), WaitCause::kStage, sums_.at({pipeline, action.microbatch}));
}

void WorldClocks::meet(std::span<const int> members, int64_t group) {
  const ActionType type = at(members.front()).at->type;
  if (is_compute(type)) return compute_together(members);
  if (facts_of(type).blocks) return wait_together(members);
  if (facts_of(type).scope == ActionScope::kStep) return;  // OUTER and EXCHANGE wait in some steps only, and elsewhere
  double& stream = streams_[static_cast<size_t>(group)];
  double start = stream;
  for (const int member : members) start = std::max(start, launch(at(member), stream));
  stream = start + cost(at(members.front()), *at(members.front()).at).collective;
  for (const int member : members) {
    Rank& rank = at(member);
    const Action& action = *rank.at;
    UnitTimes& times = unit(rank, action.stage, action.unit);
    (type == ActionType::kUnshard ? times.gathered : times.reduced) = stream;
    if (rank.timeline != nullptr) (*rank.timeline)[index(rank, action)].end = stream;
  }
}

void WorldClocks::transfer(int sender, const Action& send, int receiver, const Action& receive) {
  Rank &from = at(sender), &to = at(receiver);  // their clocks have not moved since they posted it
  const double begin = std::max(launch_transfer(from, send), launch_transfer(to, receive)), end = begin + cost(to, receive).seconds;
  from.transfers = std::max(from.transfers, end);
  to.transfers = std::max(to.transfers, end);
  to.arrivals.push_back({&receive, begin, end});
  record(from, send, from.clock, end);
  record(to, receive, to.clock, end);
}

void WorldClocks::finish(int which) {
  Rank& rank = at(which);
  if (!rank.ended) rank.times.end = rank.clock;  // a list that does not train
}

WorldSimulation WorldClocks::result() {
  WorldSimulation result;
  for (const Rank& rank : ranks_) {
    result.ranks.push_back(rank.times);
    result.step_seconds = std::max(result.step_seconds, rank.clock);
  }
  for (size_t r = 0; r < ranks_.size(); ++r)
    if (!ranks_[r].ended) result.ranks[r].waits[static_cast<size_t>(WaitCause::kLast)] = result.step_seconds - ranks_[r].clock;
  result.timelines = std::move(timelines_);
  return result;
}

}  // namespace trireme
