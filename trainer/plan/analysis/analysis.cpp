#include "trainer/plan/analysis/analysis.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/state.h"
#include "trainer/model/flops.h"

namespace trireme {
namespace {

double tokens_of_step(const Config& config) {
  return static_cast<double>(config.training.global_batch_size) * static_cast<double>(config.training.sequence_length);
}

/// Number of nodes with a rank of the first replica. Its ranks are consecutive within a pipeline rank.
double nodes_of_first_replica(const MeshShape& mesh, int64_t devices_per_node) {
  const int64_t run = stride_of(mesh, MeshAxis::kReplicate);
  int64_t nodes = 0, last = -1;
  for (int64_t stage = 0; stage < mesh.pipeline; ++stage) {
    const int64_t first = stage * run * mesh.replicate;
    const int64_t from = std::max(last + 1, first / devices_per_node);
    last = (first + run - 1) / devices_per_node;
    nodes += last - from + 1;
  }
  return static_cast<double>(nodes);
}

/// The run's data degree divided and multiplied by powers of two, with the same number of replicas.
std::vector<int64_t> data_degrees(const Config& config) {
  constexpr int kDown = 4, kUp = 4;
  const int64_t data = *config.parallel.data;
  std::vector<int64_t> degrees;
  for (int i = kDown; i > 0; --i)
    if (data % (int64_t{1} << i) == 0 && (data >> i) % config.parallel.replicate == 0) degrees.push_back(data >> i);
  for (int i = 0; i <= kUp; ++i) degrees.push_back(data << i);
  return degrees;
}

/// Scaling curve over the number of data ranks of the same layout, with as many nodes as needed. Strong: constant global batch, where it is
/// divisible; weak: constant batch per rank.
ScalingCurve curve_of(const Config& config, const ClusterConfig& cluster, const AnalysisOptions& options, bool weak) {
  const int64_t model_ranks = config.parallel.tensor * config.parallel.pipeline, data = *config.parallel.data;
  std::vector<int64_t> worlds;
  for (const int64_t degree : data_degrees(config)) worlds.push_back(degree * model_ranks);
  const StepSeconds seconds = [&](int64_t devices) -> std::optional<double> {
    Config scaled = config;
    ClusterConfig machines = cluster;
    scaled.parallel.data = devices / model_ranks;
    const int64_t of_step = config.training.micro_batch_size * *scaled.parallel.data;
    if (weak) scaled.training.global_batch_size = config.training.global_batch_size / data * *scaled.parallel.data;
    if (scaled.training.global_batch_size % of_step != 0) return std::nullopt;
    machines.devices_per_node = std::min(devices, cluster.devices_per_node);
    machines.nodes = (devices + machines.devices_per_node - 1) / machines.devices_per_node;
    return options.step_seconds(scaled, machines);
  };
  return weak ? weak_scaling(worlds, seconds) : strong_scaling(worlds, seconds);
}

}  // namespace

double training_tokens(const Config& config, const std::optional<double>& tokens) {
  if (tokens && !(*tokens > 0 && std::isfinite(*tokens)))
    throw ConfigError(concat("analysis: tokens is ", *tokens, "; it must be a number greater than 0"));
  if (tokens) return *tokens;
  if (config.training.steps) return static_cast<double>(*config.training.steps) * tokens_of_step(config);
  throw ConfigError("training.epochs: the number of tokens is unknown until the data is read; give --tokens N, or set training.steps");
}

TrainingCost training_bill(const Config& config, const ClusterConfig& cluster, double step_seconds, double tokens) {
  TrainingCost bill;
  bill.tokens = tokens;
  bill.steps = std::ceil(tokens / tokens_of_step(config));
  bill.seconds = bill.steps * step_seconds;
  // On a CPU a device is a core; a rank has several cores, or shares one.
  bill.device_hours = bill.seconds / 3600 * mesh_shape(config.parallel).world() * cluster.cores_per_rank();
  if (cluster.device.price_per_hour.value_or(0) > 0) bill.cost = bill.device_hours * *cluster.device.price_per_hour;
  if (cluster.device.watts.value_or(0) > 0) bill.kilowatt_hours = bill.device_hours * *cluster.device.watts / 1000;
  return bill;
}

SavePlan save_plan(const Config& config, const ClusterConfig& cluster, double step_seconds, double steps) {
  const MeshShape mesh = mesh_shape(config.parallel);
  const double nodes = std::ceil(static_cast<double>(mesh.world()) / static_cast<double>(cluster.devices_per_node));
  SavePlan plan;
  plan.bytes = static_cast<double>(state_bytes(config));
  // Only the first replica saves. An asynchronous save blocks training for a host copy only, and is valid once written.
  plan.write_seconds = plan.bytes / (cluster.storage.write * nodes_of_first_replica(mesh, cluster.devices_per_node));
  const double copy_seconds = plan.bytes / (static_cast<double>(mesh.world()) / mesh.replicate) / kHostCopy;
  const double load_seconds = plan.bytes * mesh.replicate / (cluster.storage.read * nodes);
  const bool asynchronous = config.checkpoint.asynchronous;
  plan.mtbf_is_given = config.resilience.mean_time_between_failures.has_value();
  plan.every_is_automatic = !config.checkpoint.every;
  plan.failures.mtbf = config.resilience.mean_time_between_failures.value_or(cluster.node_mtbf / nodes);
  plan.failures.stall = asynchronous ? copy_seconds : plan.write_seconds;
  const double detection = hang_seconds(config, !cluster.device.cores, nodes == 1);
  plan.failures.downtime = detection + cluster.restart + load_seconds + (asynchronous ? plan.write_seconds : 0);
  plan.young = young_interval(plan.failures.stall, plan.failures.mtbf);
  plan.daly = daly_interval(plan.failures.stall, plan.failures.mtbf);
  const double nearest = std::max(1.0, std::round(plan.daly / step_seconds));
  plan.steps = asynchronous ? std::max(nearest, std::ceil(plan.write_seconds / step_seconds)) : nearest;
  plan.share = effective_share(plan.failures, plan.steps * step_seconds);
  plan.share_exponential = effective_share_exponential(plan.failures, plan.steps * step_seconds);
  const double every = config.checkpoint.every ? static_cast<double>(*config.checkpoint.every) : plan.steps;
  if (every > 0) plan.configured = effective_share_exponential(plan.failures, every * step_seconds);
  const double saves = every > 0 ? std::ceil(steps / every) : 1;
  const CheckpointConfig& kept = config.checkpoint;
  const double milestones = kept.keep_every ? std::floor(steps / static_cast<double>(*kept.keep_every)) : 0;
  plan.kept = kept.keep > 0 ? std::min(saves, static_cast<double>(kept.keep + kept.keep_best) + milestones) : saves;
  plan.storage = plan.bytes * std::min(saves, plan.kept + 1);
  return plan;
}

Analysis analyse(const Config& config, const ClusterConfig& cluster, const Forecast& forecast, const AnalysisOptions& options) {
  const double tokens = training_tokens(config, options.tokens);
  Analysis analysis;
  for (const ScalingLaw& law : scaling_laws())
    analysis.compute.push_back(frontier_distance(law, static_cast<double>(parameter_count(config.model)), tokens));
  analysis.bill = training_bill(config, cluster, forecast.step_seconds, tokens);
  if (options.step_seconds) {
    analysis.strong = curve_of(config, cluster, options, false);
    analysis.weak = curve_of(config, cluster, options, true);
  }
  analysis.links = link_needs(config, cluster, forecast);
  analysis.machines = cluster;
  analysis.saving = save_plan(config, cluster, forecast.step_seconds, analysis.bill.steps);
  analysis.textbook = textbook_figures(config, cluster, forecast, tokens);
  return analysis;
}

}  // namespace trireme
