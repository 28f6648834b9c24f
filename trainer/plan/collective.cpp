#include "trainer/plan/collective.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "trainer/layout/message_costs.h"

namespace trireme {
namespace {

/// Bytes at which a collective loses half of the link's ramp; measured between NCCL's 2 MiB and 1 GiB on eight H100 (stas00/ml-engineering).
constexpr double kHalfRamp = 16 << 20;

/// Number of sequential messages within nodes and between nodes.
struct Hops {
  double within, between;
};
Hops ring_hops(const GroupPlacement& group) { return {group.size - group.nodes, group.nodes - 1}; }
/// A chain within each node and a tree over the nodes.
Hops tree_hops(const GroupPlacement& group) { return {group.per_node - 1, std::log2(group.nodes)}; }
/// Bandwidth of a tree relative to a ring.   Source: NCCL, src/graph/tuning.cc.
constexpr double kTreeBandwidth = 0.92;

/// The link that limits a group.
const LinkConfig& link_of(const GroupPlacement& group, const ClusterConfig& cluster) { return group.nodes > 1 ? cluster.network : cluster.node_link; }

double seconds(const GroupPlacement& group, double bytes, double passes, const Hops& hops, double bandwidth, const ClusterConfig& cluster) {
  if (group.size <= 1) return 0;
  const LinkConfig& link = link_of(group, cluster);
  const double latency = hops.within * *cluster.node_link.latency + hops.between * *cluster.network.latency;
  return passes * (latency + (group.size - 1) / group.size * bytes / bandwidth) + *link.ramp * bytes / (bytes + kHalfRamp);
}

/// Time of an operation of `bytes` by its measured ranges: `steps` messages in sequence that send `wire` bytes in all.
double measured_seconds(const LinkRanges& ranges, double bytes, double steps, double wire) {
  const auto next = std::ranges::upper_bound(*ranges.from, static_cast<int64_t>(bytes));
  const auto range = static_cast<size_t>(std::max<std::ptrdiff_t>(0, next - ranges.from->begin() - 1));
  return steps * (*ranges.latency)[range] + wire / (*ranges.bandwidth)[range];
}

double measured_ring_seconds(const LinkRanges& ranges, const GroupPlacement& group, double bytes, double passes) {
  if (group.size <= 1) return 0;
  return measured_seconds(ranges, bytes, passes * (group.size - 1), passes * (group.size - 1) / group.size * bytes * group.oversubscription);
}

/// AES-256-GCM of libsodium 1.0.18 on a core of a Xeon with AVX-512 (`bench_seal`). Newer ones are faster, ChaCha20-Poly1305 is slower by a third.
constexpr double kSealedBytesPerSecond = 1.3e9;

/// Time of a verb by an algorithm of our own; nullopt for library.
std::optional<double> own_seconds(CollectiveVerb verb, const GroupPlacement& group, double bytes, const ClusterConfig& cluster) {
  if (group.collectives == Collectives::kLibrary) return std::nullopt;
  MessageCosts costs = message_costs(link_of(group, cluster), cluster);
  for (MessageCosts::Range& range : costs.ranges) {
    range.bandwidth /= group.oversubscription;
    if (group.encrypted) range.bandwidth = 1 / (1 / range.bandwidth + 2 / kSealedBytesPerSecond);  // at the sender and at the receiver
  }
  const auto n = static_cast<int64_t>(group.size);
  return collective_seconds(algorithm_of(group.collectives).value_or(fastest_algorithm(verb, n, bytes, costs)), verb, n, bytes, costs);
}

/// The groups of a mesh axis: in every run of size x stride ranks a group begins at each of the first `stride` ranks.
struct Groups {
  int64_t size, stride;

  int64_t run() const { return size * stride; }
  /// Whether a group begins at device `device` of a block of `block` devices (a node, or all nodes under a switch), if the world fills whole blocks.
  bool begins_at(int64_t device, int64_t block) const { return device % std::gcd(run(), block) < stride; }
  /// Number of blocks spanned by the worst-placed group, which begins nearest to the end of a block.
  int64_t worst_span(int64_t block) const {
    const int64_t period = std::gcd(run(), block);
    return (block - period + std::min(stride, period) - 1 + (size - 1) * stride) / block + 1;
  }
  /// Fewest members on any node of a group that spans several nodes.
  int64_t fewest_on_node(int64_t devices) const {
    int64_t fewest = std::max(int64_t{1}, devices / stride);
    for (int64_t first = 0; first < devices; ++first) {
      const int64_t last = first + (size - 1) * stride;
      if (!begins_at(first, devices) || last < devices) continue;
      fewest = std::min({fewest, (devices - first + stride - 1) / stride, last % devices / stride + 1});
    }
    return fewest;
  }
};

/// Highest oversubscription over the switches that the traffic crosses. `share(nodes)`: the number of nodes whose uplinks the traffic uses below a
/// switch of `nodes` nodes that it leaves; 0 if it does not leave that switch.
double oversubscription(const ClusterConfig& cluster, const auto& share) {
  double factor = 1;
  if (!cluster.level_nodes || !cluster.level_oversubscription) return factor;
  for (size_t level = 0; level < cluster.level_nodes->size(); ++level) {
    const int64_t nodes = (*cluster.level_nodes)[level];
    const double out = cluster.nodes > nodes ? share(nodes) : 0;
    if (out > 0) factor = std::max(factor, (*cluster.level_oversubscription)[level] / out);
  }
  return factor;
}

/// Whether any pair of ranks (from x ranks + i, to x ranks + i) spans two blocks of devices, i.e. the first rank of the last pair is close enough to
/// the end of its block.
bool leaves_block(int64_t from, int64_t to, int64_t ranks, int64_t block) {
  const int64_t apart = std::abs(to - from) * ranks, first = std::min(from, to) * ranks % block;
  return first + ranks > block - apart;
}

}  // namespace

CollectiveChoice::CollectiveChoice(const Config& config) : CollectiveChoice(config.parallel.collectives.value()) {
  encrypted = is_encrypted(config.security);
  if (encrypted && between == Collectives::kLibrary) between = Collectives::kAuto;
}

GroupPlacement place_of(int64_t size, int64_t stride, const ClusterConfig& cluster, const CollectiveChoice& choice) {
  const Groups groups{size, stride};
  const int64_t devices = cluster.devices_per_node;
  const int64_t nodes = cluster.nodes == 1 ? 1 : std::min(size, groups.worst_span(devices));
  const int64_t per_node = nodes == 1 ? size : groups.fewest_on_node(devices);
  return {static_cast<double>(size), static_cast<double>(nodes), static_cast<double>(per_node),
          // A ring leaves a switch once, using the uplink shares of all its members below the switch.
          oversubscription(cluster,
                           [&](int64_t under) {
                             const bool leaves = groups.worst_span(under * devices) > 1;
                             return leaves ? static_cast<double>(groups.fewest_on_node(under * devices)) / static_cast<double>(per_node) : 0;
                           }),
          oversubscription(cluster, [&](int64_t under) { return groups.worst_span(under * devices) > 1 ? 1.0 : 0.0; }),
          nodes > 1 ? choice.between : choice.within, nodes > 1 && choice.encrypted};
}

bool depends_on_size(const GroupPlacement& group, const ClusterConfig& cluster) {
  const LinkConfig& link = link_of(group, cluster);
  return group.collectives != Collectives::kLibrary || link.all_reduce.from || link.all_gather.from || link.reduce_scatter.from;
}

double ring_bandwidth(const GroupPlacement& group, const ClusterConfig& cluster) {
  if (group.nodes <= 1) return *cluster.node_link.bandwidth;
  return std::min(*cluster.node_link.bandwidth, group.per_node * *cluster.network.bandwidth / group.oversubscription);
}

double all_reduce_seconds(const GroupPlacement& group, double bytes, const ClusterConfig& cluster) {
  if (const auto own = own_seconds(CollectiveVerb::kAllReduce, group, bytes, cluster)) return *own;
  if (const LinkRanges& ranges = link_of(group, cluster).all_reduce; ranges.from) return measured_ring_seconds(ranges, group, bytes, 2);
  // NVLink SHARP reduces in the switch for groups of five and more; NCCL uses rings for smaller groups (stas00/ml-engineering, eight H200).
  const bool in_switch = group.nodes <= 1 && group.size >= 5;
  const double bandwidth = std::max(ring_bandwidth(group, cluster), in_switch ? *cluster.nvls_bandwidth : 0);
  const double ring = seconds(group, bytes, 2, ring_hops(group), bandwidth, cluster);
  return group.nodes <= 1 ? ring : std::min(ring, seconds(group, bytes, 2, tree_hops(group), kTreeBandwidth * bandwidth, cluster));
}

double all_gather_seconds(const GroupPlacement& group, double bytes, const ClusterConfig& cluster) {
  if (const auto own = own_seconds(CollectiveVerb::kAllGather, group, bytes, cluster)) return *own;
  if (const LinkRanges& ranges = link_of(group, cluster).all_gather; ranges.from) return measured_ring_seconds(ranges, group, bytes, 1);
  return seconds(group, bytes, 1, ring_hops(group), ring_bandwidth(group, cluster), cluster);
}

double reduce_scatter_seconds(const GroupPlacement& group, double bytes, const ClusterConfig& cluster) {
  if (const auto own = own_seconds(CollectiveVerb::kReduceScatter, group, bytes, cluster)) return *own;
  if (const LinkRanges& ranges = link_of(group, cluster).reduce_scatter; ranges.from) return measured_ring_seconds(ranges, group, bytes, 1);
  return all_gather_seconds(group, bytes, cluster);
}

double all_to_all_seconds(const GroupPlacement& group, double bytes, const ClusterConfig& cluster) {
  if (group.size <= 1) return 0;
  const LinkConfig& link = link_of(group, cluster);
  const double here = group.nodes > 1 ? group.per_node : group.size;  // the node with the fewest members sends the most to other nodes
  const double part = bytes / group.size, latency = (here - 1) * *cluster.node_link.latency + (group.size - here) * *cluster.network.latency;
  const double within = (here - 1) * part / *cluster.node_link.bandwidth;
  const double between = (group.size - here) * part * group.spread_oversubscription / *cluster.network.bandwidth;
  return latency + std::max(within, between) + *link.ramp * bytes / (bytes + kHalfRamp);
}

double transfer_seconds(int64_t from, int64_t to, int64_t ranks, double bytes, const ClusterConfig& cluster) {
  if (cluster.nodes == 1 || !leaves_block(from, to, ranks, cluster.devices_per_node)) {
    if (cluster.node_link.send.from) return measured_seconds(cluster.node_link.send, bytes, 1, bytes);
    return *cluster.node_link.latency + bytes / *cluster.node_link.bandwidth;
  }
  const double factor =
      oversubscription(cluster, [&](int64_t under) { return leaves_block(from, to, ranks, under * cluster.devices_per_node) ? 1.0 : 0.0; });
  if (cluster.network.send.from) return measured_seconds(cluster.network.send, bytes, 1, bytes * factor);
  return *cluster.network.latency + bytes * factor / *cluster.network.bandwidth;
}

}  // namespace trireme
