#pragma once
#include "trainer/config/cluster.h"
#include "trainer/model/transformer_block.h"
#include "trainer/plan/analysis/scaling.h"
#include "trainer/plan/forecast.h"

namespace trireme {

/// Recomputation of each block, by pipeline rank. `stage_rank`: the pipeline rank of each stage.
std::vector<std::vector<Recompute>> recompute_of_ranks(const Config& config, const std::vector<int>& stage_rank);

/// Traffic per step of the Trireme rank that sends the most, by mesh axis, and the compute that it can overlap with (`compute` and `recompute` of the
/// forecast). Bytes sent, with the P elements that a tensor rank stores, padding included, distributed evenly over the pipeline:
///   tensor       gathers of [T,D], (t-1)/t of it each: m (8 L + 2) of them for L blocks, m (10 L + 2) with sequence parallelism, 2 or 3 more
///                per block with full recomputation, 2 more if embedding and head are on one rank; overlaps with all compute
///   parameters   P/p (n-1)/n after an update, overlaps with the first forward; in ZeRO-3 twice per micro-batch, overlaps with all compute
///   gradients    P/p (n-1)/n, overlaps with the last backward; with sharded accumulation for every micro-batch, overlaps with all backwards
///   replicas     2 P/(pn) (r-1)/r, overlaps with the last backward
///   pipeline     [T,D] (divided by t with sequence parallelism) forward and back over each boundary, overlaps with all compute
/// m: micro-batches; t, p, n, r: tensor, pipeline, shard and replica degrees. Axes without traffic are left out. `config` is resolved.
std::vector<Traffic> traffic_of(const Config& config, const StepParts& parts);

/// The link that would hide `traffic` behind compute, and the available link.
struct LinkNeed {
  Traffic traffic;
  double bandwidth = 0;            ///< required bytes/s of a rank's link: the traffic takes as long as the compute it overlaps with
  double latency = 0;              ///< seconds per hop at which the messages' latency alone takes a tenth of a step
  bool network = false;            ///< true: between nodes; false: within a node
  double available_bandwidth = 0;  ///< as in the forecast: a rank's in a ring (ring_bandwidth); for pipeline transfers a device's share
  double available_latency = 0;
};
/// `cluster` is resolved.
std::vector<LinkNeed> link_needs(const Config& config, const ClusterConfig& cluster, const Forecast& forecast);

}  // namespace trireme
