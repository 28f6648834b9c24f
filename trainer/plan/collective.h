#pragma once
// Time of collectives, in seconds, over the groups of a mesh on a cluster. `cluster` is resolved.
// Source of the formulas: NCCL's tuning model; Thakur et al. 2005. With a value of parallel.collectives other than library, all_reduce, all_gather and
// reduce_scatter take the time of parallel/comm/collective_costs.h, by the costs of messages over the link that limits the group.
#include "parallel/mesh.h"
#include "trainer/config/cluster.h"
#include "trainer/config/config.h"

namespace trireme {

/// How the groups of a run reduce and gather.
struct CollectiveChoice {
  CollectiveChoice(Collectives all = Collectives::kLibrary) : within(all), between(all) {}
  /// parallel.collectives; with security.encryption auto between nodes for library.
  explicit CollectiveChoice(const Config& config);

  Collectives within, between;  ///< of groups on one node, and on several
  bool encrypted = false;       ///< messages between nodes
};

/// Placement of a group on the nodes. World rank r is device r mod devices_per_node of node r / devices_per_node.
struct GroupPlacement {
  double size = 1;
  double nodes = 1;                    ///< number of nodes that the group spans
  double per_node = 1;                 ///< fewest members on any of these nodes
  double oversubscription = 1;         ///< highest over the switches crossed, for a ring, which leaves each switch once
  double spread_oversubscription = 1;  ///< the same if every member sends out of each switch at once
  Collectives collectives = Collectives::kLibrary;
  bool encrypted = false;  ///< each byte of reductions and gathers is encrypted and decrypted on its way
};

/// Placement of the worst-placed group of a mesh axis, whose groups have `size` ranks that are `stride` apart. All other groups wait for it. It may
/// straddle two nodes where another group of the same size fits within one.
GroupPlacement place_of(int64_t size, int64_t stride, const ClusterConfig& cluster, const CollectiveChoice& choice = {});

/// Whether the time of the group's collectives bends with the size: their ranges are measured, or messages are sent one by one.
bool depends_on_size(const GroupPlacement& group, const ClusterConfig& cluster);

/// Bandwidth of each rank in a ring, in bytes/s sent.
double ring_bandwidth(const GroupPlacement& group, const ClusterConfig& cluster);

/// `bytes`: size of the full array (all-gather: its output; reduce-scatter: its input). 0 for groups of one. Each device has its own share of the
/// network, so a group with several members on a node uses several shares. Gathers use a ring. An all-reduce between nodes uses a ring or a tree,
/// whichever is faster. An operation with
/// measured ranges (LinkRanges) takes their time instead.
double all_reduce_seconds(const GroupPlacement& group, double bytes, const ClusterConfig& cluster);
double all_gather_seconds(const GroupPlacement& group, double bytes, const ClusterConfig& cluster);
double reduce_scatter_seconds(const GroupPlacement& group, double bytes, const ClusterConfig& cluster);  ///< as all-gather unless it was measured
/// all_to_all and all_to_all_v. `bytes`: size of each rank's `in`; for all_to_all_v, the most that any rank sends or receives. A rank sends (n-1)/n
/// of them: to peers on its node over the node's links and, at the same time, to the others over its share of the network. The messages start one
/// after another (pairwise exchange).
double all_to_all_seconds(const GroupPlacement& group, double bytes, const ClusterConfig& cluster);
/// Transfer from each of the `ranks` ranks of pipeline rank `from` to its counterpart in `to`: time of the worst-placed pair.
double transfer_seconds(int64_t from, int64_t to, int64_t ranks, double bytes, const ClusterConfig& cluster);

}  // namespace trireme
