#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>

#include "kernels/core/check.h"
#include "trainer/model/flops.h"
#include "trainer/plan/layouts.h"
#include "trainer/plan/place.h"
#include "trainer/plan/search.h"

namespace trireme {
namespace {

/// Tries only layouts with the least memory: full recomputation, micro-batch size 1, every ZeRO stage without replicas, and the schedules with the
/// fewest micro-batches in flight.
bool something_fits(const Config& config, const ClusterConfig& cluster) {
  const LayoutSpace space(config, cluster);
  const int64_t layers = space.base().model.layers;
  const auto fits_with = [&](const Layout& layout, const std::vector<int64_t>& split) {
    return largest_peak(formula_memory(space.config(layout, split), cluster)) <= cluster.device.memory.value();
  };
  // Few fit with equal stages, and only for these the search's own split is worth its time.
  const auto fits = [&](const Layout& layout) {
    if (!fits_with(layout, balance_equal_layers(layers, 1, 0, 0, stage_ranks_of(layout), true))) return false;
    return fits_with(layout, split_by_time(space, layout, model_seconds(space.config(layout, {layers}), cluster)));
  };
  for (const auto& [tensor, pipeline, data] : space.degrees())
    for (const bool sequence_parallel : space.sequence_parallel(tensor, 1))
      for (const ScheduleKind schedule : {ScheduleKind::k1F1B, ScheduleKind::kZbV}) {
        const int64_t stages = default_virtual_stages(schedule);
        if (stages > 1 && (pipeline == 1 || stages * pipeline > layers)) continue;
        for (int64_t zero = 0; zero <= (data > 1 ? 3 : 0); ++zero)
          if (fits({.tensor = tensor,
                    .pipeline = pipeline,
                    .data = data,
                    .zero = zero,
                    .sequence_parallel = sequence_parallel,
                    .schedule = schedule,
                    .recompute = RecomputeMode::kFull}))
            return true;
      }
  return false;
}

/// A small number of nodes, above the cluster's, with which the model fits. Tries the next 32 counts, then counts in steps of 1/8.
std::optional<int64_t> enough_nodes(const Config& config, ClusterConfig cluster) {
  constexpr int64_t kMost = 64;  // upper limit, as a multiple of the first count tried
  constexpr double kState = 12;  // least bytes per trained parameter in any precision: master weight and two moments
  const Config base = LayoutSpace(config, cluster).base();
  const int64_t trained = trainable_count(base.model), frozen = parameter_count(base.model) - trained;
  const double state = kState * static_cast<double>(trained) + static_cast<double>(frozen * size_of(frozen_dtype(base)));
  const double node = cluster.device.memory.value() * static_cast<double>(cluster.devices_per_node);
  const int64_t first = std::max(cluster.nodes + 1, static_cast<int64_t>(state / node));
  for (cluster.nodes = first; cluster.nodes <= kMost * first; cluster.nodes += cluster.nodes < first + 32 ? 1 : cluster.nodes / 8)
    if (something_fits(config, cluster)) return cluster.nodes;
  return std::nullopt;
}

bool allows(const ClusterConfig& cluster, const Config& config) {
  try {
    check_against_cluster(config, cluster);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// The built-in device with the least memory, above this device's, with which the model fits.
std::optional<ClusterConfig> larger_device(const Config& config, const ClusterConfig& cluster) {
  std::optional<ClusterConfig> found;
  for (const std::string& type : device_types()) {
    if (type == "cpu" || type == cluster.device.type) continue;  // its memory may have been set to less than the type has
    ClusterConfig with = cluster;
    with.device = DeviceConfig{};
    with.device.type = type;
    with = resolve_cluster(with);
    const bool larger = *with.device.memory > *cluster.device.memory && (!found || *with.device.memory < *found->device.memory);
    if (larger && allows(with, config) && something_fits(config, with)) found = with;
  }
  return found;
}

}  // namespace

std::optional<int64_t> fewest_nodes(const Config& config, const ClusterConfig& cluster) {
  ClusterConfig none = cluster;
  none.nodes = 0;
  return enough_nodes(config, none);
}

std::vector<BetterBatch> better_batches(const Config& config, const ClusterConfig& cluster, double rate) {
  constexpr size_t kMostTried = 8;
  constexpr double kLeastGain = 1.02;
  const int64_t batch = config.training.global_batch_size, devices = cluster.devices();
  // The configuration has to be legal with its own layout too, because every command checks that first.
  const int64_t own = config.training.micro_batch_size * config.parallel.data.value_or(1);
  std::set<std::pair<int64_t, int64_t>> near;  // distance, batch size
  for (int64_t unit = 1; unit <= devices; ++unit) {
    if (devices % unit != 0 || batch % unit == 0) continue;
    const int64_t step = std::lcm(unit, own);
    for (const int64_t other : {batch / step * step, (batch / step + 1) * step})
      if (other > 0 && (rate == 0 || (2 * other >= batch && other <= 2 * batch))) near.emplace(std::abs(other - batch), other);
  }
  std::vector<BetterBatch> better;
  bool smaller = false, larger = false;
  size_t tried = 0;
  for (const auto& [distance, other] : near) {
    bool& known = other < batch ? smaller : larger;
    Config changed = config;
    changed.training.global_batch_size = other;
    if (known || !allows_search(changed, devices) || ++tried > kMostTried) continue;
    const SearchResult found = search_layouts(changed, cluster, {}, {.keep = 1, .advise = false});
    if (found.layouts.empty()) continue;
    const RankedLayout& best = found.layouts.front();
    if (best.forecast.tokens_per_second_per_device < kLeastGain * rate) continue;
    known = true;
    better.push_back({other, best.layout, best.forecast.tokens_per_second_per_device});
  }
  return better;
}

std::vector<BetterBatch> batches_without_idle_ranks(const Config& config, const ClusterConfig& cluster, const Forecast& best) {
  constexpr double kIdle = 0.05;
  if (best.bubble < kIdle || config.training.global_batch_size % cluster.devices() == 0) return {};
  return better_batches(config, cluster, best.tokens_per_second_per_device);
}

std::vector<Remedy> find_remedies(const Config& config, const ClusterConfig& cluster) {
  std::vector<Remedy> out;
  if (const std::optional<int64_t> nodes = enough_nodes(config, cluster)) {
    out.push_back({concat("on ", *nodes, " nodes (", *nodes * cluster.devices_per_node, " devices)"), config, cluster});
    out.back().cluster.nodes = *nodes;
  }
  if (const std::optional<ClusterConfig> device = larger_device(config, cluster))
    out.push_back({concat("on the same number of devices of type ", device->device.type), config, *device});
  constexpr int64_t kShortest = 512;
  Config shorter = config;
  for (int64_t length = config.training.sequence_length / 2; length >= kShortest; length /= 2) {
    shorter.training.sequence_length = length;
    if (!something_fits(shorter, cluster)) continue;
    out.push_back({concat("with training.sequence_length ", length), shorter, cluster});
    break;
  }
  return out;
}

}  // namespace trireme
