#include "parallel/pipeline/world_check.h"

#include <map>
#include <tuple>

#include "kernels/core/check.h"

namespace trireme {
namespace {

/// Checks that the ranks together compute every part of every micro-batch of every pipeline once, whatever the numbers that they give them.
class WorldCheck {
 public:
  WorldCheck(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<int>& stage_rank, const Rerouting& rerouting)
      : lists_(lists), mesh_(mesh), stage_rank_(stage_rank), rerouting_(rerouting) {}
  std::vector<std::string> run(const std::vector<StageUnits>& stages, bool training);

 private:
  /// Type, stage, part, pipeline, micro-batch.
  using Piece = std::tuple<ActionType, int, int, int, int>;

  static int data_of(const MeshCoordinate& at, const MeshShape& mesh) { return at.replicate * mesh.shard + at.shard; }
  int numbers_of(int data, int pipeline) const {
    return rerouting_.microbatches + static_cast<int>(rerouting_.added[static_cast<size_t>(data)][static_cast<size_t>(pipeline)].size());
  }
  void count(const MeshCoordinate& at, const Action& action);
  void transfer(int rank, const MeshCoordinate& at, const Action& action);

  const std::vector<const ActionList*>& lists_;
  const MeshShape& mesh_;
  const std::vector<int>& stage_rank_;
  const Rerouting& rerouting_;
  std::map<Piece, int> computed_;
  std::vector<std::string> violations_;
};

/// B counts as I and W.
void WorldCheck::count(const MeshCoordinate& at, const Action& action) {
  const MicrobatchOrigin origin = rerouting_.origin(data_of(at, mesh_), at.pipeline, action.microbatch);
  const auto add = [&](ActionType type) { ++computed_[{type, action.stage, action.part, origin.data, origin.microbatch}]; };
  if (action.type != ActionType::kBackward) return add(action.type);
  add(ActionType::kBackwardInput);
  add(ActionType::kBackwardWeight);
}

void WorldCheck::transfer(int rank, const MeshCoordinate& at, const Action& action) {
  const int own = data_of(at, mesh_), there = action.peer < 0 ? own : action.peer, stage = counterpart(action).stage;
  if (stage < 0 || stage >= static_cast<int>(stage_rank_.size()) || there >= mesh_.data()) return;  // the rendezvous reports it
  const int other_rank = stage_rank_[static_cast<size_t>(stage)], number = counterpart(action).microbatch;
  if (other_rank < 0 || number >= numbers_of(there, other_rank)) return;
  const MicrobatchOrigin here = rerouting_.origin(own, at.pipeline, action.microbatch), other = rerouting_.origin(there, other_rank, number);
  if (here != other)
    violations_.push_back(concat("rank ", rank, ": ", to_string(action), " joins micro-batch ", here.microbatch, " of data rank ", here.data,
                                 " with micro-batch ", other.microbatch, " of data rank ", other.data));
}

std::vector<std::string> WorldCheck::run(const std::vector<StageUnits>& stages, bool training) {
  for (int rank = 0; rank < mesh_.world(); ++rank) {
    const MeshCoordinate at = coordinate_of(mesh_, rank);
    if (at.tensor > 0 || at.context > 0 || at.island > 0) continue;  // they run the same list
    const int numbers = numbers_of(data_of(at, mesh_), at.pipeline);
    for (const Action& action : *lists_[static_cast<size_t>(rank)]) {
      if (action.microbatch >= numbers) continue;  // the check of the list reports it
      if (is_compute(action.type)) count(at, action);
      if (is_transfer(action.type)) transfer(rank, at, action);
    }
  }
  const auto require = [&](ActionType type, int stage, int part, int data, int m) {
    const auto found = computed_.find({type, stage, part, data, m});
    const int times = found == computed_.end() ? 0 : found->second;
    if (times != 1)
      violations_.push_back(
          concat(to_string(Action{type, stage, m, -1, part}), " of data rank ", data, " is computed ", times, " times in the world"));
  };
  for (int stage = 0; stage < static_cast<int>(stages.size()); ++stage)
    for (int part = 0; part < static_cast<int>(stages[static_cast<size_t>(stage)].units_of_part.size()); ++part)
      for (int data = 0; data < mesh_.data(); ++data)
        for (int m = 0; m < rerouting_.microbatches; ++m) {
          require(ActionType::kForward, stage, part, data, m);
          if (training) require(ActionType::kBackwardInput, stage, part, data, m);
          if (training && part != stages[static_cast<size_t>(stage)].fused_part) require(ActionType::kBackwardWeight, stage, part, data, m);
        }
  return std::move(violations_);
}

}  // namespace

std::vector<std::string> find_lost_microbatches(const std::vector<const ActionList*>& lists, const MeshShape& mesh,
                                                const std::vector<StageUnits>& stages, const std::vector<int>& stage_rank, const Rerouting& rerouting,
                                                bool training) {
  return WorldCheck(lists, mesh, stage_rank, rerouting).run(stages, training);
}

}  // namespace trireme
