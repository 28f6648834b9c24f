#include "trainer/plan/world_costs.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "parallel/pipeline/launch_order.h"
#include "trainer/loop/recompute.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/gradient_seconds.h"
#include "trainer/plan/text.h"

namespace trireme {
namespace {

struct StageParts {
  std::vector<PartSeconds> parts;
  std::vector<double> unit_elements;  ///< by unit owned by the stage
};

std::vector<StageParts> stages_of(const Config& config, const ModelSeconds& model, const LoweredSchedule& schedule) {
  PartProfiles profiles(config.model);
  const std::vector<Recompute> recompute = recompute_policy(config);
  const int64_t together = blocks_per_unit(config);
  std::vector<StageParts> stages;
  for (const StageRange& range : stage_ranges(*config.parallel.layers_per_stage)) {
    const std::vector<Part> parts = parts_of(config.model, range, together);
    StageParts& stage = stages.emplace_back();
    for (const Part& part : parts) stage.parts.push_back(model.seconds_of(part, recompute_of(part, recompute)));
    for (const int64_t elements : unit_elements(profiles, parts, schedule.units[static_cast<size_t>(range.stage)], profile_shape(config)))
      stage.unit_elements.push_back(static_cast<double>(elements));
  }
  return stages;
}

double compute_seconds(ActionType type, const PartSeconds& part) {
  const double input = part.input_gradient - part.gather_backward;
  switch (type) {
    case ActionType::kForward: return part.forward - part.gather_forward;
    case ActionType::kBackwardInput: return input;
    case ActionType::kBackwardWeight: return part.weight_gradient;
    default: return input + part.weight_gradient;
  }
}

double tensor_seconds(ActionType type, const PartSeconds& part) {
  return type == ActionType::kForward ? part.tensor_forward : type == ActionType::kBackwardWeight ? 0 : part.tensor_backward;
}

/// Seconds of a collective: `held` stalls the compute, `beside` overlaps it.
struct Collective {
  double held = 0, beside = 0;
};

struct Means {
  double compute = 0, held = 0;
  std::array<double, kWaitCauses> waits{};
};
/// Most sums over the islands that an outer step with a delay leaves in flight on a pipeline rank: one for each unit that has trained parameters of a
/// fragment, as LocalUpdates cuts them. Blocks are in the fragments in turn, embedding and head in the first.
int outer_sums_of(const Config& config, const LoweredSchedule& schedule, int pipeline) {
  const LocalConfig& local = config.training.local;
  if (!local.steps || local.delay == 0 || config.parallel.islands == 1 || !config.parallel.overlap) return 0;
  std::vector<std::set<std::string>> units(static_cast<size_t>(local.fragments));
  for (const StageRange& range : stage_ranges(*config.parallel.layers_per_stage)) {
    if (schedule.stage_rank[static_cast<size_t>(range.stage)] != pipeline) continue;
    for (const Part& part : parts_of(config.model, range, blocks_per_unit(config)))
      for (const PartUnit& unit : part.units)
        if (unit.trainable) units[static_cast<size_t>(std::max<int64_t>(part.block, 0) % local.fragments)].insert(unit.name);
  }
  return static_cast<int>(std::ranges::max(units, {}, &std::set<std::string>::size).size());
}

/// Seconds by which NCCL's order exposes outer steps that a delay would hide, divided among the steps of a round: those of all sums but the last.
double exposed_outer_seconds(const Config& config, const ClusterConfig& cluster, const LoweredSchedule& schedule) {
  if (!config.training.local.steps || config.training.local.delay == 0) return 0;
  const StepCosts costs = step_costs(config, cluster, model_seconds(config, cluster), schedule.stage_rank);
  double exposed = 0;
  for (size_t rank = 0; rank < costs.hidden_outer.size(); ++rank)
    if (const int sums = outer_sums_of(config, schedule, static_cast<int>(rank)); sums > 0)
      exposed = std::max(exposed, costs.hidden_outer[rank] * (1 - 1.0 / sums));
  return exposed;
}

/// What waits behind what on the first pipeline rank that has most of such edges.
std::vector<std::string> launch_edges_of(const std::vector<const ActionList*>& lists, const Config& config, const LoweredSchedule& schedule) {
  const MeshShape mesh = mesh_shape(config.parallel);
  const ActionList* worst = nullptr;
  std::vector<LaunchEdge> most;
  for (int pipeline = 0; pipeline < mesh.pipeline; ++pipeline) {
    const ActionList* const list = lists[static_cast<size_t>(rank_of(mesh, {.pipeline = pipeline}))];
    std::vector<LaunchEdge> edges = launch_edges(*list, schedule.units, mesh, outer_sums_of(config, schedule, pipeline));
    if (edges.size() <= most.size()) continue;
    most = std::move(edges);
    worst = list;
  }
  return worst == nullptr ? std::vector<std::string>() : describe_launch_edges(*worst, most);
}

Means means_of(const WorldSimulation& step) {
  Means means;
  const double share = 1 / static_cast<double>(step.ranks.size());
  for (const RankTimes& rank : step.ranks) {
    means.compute += share * rank.compute;
    means.held += share * rank.held;
    for (size_t cause = 0; cause < kWaitCauses; ++cause) means.waits[cause] += share * rank.waits[cause];
  }
  return means;
}

}  // namespace

WorldCosts world_costs(const Config& config, const ClusterConfig& cluster, const LoweredSchedule& schedule) {
  if (cluster.cores_per_rank() < 1)
    throw ConfigError(concat("device.cores=", *cluster.device.cores, ": ", cluster.devices_per_node,
                             " ranks per node would share them, which can be forecast but not simulated; give --cluster-set device.cores=",
                             cluster.devices_per_node, " or more, or fewer ranks"));
  const ModelSeconds model = model_seconds(config, cluster);
  const auto stages = std::make_shared<const std::vector<StageParts>>(stages_of(config, model, schedule));
  const StepCosts step = step_costs(config, cluster, model, schedule.stage_rank);
  const MeshShape mesh = mesh_shape(config.parallel);
  const Stack stack = effective_stack(cluster, config);
  const ZeroPolicy policy = zero_policy(config.parallel);
  const double factor = stack.data_factor;
  const CollectiveChoice collectives(config);
  const auto place = [&](MeshAxis axis) { return place_of(degree_of(mesh, axis), stride_of(mesh, axis), cluster, collectives); };
  const GroupPlacement shard = place(MeshAxis::kShard), replicate = place(MeshAxis::kReplicate);
  const MeshGroup embedding = group_of(mesh, MeshAxis::kEmbedding, 0, mesh.tensor);
  const GroupPlacement ends = place_of(embedding.size, embedding.stride, cluster, collectives);
  const int shards = degree_of(mesh, MeshAxis::kShard);
  const GradientSeconds sums(config, stack, cluster);
  // Collectives once per step overlap all available compute or none; those of each micro-batch overlap as in published runs.
  const double once = stack.reduce_overlap ? 0 : 1;
  const double gather_held = policy.unshard_each_use ? 1 - stack.gather_overlap : once,
               reduce_held = policy.gradients_resident ? once : 1 - stack.scatter_overlap;
  const auto split = [](double held, double seconds) { return Collective{held * seconds, (1 - held) * seconds}; };
  const auto collective = [=, units = schedule.units](const Action& action) {
    if (facts_of(action.type).scope != ActionScope::kUnit) return Collective{};
    const double elements = (*stages)[static_cast<size_t>(action.stage)].unit_elements[static_cast<size_t>(action.unit)];
    switch (action.type) {
      case ActionType::kUnshard: {
        const StageUnits& stage = units[static_cast<size_t>(action.stage)];
        if (policy.parameters_resident && !stage.trainable(action.unit)) return Collective{};  // once a run
        return split(stage.keeps_whole(action.unit) ? once : gather_held, factor * gather_seconds(config, shard, elements, cluster));
      }
      case ActionType::kReduceGrads: return split(reduce_held, factor * sums.scatter(shard, elements));
      case ActionType::kReduceReplicas: return split(once, factor * sums.replicas(replicate, elements / shards));
      case ActionType::kReduceTied: return split(once, sums.tied(ends, elements));
      default: return Collective{};
    }
  };
  const auto compute = [=](const Action& action, double (*seconds)(ActionType, const PartSeconds&)) {
    const std::vector<PartSeconds>& parts = (*stages)[static_cast<size_t>(action.stage)].parts;
    if (action.part >= 0) return seconds(action.type, parts[static_cast<size_t>(action.part)]);
    double sum = 0;
    for (const PartSeconds& part : parts) sum += seconds(action.type, part);
    return sum;
  };
  WorldCosts costs;
  costs.seconds = [=, transfers = step.transfers](const Action& action) {
    if (action.type == ActionType::kRecvForward) return transfers[static_cast<size_t>(action.stage) - 1];
    if (action.type == ActionType::kRecvBackward) return transfers[static_cast<size_t>(action.stage)];
    if (is_compute(action.type)) return compute(action, compute_seconds);
    return is_transfer(action.type) ? 0 : collective(action).held;
  };
  costs.tensor = [=](const Action& action) { return compute(action, tensor_seconds); };
  costs.collective = [=](const Action& action) { return collective(action).beside; };
  if (cluster.software.straggler > 1) costs.slowdown[rank_of(mesh, {.pipeline = step.slowest})] = straggler_factor(config, cluster);
  return costs;
}

SimulatedWorld simulate_step(const Config& config, const ClusterConfig& cluster, const LoweredSchedule& schedule, const std::vector<int>& traced) {
  const MeshShape mesh = mesh_shape(config.parallel);
  const std::vector<const ActionList*> lists = schedule.training_of_ranks(mesh);
  WorldCosts costs = world_costs(config, cluster, schedule);
  SimulatedWorld world{.ranks = mesh.world(), .actions = 0, .step = simulate_world(lists, mesh, schedule.units, costs, traced)};
  for (const ActionList* list : lists) world.actions += static_cast<int64_t>(list->size());
  if (cluster.device.cores) return world;  // no NCCL
  const std::vector<std::string> edges = launch_edges_of(lists, config, schedule);
  if (edges.empty()) return world;
  costs.in_launch_order = true;
  const double outer = exposed_outer_seconds(config, cluster, schedule);
  world.launch_order = {simulate_world(lists, mesh, schedule.units, costs).step_seconds + outer, edges};
  return world;
}

std::string world_text(const SimulatedWorld& world) {
  const Means means = means_of(world.step);
  const double step = world.step.step_seconds;
  std::string text =
      concat("simulated all ", counted(world.ranks, "rank"), ", ", counted(world.actions, "action"), ": no deadlock for any order of arrival; ",
             print("step %.4g s without norm and update\n  mean over ranks: compute %.1f %%", step, 100 * means.compute / step));
  for (size_t cause = 0; cause < kWaitCauses; ++cause)
    if (means.waits[cause] > 5e-4 * step)
      text += print(", waiting for %s %.1f %%", name_of(static_cast<WaitCause>(cause)), 100 * means.waits[cause] / step);
  text += "\n";
  if (!world.launch_order) return text;
  text += print("  NCCL's order of operations: step up to %.4g s, %.1f %% more\n", world.launch_order->step_seconds,
                100 * (world.launch_order->step_seconds / step - 1));
  for (const std::string& edge : world.launch_order->edges) text += "    " + edge + "\n";
  return text;
}

nlohmann::ordered_json world_json(const SimulatedWorld& world) {
  const Means means = means_of(world.step);
  nlohmann::ordered_json waits;
  for (size_t cause = 0; cause < kWaitCauses; ++cause) waits[name_of(static_cast<WaitCause>(cause))] = means.waits[cause];
  nlohmann::ordered_json json = {{"ranks", world.ranks},  {"actions", world.actions},         {"step_seconds", world.step.step_seconds},
                                 {"deadlock_free", true}, {"compute_seconds", means.compute}, {"waits", waits}};
  if (world.launch_order) json["launch_order"] = {{"step_seconds", world.launch_order->step_seconds}, {"edges", world.launch_order->edges}};
  return json;
}

}  // namespace trireme
