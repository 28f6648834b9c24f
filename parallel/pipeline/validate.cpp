#include "parallel/pipeline/validate.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernels/core/check.h"
#include "parallel/pipeline/rendezvous.h"
#include "parallel/pipeline/world.h"
#include "parallel/pipeline/world_check.h"

namespace trireme {
namespace {

struct Expected {
  const std::vector<StageUnits>& stages;
  const std::vector<int>& stage_rank;  ///< pipeline rank of each stage, -1 where no list computes it
  int microbatches;
  bool training;
  const StepEnd& end;
  std::set<int> elsewhere = {};  ///< micro-batches of these numbers are computed by other ranks
};

/// Checks one rank's list in isolation: every part of every micro-batch once and in order, nothing before what it needs, nothing left over.
class ListCheck {
 public:
  ListCheck(const Expected& expected, int pipeline_rank, std::string where);
  std::vector<std::string> run(const ActionList& list);

 private:
  struct Microbatch {
    int forward = 0, input = 0, weight = 0;  ///< parts done
    bool received_forward = false, sent_forward = false, received_backward = false, sent_backward = false;
  };
  struct Unit {
    bool gathered = false, unreduced = false, reduced = false, replicas_reduced = false, tied_reduced = false, updated = false;
    bool in_flight = false;  ///< a reduction of its gradient is in flight
  };
  struct StageState {
    std::vector<Microbatch> microbatches;
    std::vector<Unit> units;
    bool summed = false;          ///< SUM_PARTIAL has run
    bool orthogonalized = false;  ///< ORTHOGONALIZE has run
  };

  template <class... Parts>
  void add_violation(const Parts&... parts) {
    violations_.push_back(concat(where_, ": ", parts...));
  }
  bool in_range(const Action& action);
  Unit& unit_of(int stage, const UnitRef& unit) { return stages_.at(unit.stage < 0 ? stage : unit.stage).units.at(static_cast<size_t>(unit.unit)); }
  void compute(const Action& action);
  void compute(const Action& action, int part);
  bool has_input(const Action& part, const Microbatch& microbatch) const;
  void forward(const Action& part, Microbatch& microbatch);
  void backward_input(const Action& part, Microbatch& microbatch);
  void backward_weight(const Action& part, Microbatch& microbatch);
  void skip_fused(int stage, Microbatch& microbatch) const;
  void transfer(const Action& action);
  void move_unit(const Action& action);
  void reduce(const Action& action, Unit& unit);
  void wait_grads(const Action& action, Unit& unit);
  void clip_samples(const Action& action);
  void wait_clip(const Action& action);
  void sum_partial(const Action& action);
  void orthogonalize(const Action& action);
  void act_on_step(ActionType type);
  void update(const Action& action, Unit& unit);
  void finish();
  void finish_microbatch(int stage, int m, const Microbatch& microbatch);
  void finish_unit(int stage, int u, const Unit& unit);
  const StageUnits& description(int stage) const { return expected_.stages[static_cast<size_t>(stage)]; }
  int parts(int stage) const { return static_cast<int>(description(stage).units_of_part.size()); }
  bool last_stage(int stage) const { return stage + 1 == static_cast<int>(expected_.stages.size()); }
  /// True if another rank computes the stage, so that data is sent to it and received from it.
  bool is_elsewhere(int stage) const { return stage >= 0 && stage < static_cast<int>(expected_.stages.size()) && !stages_.contains(stage); }

  const Expected& expected_;
  std::string where_;
  std::map<int, StageState> stages_;
  std::set<ActionType> done_;        ///< actions of the whole step so far
  bool clips_ = false;               ///< the list has CLIP
  std::set<int> clipped_, awaited_;  ///< micro-batches after CLIP, and after WAIT_CLIP
  std::vector<std::string> violations_;
};

ListCheck::ListCheck(const Expected& expected, int pipeline_rank, std::string where) : expected_(expected), where_(std::move(where)) {
  for (size_t s = 0; s < expected.stages.size(); ++s) {
    if (expected.stage_rank[s] != pipeline_rank) continue;
    StageState& state = stages_[static_cast<int>(s)];
    state.microbatches.resize(static_cast<size_t>(expected.microbatches));
    state.units.resize(static_cast<size_t>(expected.stages[s].units));
  }
}

bool ListCheck::in_range(const Action& action) {
  const ActionScope scope = facts_of(action.type).scope;
  const bool of_microbatch = action.microbatch >= 0 && action.microbatch < expected_.microbatches;
  if (scope == ActionScope::kStep) return true;
  if (scope == ActionScope::kMicrobatch) {
    if (!of_microbatch) add_violation(to_string(action), " names a micro-batch that does not exist");
    return of_microbatch;
  }
  if (!stages_.contains(action.stage)) {
    add_violation(to_string(action), " belongs to a stage that is not on this rank");
    return false;
  }
  const bool in_stage = scope == ActionScope::kTransfer ? of_microbatch
                        : scope == ActionScope::kPart   ? of_microbatch && action.part < parts(action.stage)
                        : scope == ActionScope::kUnit   ? action.unit >= 0 && action.unit < description(action.stage).units
                                                        : true;
  if (!in_stage) add_violation(to_string(action), " names a micro-batch, part or unit that does not exist");
  return in_stage;
}

void ListCheck::compute(const Action& action) {
  if (action.part >= 0) return compute(action, action.part);
  const int all = parts(action.stage);
  for (int i = 0; i < all; ++i) {
    const int part = action.type == ActionType::kForward ? i : all - 1 - i;
    if (action.type != ActionType::kBackwardWeight || part != description(action.stage).fused_part) compute(action, part);
  }
}

void ListCheck::compute(const Action& action, int part) {
  Action one = action;
  one.part = part;
  Microbatch& microbatch = stages_.at(action.stage).microbatches[static_cast<size_t>(action.microbatch)];
  const bool reads_all = action.type != ActionType::kBackwardWeight || part == description(action.stage).recomputing_part;
  const bool fused = part == description(action.stage).fused_part;
  const bool adds = action.type == ActionType::kBackward || action.type == (fused ? ActionType::kBackwardInput : ActionType::kBackwardWeight);
  for (const UnitRef& u : description(action.stage).units_of_part[static_cast<size_t>(part)]) {
    if (u.stage >= 0 && !stages_.contains(u.stage)) {
      add_violation(to_string(one), " reads a unit of stage ", u.stage, ", which is not on this rank");
      continue;
    }
    Unit& unit = unit_of(action.stage, u);
    const StageUnits& owner = description(u.stage < 0 ? action.stage : u.stage);
    if ((reads_all || owner.keeps_whole(u.unit)) && !unit.gathered) add_violation(to_string(one), " runs before unit ", u.unit, " is gathered");
    if (!owner.trainable(u.unit)) continue;
    if (adds && unit.replicas_reduced) add_violation(to_string(one), " adds to the gradient of unit ", u.unit, " after it was reduced over replicas");
    if (adds && unit.in_flight) add_violation(to_string(one), " adds to the gradient of unit ", u.unit, " while it is being reduced");
    if (adds) unit.unreduced = true;
  }
  if (action.type == ActionType::kForward) forward(one, microbatch);
  if (action.type == ActionType::kBackward || action.type == ActionType::kBackwardInput) backward_input(one, microbatch);
  if (adds && !fused) backward_weight(one, microbatch);
  if (fused && action.type == ActionType::kBackwardWeight) add_violation(to_string(one), ": the part is fused and has no W");
  if (action.type != ActionType::kForward) skip_fused(action.stage, microbatch);
}

/// True if the input was received or, if the neighbouring stage is on this rank, computed.
bool ListCheck::has_input(const Action& part, const Microbatch& microbatch) const {
  const bool forward = part.type == ActionType::kForward;
  const int neighbour = part.stage + (forward ? -1 : 1);
  if (is_elsewhere(neighbour)) return forward ? microbatch.received_forward : microbatch.received_backward;
  const Microbatch& there = stages_.at(neighbour).microbatches[static_cast<size_t>(part.microbatch)];
  return (forward ? there.forward : there.input) == parts(neighbour);
}

void ListCheck::forward(const Action& part, Microbatch& microbatch) {
  if (part.part != microbatch.forward) add_violation(to_string(part), " runs twice or out of order");
  if (part.part == 0 && part.stage > 0 && !has_input(part, microbatch)) add_violation(to_string(part), " runs before its input is received");
  ++microbatch.forward;
}

void ListCheck::backward_input(const Action& part, Microbatch& microbatch) {
  const int last = parts(part.stage) - 1;
  if (!expected_.training) add_violation(to_string(part), " is in a list that does not train");
  if (part.part != last - microbatch.input) add_violation(to_string(part), " runs twice or out of order");
  if (microbatch.forward <= last) add_violation(to_string(part), " runs before the forward");
  if (part.part == last && !last_stage(part.stage) && !has_input(part, microbatch))
    add_violation(to_string(part), " runs before the gradient of its output is received");
  ++microbatch.input;
}

void ListCheck::backward_weight(const Action& part, Microbatch& microbatch) {
  if (part.part != parts(part.stage) - 1 - microbatch.weight) add_violation(to_string(part), " runs twice or out of order");
  if (microbatch.weight >= microbatch.input) add_violation(to_string(part), " runs before the input gradient");
  if (clips_ && !awaited_.contains(part.microbatch)) add_violation(to_string(part), " runs before the norms of the micro-batch's samples are known");
  ++microbatch.weight;
}

/// Counts the W of a fused part, which has none, as done.
void ListCheck::skip_fused(int stage, Microbatch& microbatch) const {
  const int fused = description(stage).fused_part;
  if (fused >= 0 && fused == parts(stage) - 1 - microbatch.weight && microbatch.input > microbatch.weight) ++microbatch.weight;
}

void ListCheck::transfer(const Action& action) {
  Microbatch& m = stages_.at(action.stage).microbatches[static_cast<size_t>(action.microbatch)];
  const int all = parts(action.stage), other = counterpart(action).stage;
  if (stages_.contains(other)) add_violation(to_string(action), ": stage ", other, " is on the same rank, so there must be no transfer");
  if (action.type == ActionType::kSendForward && m.forward < all) add_violation(to_string(action), " sends before the output is computed");
  if (action.type == ActionType::kSendBackward && m.input < all) add_violation(to_string(action), " sends before the gradient is computed");
  bool& done = action.type == ActionType::kSendForward    ? m.sent_forward
               : action.type == ActionType::kRecvForward  ? m.received_forward
               : action.type == ActionType::kSendBackward ? m.sent_backward
                                                          : m.received_backward;
  if (done) add_violation(to_string(action), " occurs twice");
  done = true;
}

void ListCheck::move_unit(const Action& action) {
  Unit& unit = stages_.at(action.stage).units[static_cast<size_t>(action.unit)];
  const bool moves_gradient = is_reduction(action.type) || action.type == ActionType::kWaitGrads || action.type == ActionType::kUpdate;
  if (moves_gradient && !description(action.stage).trainable(action.unit)) add_violation(to_string(action), ": the unit is frozen");
  if (is_reduction(action.type)) return reduce(action, unit);
  if (action.type == ActionType::kWaitGrads) return wait_grads(action, unit);
  if (action.type == ActionType::kUpdate) return update(action, unit);
  const bool gather = action.type == ActionType::kUnshard;
  if (unit.gathered == gather) add_violation(to_string(action), gather ? ": the unit is already gathered" : ": the unit is not gathered");
  unit.gathered = gather;
}

void ListCheck::reduce(const Action& action, Unit& unit) {
  if (!expected_.training) add_violation(to_string(action), " is in a list that does not train");
  if (!done_.empty()) add_violation(to_string(action), " comes after ", name_of(*done_.begin()));
  if (unit.in_flight) add_violation(to_string(action), " starts before the reduction in flight has been waited for");
  unit.in_flight = true;
  if (action.type == ActionType::kReduceGrads) {
    // Without a micro-batch of its own a rank adds zeros to the sum.
    if (!unit.unreduced && expected_.elsewhere.empty()) add_violation(to_string(action), " has no gradient to reduce");
    unit.unreduced = false;
    unit.reduced = true;
    return;
  }
  if (!unit.reduced || unit.unreduced) add_violation(to_string(action), " comes before the gradient is reduced over shards");
  const bool tied = action.type == ActionType::kReduceTied;
  if (tied && action.unit != description(action.stage).tied_unit) add_violation(to_string(action), ": the unit is not tied");
  if (tied && !unit.replicas_reduced) add_violation(to_string(action), " comes before the gradient is reduced over replicas");
  bool& done = tied ? unit.tied_reduced : unit.replicas_reduced;
  if (done) add_violation(to_string(action), " occurs twice");
  done = true;
}

void ListCheck::wait_grads(const Action& action, Unit& unit) {
  if (!unit.in_flight) add_violation(to_string(action), ": no reduction is in flight");
  unit.in_flight = false;
}

void ListCheck::clip_samples(const Action& action) {
  if (!clipped_.insert(action.microbatch).second) add_violation(to_string(action), " occurs twice");
  for (const auto& [index, stage] : stages_)
    if (stage.microbatches[static_cast<size_t>(action.microbatch)].input < parts(index))
      add_violation(to_string(action), " comes before the input gradients of stage ", index);
}

void ListCheck::wait_clip(const Action& action) {
  if (!awaited_.insert(action.microbatch).second) add_violation(to_string(action), " occurs twice");
  if (!clipped_.contains(action.microbatch)) add_violation(to_string(action), " comes before CLIP");
}

void ListCheck::sum_partial(const Action& action) {
  StageState& stage = stages_.at(action.stage);
  if (stage.summed) add_violation(to_string(action), " occurs twice");
  stage.summed = true;
  for (const Unit& unit : stage.units)
    if (unit.in_flight || unit.unreduced) return add_violation(to_string(action), " comes before the stage's gradients are reduced");
}

void ListCheck::orthogonalize(const Action& action) {
  StageState& stage = stages_.at(action.stage);
  if (!description(action.stage).has_matrix_updates) add_violation(to_string(action), ": the stage has no updates of whole matrices");
  if (!done_.contains(ActionType::kNorm)) add_violation(to_string(action), " comes before the norm");
  if (stage.orthogonalized) add_violation(to_string(action), " occurs twice");
  stage.orthogonalized = true;
}

/// An action of the whole step: it comes in the order of ActionType, before or after all updates.
void ListCheck::act_on_step(ActionType type) {
  const char* const name = name_of(type);
  if (!expected_.training || std::ranges::find(expected_.end.actions, type) == expected_.end.actions.end())
    add_violation(name, " has no place in this list");
  if (!done_.empty() && *done_.rbegin() > type) add_violation(name, " comes after ", name_of(*done_.rbegin()));
  if (!done_.insert(type).second) add_violation(name, " occurs twice");
  for (const auto& [index, stage] : stages_) {
    if (!stage.summed) add_violation(name, " comes before the partial gradients of stage ", index, " are summed");
    const auto waits_for_update = [&](const Unit& unit) { return expected_.end.updates && unit.reduced && !unit.updated; };
    if (follows_updates(type) && std::ranges::any_of(stage.units, waits_for_update))
      add_violation(name, " comes before the updates of stage ", index);
  }
}

void ListCheck::update(const Action& action, Unit& unit) {
  if (!done_.contains(ActionType::kNorm)) add_violation(to_string(action), " comes before the norm");
  if (!expected_.end.updates) add_violation(to_string(action), ": the updates are EXCHANGE's");
  if (description(action.stage).has_matrix_updates && !stages_.at(action.stage).orthogonalized)
    add_violation(to_string(action), " comes before the updates of the stage's matrices are computed");
  if (unit.updated) add_violation(to_string(action), " occurs twice");
  unit.updated = true;
}

void ListCheck::finish_microbatch(int stage, int m, const Microbatch& microbatch) {
  const int all = parts(stage);
  const auto require = [&](bool done, const char* what) {
    if (!done) add_violation("stage ", stage, " ", what, " micro-batch ", m);
  };
  if (expected_.elsewhere.contains(m)) {
    const bool idle = microbatch.forward + microbatch.input + microbatch.weight == 0 && !microbatch.received_forward && !microbatch.sent_forward &&
                      !microbatch.received_backward && !microbatch.sent_backward;
    return require(idle, "computes or moves, although other ranks do,");
  }
  require(microbatch.forward == all, "does not compute the forward of");
  if (is_elsewhere(stage - 1)) require(microbatch.received_forward, "never receives the input of");
  if (is_elsewhere(stage + 1)) require(microbatch.sent_forward, "never sends the output of");
  if (!expected_.training) return;
  require(microbatch.input == all, "does not compute the backward of");
  require(microbatch.weight == all, "does not compute the weight gradients of");
  if (is_elsewhere(stage - 1)) require(microbatch.sent_backward, "never sends the input gradient of");
  if (is_elsewhere(stage + 1)) require(microbatch.received_backward, "never receives the output gradient of");
}

void ListCheck::finish_unit(int stage, int u, const Unit& unit) {
  const auto require = [&](bool done, const char* what) {
    if (!done) add_violation("unit ", u, " of stage ", stage, " is never ", what);
  };
  require(!unit.gathered, "resharded after its last use");
  if (!expected_.training || !description(stage).trainable(u)) return;
  require(unit.reduced && !unit.unreduced, "reduced after the last gradient is added");
  require(unit.replicas_reduced, "reduced over replicas");
  if (u == description(stage).tied_unit) require(unit.tied_reduced, "reduced over the tied embeddings");
  require(!unit.in_flight, "waited for after its last reduction");
  if (expected_.end.updates) require(unit.updated, "updated");
}

void ListCheck::finish() {
  for (const ActionType type : expected_.end.actions)
    if (expected_.training && !done_.contains(type)) add_violation(name_of(type), " is missing");
  for (const auto& [stage, state] : stages_) {
    for (size_t m = 0; m < state.microbatches.size(); ++m) finish_microbatch(stage, static_cast<int>(m), state.microbatches[m]);
    std::vector<bool> read(state.units.size(), false);
    for (const std::vector<UnitRef>& units : description(stage).units_of_part)
      for (const UnitRef& u : units)
        if (u.stage < 0 || u.stage == stage) read.at(static_cast<size_t>(u.unit)) = true;
    for (size_t u = 0; u < state.units.size(); ++u)
      if (read[u]) finish_unit(stage, static_cast<int>(u), state.units[u]);
  }
}

std::vector<std::string> ListCheck::run(const ActionList& list) {
  clips_ = std::ranges::find(list, ActionType::kClipSamples, &Action::type) != list.end();
  for (const Action& action : list) {
    if (!in_range(action)) continue;
    switch (facts_of(action.type).scope) {
      case ActionScope::kPart: compute(action); break;
      case ActionScope::kTransfer: transfer(action); break;
      case ActionScope::kUnit: move_unit(action); break;
      case ActionScope::kMicrobatch: action.type == ActionType::kClipSamples ? clip_samples(action) : wait_clip(action); break;
      case ActionScope::kStage: action.type == ActionType::kSumPartial ? sum_partial(action) : orthogonalize(action); break;
      case ActionScope::kStep: act_on_step(action.type); break;
    }
  }
  finish();
  return std::move(violations_);
}

}  // namespace

std::vector<std::string> validate(const std::vector<ActionList>& lists, const MeshShape& mesh, const std::vector<StageUnits>& stages,
                                  int microbatches, bool training, const StepEnd& end) {
  const bool shared = static_cast<int>(lists.size()) == mesh.pipeline;
  const std::vector<const ActionList*> by_rank = lists_of_ranks(lists, mesh);
  std::vector<std::string> violations;
  const auto append = [&](std::vector<std::string> more) { violations.insert(violations.end(), more.begin(), more.end()); };
  const std::vector<int> stage_rank = stage_ranks(by_rank, mesh, stages.size());
  for (size_t stage = 0; stage < stage_rank.size(); ++stage)
    if (stage_rank[stage] < 0) violations.push_back(concat("no rank computes stage ", stage));
  const Expected expected{stages, stage_rank, microbatches, training, end};
  for (size_t i = 0; i < lists.size(); ++i) {
    const int pipeline = shared ? static_cast<int>(i) : coordinate_of(mesh, static_cast<int>(i)).pipeline;
    append(ListCheck(expected, pipeline, concat(shared ? "pipeline rank " : "rank ", i)).run(lists[i]));
  }
  append(run_rendezvous(by_rank, mesh, stage_rank));
  return violations;
}

std::vector<std::string> validate(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<StageUnits>& stages,
                                  const Rerouting& rerouting, bool training, const StepEnd& end) {
  TRIREME_CHECK(static_cast<int>(lists.size()) == mesh.world() && rerouting.data_ranks == mesh.data() && rerouting.pipeline_ranks == mesh.pipeline,
                lists.size(), " lists for ", mesh.world(), " ranks");
  const std::vector<int> stage_rank = stage_ranks(lists, mesh, stages.size());
  std::vector<std::string> violations;
  const auto append = [&](std::vector<std::string> more) { violations.insert(violations.end(), more.begin(), more.end()); };
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const MeshCoordinate at = coordinate_of(mesh, rank);
    if (at.tensor > 0 && lists[static_cast<size_t>(rank)] == lists[static_cast<size_t>(rank) - 1]) continue;
    const int data = at.replicate * mesh.shard + at.shard;
    const size_t added = rerouting.added[static_cast<size_t>(data)][static_cast<size_t>(at.pipeline)].size();
    Expected expected{stages, stage_rank, rerouting.microbatches + static_cast<int>(added), training, end};
    for (int m = rerouting.from; rerouting.relieves(data, at.pipeline) && m < rerouting.microbatches; ++m) expected.elsewhere.insert(m);
    append(ListCheck(expected, at.pipeline, concat("rank ", rank)).run(*lists[static_cast<size_t>(rank)]));
  }
  append(find_lost_microbatches(lists, mesh, stages, stage_rank, rerouting, training));
  append(run_rendezvous(lists, mesh, stage_rank));
  return violations;
}

}  // namespace trireme
