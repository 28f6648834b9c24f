#include "trainer/plan/collective.h"

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {

/// Bytes at which half of a link's ramp is lost: between NCCL's measured 2 MiB and 1 GiB on eight H100 (stas00/ml-engineering).
constexpr double kHalfRamp = 16 << 20;

/// Hops in a row: a ring's, up to 32 nodes, above which trees take over.
double hops(double nodes) { return nodes <= 32 ? nodes - 1 : 31 + 8 * std::log2(nodes / 32); }

double seconds(const GroupPlace& group, double bytes, double passes, double bandwidth, const ClusterConfig& cluster) {
  if (group.size <= 1) return 0;
  const LinkConfig& link = group.nodes > 1 ? cluster.network : cluster.node_link;
  const double latency = (group.per_node - 1) * *cluster.node_link.latency + hops(group.nodes) * *cluster.network.latency;
  return passes * (latency + (group.size - 1) / group.size * bytes / bandwidth) + *link.ramp * bytes / (bytes + kHalfRamp);
}

double ring_bandwidth(const GroupPlace& group, const ClusterConfig& cluster) {
  if (group.nodes <= 1) return *cluster.node_link.bandwidth;
  return std::min(*cluster.node_link.bandwidth, group.per_node * *cluster.network.bandwidth / group.oversubscription);
}

double oversubscription(int64_t nodes, const ClusterConfig& cluster) {
  double factor = 1;
  if (!cluster.level_nodes || !cluster.level_oversubscription) return factor;
  int64_t under = 1;  // nodes below the level in hand
  for (size_t level = 0; level < cluster.level_nodes->size(); ++level) {
    under = (*cluster.level_nodes)[level];
    if (nodes > under) factor *= (*cluster.level_oversubscription)[level];
  }
  return factor;
}

}  // namespace

GroupPlace place_of(int64_t size, int64_t stride, const ClusterConfig& cluster) {
  const int64_t per_node = std::clamp(cluster.devices_per_node / stride, int64_t{1}, size);
  const int64_t span = (size - 1) * stride / cluster.devices_per_node + 1;  // nodes from its first to its last rank
  const double nodes = std::ceil(static_cast<double>(size) / static_cast<double>(per_node));
  return {static_cast<double>(size), nodes, static_cast<double>(per_node), oversubscription(span, cluster)};
}

double all_reduce_seconds(const GroupPlace& group, double bytes, const ClusterConfig& cluster) {
  // The switch adds for groups of five and more: below, NCCL keeps to rings (stas00/ml-engineering, eight H200).
  const bool in_switch = group.nodes <= 1 && group.size >= 5 && *cluster.nvls_bandwidth > 0;
  return seconds(group, bytes, 2, in_switch ? *cluster.nvls_bandwidth : ring_bandwidth(group, cluster), cluster);
}

double all_gather_seconds(const GroupPlace& group, double bytes, const ClusterConfig& cluster) {
  return seconds(group, bytes, 1, ring_bandwidth(group, cluster), cluster);
}

double transfer_seconds(int64_t stride, double bytes, const ClusterConfig& cluster) {
  if (stride < cluster.devices_per_node) return *cluster.node_link.latency + bytes / *cluster.node_link.bandwidth;
  return 2 * *cluster.network.latency + bytes * oversubscription(stride / cluster.devices_per_node + 1, cluster) / *cluster.network.bandwidth;
}

}  // namespace trireme
