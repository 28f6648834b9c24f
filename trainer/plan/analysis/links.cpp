#include "trainer/plan/analysis/links.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "parallel/sharding/unit.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/recompute.h"
#include "trainer/model/part_profile.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/gradient_seconds.h"

namespace trireme {
namespace {

/// Messages that a rank sends over an axis in a micro-batch.
struct Sent {
  double bytes = 0, messages = 0;
};

/// Most messages of any pipeline rank: over the tensor ranks, and over stage boundaries with another rank; and most blocks.
struct Busiest {
  Sent tensor;
  double boundaries = 0, blocks = 0;
};

/// Adds the collectives over `ranks` tensor ranks of a part's micro-batch. An all-reduce is two passes of a ring, a gather or a scatter one.
void add_collectives(const PartProfile& profile, bool fused, double ranks, Sent& sent) {
  const auto add = [&](const PartProfile::Pass& pass) {
    for (const OperationRecord& operation : pass.operations) {
      if (operation.kind != OperationKind::kCollective) continue;
      const double passes = std::string_view(operation.name) == "all_reduce" ? 2 : 1;
      sent.bytes += passes * (ranks - 1) / ranks * static_cast<double>(operation.bytes);
      sent.messages += passes * (ranks - 1);
    }
  };
  add(profile.forward);
  if (fused) return add(profile.backward);
  add(profile.input_gradient);
  add(profile.weight_gradient);
}

Busiest busiest_of(const Config& config, PartProfiles& profiles) {
  const std::vector<int> stage_rank = stage_ranks(training_schedule(config));
  std::vector<Busiest> ranks(static_cast<size_t>(config.parallel.pipeline));
  const auto at = [&](size_t stage) -> Busiest& { return ranks[static_cast<size_t>(stage_rank[stage])]; };
  for (size_t s = 0; s + 1 < stage_rank.size(); ++s) {
    if (stage_rank[s] == stage_rank[s + 1]) continue;
    ++at(s).boundaries;  // one forward and one back
    ++at(s + 1).boundaries;
  }
  const ProfileShape shape = profile_shape(config);
  const std::vector<Recompute> recompute = recompute_policy(config);
  for (const StageRange& range : stage_ranges(*config.parallel.layers_per_stage)) {
    Busiest& rank = at(static_cast<size_t>(range.stage));
    rank.blocks += static_cast<double>(range.blocks);
    for (const Part& part : parts_of(config.model, range, blocks_per_unit(config)))
      add_collectives(profiles.of(part, shape, recompute_of(part, recompute)), part.kind == PartKind::kHead && !shape.clips_samples,
                      static_cast<double>(config.parallel.tensor), rank.tensor);
  }
  Busiest most;
  for (const Busiest& rank : ranks) {
    most.boundaries = std::max(most.boundaries, rank.boundaries);
    most.blocks = std::max(most.blocks, rank.blocks);
    most.tensor.bytes = std::max(most.tensor.bytes, rank.tensor.bytes);
    most.tensor.messages = std::max(most.tensor.messages, rank.tensor.messages);
  }
  return most;
}

struct Axis {
  Traffic traffic;
  int64_t size = 1, stride = 1;  ///< group size and stride
  bool transfers = false;        ///< point-to-point between neighbours, over one device's link
};

/// Elements that a tensor rank stores of the whole model, with the padding of the vocabulary and of `shards` shards of each unit.
struct StoredElements {
  double all = 0, trained = 0;
  double whole = 0;  ///< elements of units that are gathered once a step, whatever the policy
};
StoredElements stored_elements(const Config& config, PartProfiles& profiles, int shards) {
  const StageRange whole = whole_range(config.model);
  const std::vector<Part> parts = parts_of(config.model, whole, blocks_per_unit(config));
  const StageUnits reads = stage_units(parts, whole, config.model, false);
  const std::vector<int64_t> elements = unit_elements(profiles, parts, reads, profile_shape(config));
  StoredElements sum;
  for (size_t u = 0; u < elements.size(); ++u) {
    const auto stored = static_cast<double>(Unit::shard_numel(elements[u], shards) * shards);
    sum.all += stored;
    if (reads.trainable(static_cast<int>(u))) sum.trained += stored;
    if (reads.keeps_whole(static_cast<int>(u))) sum.whole += stored;
  }
  return sum;
}

std::vector<Axis> axes_of(const Config& config, const StepParts& parts) {
  const MeshShape mesh = mesh_shape(config.parallel);
  const ZeroPolicy policy = zero_policy(config.parallel);
  const Precision precision = precision_of(config.training);
  const auto element = static_cast<double>(size_of(precision.compute)), reduced = static_cast<double>(size_of(precision.reduce));
  const double m = microbatches_of(config), t = mesh.tensor, p = mesh.pipeline, n = degree_of(mesh, MeshAxis::kShard), r = mesh.replicate;
  PartProfiles profiles(config.model);
  const Busiest busiest = busiest_of(config, profiles);
  const double units = std::ceil(busiest.blocks / static_cast<double>(blocks_per_unit(config))) + 1;
  const StoredElements stored = stored_elements(config, profiles, policy.shard);
  const double trained = stored.trained / p;
  const double boundary = static_cast<double>(config.training.micro_batch_size * config.training.sequence_length * config.model.hidden_size);
  const double all = parts.compute + parts.recompute, forwards = parts.compute / 3, backwards = all - forwards;

  const auto group = [&](const Traffic& traffic, MeshAxis axis, bool transfers = false) {
    return Axis{traffic, degree_of(mesh, axis), stride_of(mesh, axis), transfers};
  };
  std::vector<Axis> axes;
  axes.push_back(group({"tensor", m * busiest.tensor.bytes, m * busiest.tensor.messages, all}, MeshAxis::kTensor));
  const bool secondary = mesh.secondary > 1;
  // Full parameters that live for the run are gathered again after an update.
  const double parameters = (policy.parameters_resident ? stored.trained : stored.all) / p;
  const double whole = policy.unshard_each_use ? stored.whole / p : 0, often = parameters - whole;
  const double uses = policy.unshard_each_use && !secondary ? 2 * m : 1, scatters = policy.gradients_resident ? 1 : m;
  const double unshard_beside = policy.unshard_each_use ? all : forwards / m;
  axes.push_back(group({"parameters", (uses * often + whole) * (n - 1) / n * parameter_message_bytes(config), uses * units * (n - 1), unshard_beside},
                       MeshAxis::kShard));
  if (secondary) {
    const double near = mesh.secondary, again = 2 * m - 1;
    axes.push_back(group({"secondary", again * often * (near - 1) / near * element, again * units * (near - 1), all}, MeshAxis::kSecondary));
  }
  const double reduce_beside = backwards * scatters / m;
  const CompressionConfig& compression = config.training.compression;
  const double message = compression.method == CompressionMethod::kNone ? reduced : gradient_message_bytes(config, stacks().front());
  if (is_robust(config.security)) {  // all copies of a piece for its owner, and the results for the replicas
    const double ranks = n * r;
    axes.push_back(
        group({"gradients", scatters * trained * (ranks - 1) / ranks * message, scatters * units * (ranks - 1), reduce_beside}, MeshAxis::kData));
    axes.push_back(group({"replicas", trained / n * (r - 1) / r * reduced, units * (r - 1), 0}, MeshAxis::kReplicate));
  } else if (compression.method == CompressionMethod::kPowerSgd) {  // two all-reduces of factors over all data ranks
    axes.push_back(group({"gradients", 2 * trained * (n * r - 1) / (n * r) * message, units * 4 * (n * r - 1), reduce_beside}, MeshAxis::kData));
  } else {
    const double scattered = needs_full_gradients(compression) ? message : reduced;
    axes.push_back(group({"gradients", scatters * trained * (n - 1) / n * scattered, scatters * units * (n - 1), reduce_beside}, MeshAxis::kShard));
    const double of_shard = trained / n;
    axes.push_back(group({"replicas", 2 * of_shard * (r - 1) / r * message, units * 2 * (r - 1), backwards / m}, MeshAxis::kReplicate));
  }
  const double sends = m * busiest.boundaries;
  const double of_boundary = config.parallel.sequence_parallel ? boundary / t : boundary;
  axes.push_back(group({"pipeline", sends * of_boundary * element, sends, all}, MeshAxis::kPipeline, true));
  std::erase_if(axes, [](const Axis& axis) { return axis.traffic.bytes == 0; });
  return axes;
}

}  // namespace

std::vector<std::vector<Recompute>> recompute_of_ranks(const Config& config, const std::vector<int>& stage_rank) {
  const std::vector<Recompute> plan = recompute_policy(config);
  std::vector<std::vector<Recompute>> ranks(static_cast<size_t>(config.parallel.pipeline));
  auto block = plan.begin();
  for (size_t s = 0; s < stage_rank.size(); ++s) {
    const auto end = block + (*config.parallel.layers_per_stage)[s];
    std::vector<Recompute>& rank = ranks[static_cast<size_t>(stage_rank[s])];
    rank.insert(rank.end(), block, end);
    block = end;
  }
  return ranks;
}

std::vector<Traffic> traffic_of(const Config& config, const StepParts& parts) {
  std::vector<Traffic> traffic;
  for (const Axis& axis : axes_of(config, parts)) traffic.push_back(axis.traffic);
  return traffic;
}

std::vector<LinkNeed> link_needs(const Config& config, const ClusterConfig& cluster, const Forecast& forecast) {
  std::vector<LinkNeed> needs;
  for (const auto& [traffic, size, stride, transfers] : axes_of(config, forecast.parts)) {
    GroupPlacement place = place_of(size, stride, cluster);
    if (transfers) place.per_node = 1;
    const LinkConfig& link = place.nodes > 1 ? cluster.network : cluster.node_link;
    needs.push_back({traffic, required_bandwidth(traffic), tolerable_latency(traffic, forecast.step_seconds), place.nodes > 1,
                     ring_bandwidth(place, cluster), link.latency.value()});
  }
  return needs;
}

}  // namespace trireme
