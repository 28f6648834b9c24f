#include "trainer/plan/forecast.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/flops.h"
#include "trainer/plan/forecast_range.h"
#include "trainer/plan/kernel_time.h"

namespace trireme {
namespace {

std::vector<StageTimes> stage_times(const StepCosts& costs) {
  std::vector<StageTimes> times;
  for (const PartSeconds& stage : costs.stages) times.push_back({stage.forward, stage.input_gradient, stage.weight_gradient, 0});
  for (size_t stage = 0; stage < costs.transfers.size(); ++stage) times[stage].transfer = costs.transfers[stage];
  return times;
}

/// Time of `rank` by cause, for `microbatches` micro-batches through each of its stages, without waits for other pipeline ranks.
StepParts step_parts_of(size_t rank, const std::vector<int>& stage_rank, double microbatches, const StepCosts& costs) {
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
  return parts;
}

double busy(const StepParts& p) { return p.compute + p.recompute + p.tensor + p.gather + p.reduce + p.optimizer; }

/// Schedule, costs and simulation of one step.
struct Step {
  Step(const Config& config, const ClusterConfig& cluster, StepSchedule& lists, StepCosts seconds_of)
      : schedule(lists),
        stage_rank(schedule.stage_ranks()),
        costs(std::move(seconds_of)),
        turns(std::max(1.0, 1 / cluster.cores_per_rank())),
        run(simulated()) {
    for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
      // A rank's reduction and update follow its last backward. All ranks meet in the gradient norm, so the last one determines the step time.
      const double begin = costs.staggered ? run.ranks[rank].begin : 0;
      ends = std::max(ends, run.ranks[rank].end - begin + costs.reduce[rank] + costs.optimizer[rank]);
      // Ranks that share cores fill each other's waits, but the cores have to do the work of all of them.
      work.push_back(step_parts_of(rank, stage_rank, microbatches_of(config), costs));
      mean += turns * busy(work.back()) / static_cast<double>(run.ranks.size());
    }
  }
  StepTimes simulated() const { return step_times(schedule, stage_times(costs)); }
  double seconds() const { return std::max(ends, mean) + costs.host; }

  StepSchedule& schedule;
  std::vector<int> stage_rank;
  StepCosts costs;
  double turns;  ///< ranks per core, at least 1
  StepTimes run;
  double ends = 0;
  std::vector<StepParts> work;  ///< by pipeline rank
  double mean = 0;              ///< seconds of work, mean over ranks, times `turns`
};

}  // namespace

namespace {

/// Steps in the time of a list: with training.asynchronous each island computes one gradient in it, and a step takes apply_after of them. What backup
/// replicas compute is not used.
double steps_per_list(const Config& config) {
  return static_cast<double>(config.parallel.islands - config.resilience.backup_replicas) / static_cast<double>(gradients_per_step(config));
}

}  // namespace

double step_seconds(const Config& config, const ClusterConfig& cluster, const StepCosts& costs, StepSchedule& schedule) {
  return Step(config, cluster, schedule, costs).seconds() / steps_per_list(config);
}

Forecast forecast_time(const Config& config, const ClusterConfig& cluster) {
  // A rule between layout and cluster, so that each layout is checked; the others are in check_against_cluster().
  if (const int64_t context = cluster.software.context; *config.parallel.data % context != 0)
    throw ConfigError(concat("software.context=", context, ": does not divide parallel.data ", *config.parallel.data));
  StepSchedule schedule = step_schedule(config);
  Step step(config, cluster, schedule, step_costs(config, cluster, model_seconds(config, cluster), schedule.stage_ranks()));
  Forecast forecast;
  forecast.step_seconds = step.seconds();
  const ForecastRange range = forecast_range(config, cluster);
  forecast.step_low = range.low(forecast.step_seconds);
  forecast.step_high = range.high(forecast.step_seconds);
  forecast.range_basis = range.basis;
  forecast.bubble = std::max(0.0, 1 - (step.mean + step.costs.host) / forecast.step_seconds);

  StepParts& parts = forecast.parts;
  parts = *std::ranges::max_element(step.work, {}, busy);
  parts.host = step.costs.host;
  const double most = forecast.step_seconds - parts.host;
  const double turns = std::min(step.turns, most / busy(parts));  // the busiest rank gets more than its equal share of a core
  for (double* part : {&parts.compute, &parts.recompute, &parts.tensor, &parts.gather, &parts.reduce, &parts.optimizer}) *part *= turns;
  const double waits = std::max(0.0, most - busy(parts));
  // With free transfers the lists wait only because of their order (bubble); the rest of the waits is due to transfers.
  std::vector<double>& transfers = step.costs.transfers;
  if (std::ranges::any_of(transfers, [](double seconds) { return seconds > 0; })) {
    std::ranges::fill(transfers, 0.0);
    parts.transfer = std::clamp(step.run.barrier_seconds - step.simulated().barrier_seconds, 0.0, waits);
  }
  parts.bubble = waits - parts.transfer;
  const double steps = steps_per_list(config);
  for (double* seconds : {&forecast.step_seconds, &forecast.step_low, &forecast.step_high, &parts.compute, &parts.recompute, &parts.tensor,
                          &parts.gather, &parts.reduce, &parts.optimizer, &parts.host, &parts.transfer, &parts.bubble})
    *seconds /= steps;

  const double tokens = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
  forecast.tokens_per_second_per_device = tokens / forecast.step_seconds / mesh_shape(config.parallel).world();
  const double peak = peak_flops(config, cluster);
  ModelConfig model = config.model;
  const int64_t length = config.training.sequence_length * cluster.software.context;
  model.max_positions = std::max(model.max_positions.value(), length);
  const double flops = training_flops_per_token(model, length);
  forecast.mfu = forecast.tokens_per_second_per_device * flops / peak;
  forecast.mfu_full_attention = forecast.tokens_per_second_per_device * full_attention_flops_per_token(model, length) / peak;
  return forecast;
}

double peak_flops(const Config& config, const ClusterConfig& cluster) {
  return cluster.cores_per_rank() * peak_flops(size_of(precision_of(config.training).compute), effective_stack(cluster, config).tf32, cluster.device);
}

double largest_peak(const std::vector<RankBytes>& memory) {
  double largest = 0;
  for (const RankBytes& rank : memory) largest = std::max(largest, rank.peak);
  return largest;
}

void set_memory(Forecast& forecast, std::vector<RankBytes> memory, double limit, double margin) {
  forecast.memory = std::move(memory);
  forecast.memory_limit = limit;
  forecast.worst_rank = static_cast<int>(std::ranges::max_element(forecast.memory, {}, &RankBytes::peak) - forecast.memory.begin());
  forecast.fits = largest_peak(forecast.memory) <= limit;
  forecast.tight = forecast.fits && largest_peak(forecast.memory) > (1 - margin) * limit;
}

std::vector<RankBytes> memory_of(const Config& config, const ClusterConfig& cluster) {
  return stack_of(cluster.software.stack).own ? counted_memory(config, cluster) : formula_memory(config, cluster);
}

Forecast forecast(const Config& config, const ClusterConfig& cluster) {
  Forecast result = forecast_time(config, cluster);
  set_memory(result, memory_of(config, cluster), *cluster.device.memory, config.plan.memory_margin);
  return result;
}

}  // namespace trireme
