#pragma once
// Seconds of collectives over the groups of a mesh on a cluster.   Source of the forms: NCCL's tuning model; Thakur et al. 2005. `cluster` is
// resolved.
#include "parallel/mesh.h"
#include "trainer/config/cluster.h"

namespace trireme {

/// How a group lies on the nodes: world rank r is device r mod devices_per_node of node r / devices_per_node.
struct GroupPlace {
  double size = 1;
  double nodes = 1;                    ///< that it touches
  double per_node = 1;                 ///< its members on the one of them that has fewest
  double oversubscription = 1;         ///< of the switches that it crosses, for a ring that leaves each once: the tightest
  double spread_oversubscription = 1;  ///< the same where every member sends out of each switch at once
};

/// Of the groups of `size` ranks, `stride` apart, that an axis of the mesh divides the world into: of the one that lies worst, as all wait for it. It
/// may straddle two nodes where another one, no larger, lies within one.
GroupPlace place_of(int64_t size, int64_t stride, const ClusterConfig& cluster);

/// Bytes/s that each rank of the group sends in a ring.
double ring_bandwidth(const GroupPlace& group, const ClusterConfig& cluster);

/// `bytes` are those of the whole array (all-gather: gathered; reduce-scatter: before). 0 for groups of one. Each device has its own share of the
/// network, so a group with several members on a node uses as many shares. Gathers go round a ring; an all-reduce between nodes takes a ring or, where
/// that is faster, a tree.
double all_reduce_seconds(const GroupPlace& group, double bytes, const ClusterConfig& cluster);
double all_gather_seconds(const GroupPlace& group, double bytes, const ClusterConfig& cluster);  ///< and reduce-scatter
/// all_to_all with `bytes` in each rank's `in`, and all_to_all_v, where they are those of the rank that sends or receives most. A rank sends (n-1)/n of them:
/// to its peers on the node over the node's links and, at the same time, to the others over its share of the network. The messages start one after another
/// (pairwise exchange).
double all_to_all_seconds(const GroupPlace& group, double bytes, const ClusterConfig& cluster);
/// A message from every rank of one pipeline rank to its counterpart on another, `ranks` each: of the pair that lies worst.
double transfer_seconds(int64_t from, int64_t to, int64_t ranks, double bytes, const ClusterConfig& cluster);

}  // namespace trireme
