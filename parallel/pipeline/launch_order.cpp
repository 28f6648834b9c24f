#include "parallel/pipeline/launch_order.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "kernels/core/check.h"

namespace trireme {
namespace {

/// The communicator on which an action issues operations; none if it issues none.
std::optional<MeshAxis> communicator_of(const Action& action, const MeshShape& mesh) {
  if (is_transfer(action.type)) return MeshAxis::kPipeline;
  for (const MeshAxis axis : axes_of(action))
    if (group_of(mesh, axis, 0, mesh.tensor).size > 1) return axis;
  return std::nullopt;
}

bool stays_in_flight(ActionType type) { return type == ActionType::kUnshard || is_reduction(type) || is_receive(type); }

/// Whether `action` waits for the operation that `issued` has begun.
bool waits_for(const Action& action, const Action& issued, std::span<const StageUnits> stages) {
  if (is_reduction(issued.type)) return action.type == ActionType::kWaitGrads && action.stage == issued.stage && action.unit == issued.unit;
  if (!is_compute(action.type)) return false;
  const StageUnits& stage = stages[static_cast<size_t>(action.stage)];
  const int last = static_cast<int>(stage.units_of_part.size()) - 1;
  if (issued.type == ActionType::kUnshard) {
    if (action.type == ActionType::kBackwardWeight && action.part != stage.recomputing_part) return false;
    return std::ranges::any_of(stage.units_of_part[static_cast<size_t>(action.part)], [&](const UnitRef& unit) {
      return unit.unit == issued.unit && (unit.stage < 0 ? action.stage : unit.stage) == issued.stage;
    });
  }
  const bool forward = issued.type == ActionType::kRecvForward;
  return action.stage == issued.stage && action.microbatch == issued.microbatch && (action.type == ActionType::kForward) == forward &&
         action.type != ActionType::kBackwardWeight && action.part == (forward ? 0 : last);
}

struct InFlight {
  size_t at;
  MeshAxis communicator;
  std::optional<size_t> behind = {};  ///< the operation that is queued behind it
};

}  // namespace

std::vector<LaunchEdge> launch_edges(const ActionList& list, std::span<const StageUnits> stages, const MeshShape& mesh, int outer_sums) {
  std::vector<LaunchEdge> edges;
  std::vector<InFlight> in_flight;
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    std::erase_if(in_flight, [&](const InFlight& operation) { return waits_for(action, list[operation.at], stages); });
    const std::optional<MeshAxis> communicator = communicator_of(action, mesh);
    if (!communicator) continue;
    for (InFlight& operation : in_flight) {
      const bool same = operation.communicator == *communicator;
      if (!same && operation.behind) edges.push_back({operation.at, *std::exchange(operation.behind, std::nullopt), i});
      const bool together = action.group >= 0 && action.group == list[operation.at].group;
      if (same && !together && !operation.behind) operation.behind = i;
    }
    if (stays_in_flight(action.type)) in_flight.push_back({i, *communicator});
  }
  const auto outer = std::ranges::find(list, ActionType::kOuter, &Action::type);
  if (outer == list.end() || outer_sums < 2) return edges;
  const auto held = std::ranges::find_if(list, [&](const Action& action) { return communicator_of(action, mesh).has_value(); });
  const auto place = [&](auto at) { return static_cast<size_t>(at - list.begin()); };
  if (held < outer) edges.push_back({place(outer), place(outer), place(held)});
  return edges;
}

std::vector<std::string> describe_launch_edges(const ActionList& list, const std::vector<LaunchEdge>& edges) {
  std::map<std::array<ActionType, 3>, int> times;
  for (const LaunchEdge& edge : edges) ++times[{list[edge.held].type, list[edge.behind].type, list[edge.first].type}];
  std::vector<std::pair<int, std::string>> lines;
  for (const auto& [types, count] : times)
    lines.emplace_back(-count, concat(name_of(types[0]), types[1] == ActionType::kOuter ? " waits for all but the last sum of " : " waits behind ",
                                      name_of(types[1]), types[1] == ActionType::kOuter ? "" : concat(", queued behind ", name_of(types[2])), ": ",
                                      count, count == 1 ? " time" : " times"));
  std::ranges::sort(lines);
  std::vector<std::string> texts;
  for (const auto& [unused, text] : lines) texts.push_back(text);
  return texts;
}

}  // namespace trireme
