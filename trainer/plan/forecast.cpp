#include "trainer/plan/forecast.h"

#include <algorithm>

#include "parallel/pipeline/simulate.h"
#include "trainer/loop/rank_plan.h"
#include "trainer/model/flops.h"
#include "trainer/plan/stack.h"

namespace trireme {
namespace {

/// Nine of ten of the published runs lie within this share of their forecast (tests/plan/published_test.cpp holds it).
constexpr double kNinetiethPercentile = 0.12;

double action_seconds(const Action& action, const StepCosts& costs) {
  const PartSeconds& stage = costs.stages[static_cast<size_t>(action.stage)];
  switch (action.type) {
    case ActionType::kForward: return stage.forward;
    case ActionType::kBackward: return stage.input_gradient + stage.weight_gradient;
    case ActionType::kBackwardInput: return stage.input_gradient;
    case ActionType::kBackwardWeight: return stage.weight_gradient;
    case ActionType::kRecvForward:
    case ActionType::kRecvBackward: return costs.transfer;
    default: return 0;
  }
}

/// Where the time of `rank` goes, which `micro-batches` cross each of its stages.
StepParts parts_of(size_t rank, const std::vector<int>& stage_rank, double microbatches, const StepCosts& costs) {
  PartSeconds sum;
  for (size_t stage = 0; stage < stage_rank.size(); ++stage)
    if (stage_rank[stage] == static_cast<int>(rank)) sum.add(costs.stages[stage], microbatches);
  StepParts parts;
  parts.recompute = sum.recompute;
  parts.tensor = sum.tensor_forward + sum.tensor_backward;
  parts.gather = sum.gather_forward + sum.gather_backward;
  parts.compute = sum.total() - parts.recompute - parts.tensor - parts.gather;
  parts.reduce = costs.reduce[rank];
  parts.optimizer = costs.optimizer[rank];
  parts.host = costs.host;
  return parts;
}

}  // namespace

Forecast forecast_time(const Config& config, const ClusterConfig& cluster) { return forecast_time(config, cluster, model_seconds(config, cluster)); }

Forecast forecast_time(const Config& config, const ClusterConfig& cluster, const ModelSeconds& model) {
  const PipelinePlan plan = training_plan(config);
  const std::vector<int> stage_rank = stage_ranks(plan);
  StepCosts costs = step_costs(config, cluster, model, stage_rank);
  const double slowest = cluster.software.straggler;
  const Simulation run = simulate(plan, [&](const Action& action) { return slowest * action_seconds(action, costs); });
  // Without transfers the same lists idle for their order alone: the rest of the waits is the transfers'.
  const double transfer = costs.transfer;
  costs.transfer = 0;
  const Simulation ideal = transfer > 0 ? simulate(plan, [&](const Action& action) { return slowest * action_seconds(action, costs); }) : run;

  // A rank's own reduction and update follow its last backward; all meet in the gradient norm, so the last to come decides.
  size_t last = 0;
  double ends = 0;
  for (size_t rank = 0; rank < plan.size(); ++rank) {
    const double end = run.ranks[rank].back().end + costs.reduce[rank] + costs.optimizer[rank];
    if (end < ends) continue;
    ends = end;
    last = rank;
  }
  // Ranks that take turns on cores fill each other's waits, but all their work passes through those cores.
  double work = 0;
  for (size_t rank = 0; rank < plan.size(); ++rank) {
    const StepParts own = parts_of(rank, stage_rank, microbatches_of(config), costs);
    work += slowest * (own.compute + own.recompute + own.tensor + own.gather) + own.reduce + own.optimizer;
  }
  const double turns = std::max(1.0, 1 / cluster.cores_per_rank());
  Forecast forecast;
  work *= turns / static_cast<double>(plan.size());
  forecast.step_seconds = std::max(ends, work) + costs.host;
  forecast.step_low = forecast.step_seconds * (1 - kNinetiethPercentile);
  forecast.step_high = forecast.step_seconds * (1 + kNinetiethPercentile);
  const double microbatches = microbatches_of(config);
  forecast.parts = parts_of(last, stage_rank, microbatches, costs);
  StepParts& parts = forecast.parts;
  parts.transfer = std::max(0.0, run.barrier_seconds - ideal.barrier_seconds);
  for (double* part : {&parts.compute, &parts.recompute, &parts.tensor, &parts.gather, &parts.reduce, &parts.optimizer}) *part *= turns;
  const double busy = parts.compute + parts.recompute + parts.tensor + parts.gather + parts.reduce + parts.optimizer + parts.host;
  parts.bubble = std::max(0.0, forecast.step_seconds - busy - parts.transfer);
  parts.transfer = std::max(0.0, forecast.step_seconds - busy - parts.bubble);

  forecast.bubble = std::max(0.0, 1 - (work + costs.host) / forecast.step_seconds);
  const double tokens = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
  const MeshShape mesh = mesh_shape(config.parallel);
  forecast.tokens_per_second_per_device = tokens / forecast.step_seconds / mesh.world();
  const double peak = cluster.cores_per_rank() * (config.training.precision == "fp32" ? *cluster.device.peak_flops_fp32 : *cluster.device.peak_flops);
  const double flops = training_flops_per_token(config.model, config.training.sequence_length);
  const double attention = 6 * static_cast<double>(config.model.layers * config.model.heads * *config.model.head_size) *
                           static_cast<double>(config.training.sequence_length);  // the causal half
  forecast.mfu = forecast.tokens_per_second_per_device * flops / peak;
  forecast.mfu_full_attention = forecast.tokens_per_second_per_device * (flops + attention) / peak;
  return forecast;
}

Forecast forecast(const Config& config, const ClusterConfig& cluster) {
  Forecast result = forecast_time(config, cluster);
  const bool own = cluster.software.stack == stacks().front().name;
  result.memory = own ? counted_memory(config, cluster) : formula_memory(config, cluster);
  result.memory_limit = *cluster.device.memory;
  const auto most = std::ranges::max_element(result.memory, {}, &RankBytes::peak);
  result.worst_rank = static_cast<int>(most - result.memory.begin());
  result.fits = most->peak <= result.memory_limit;
  return result;
}

}  // namespace trireme
