#pragma once
#include "trainer/config/cluster.h"
#include "trainer/model/transformer_block.h"
#include "trainer/plan/analysis/scaling.h"
#include "trainer/plan/forecast.h"

namespace trireme {

/// What the blocks of each pipeline rank compute again. `stage_rank`: the pipeline rank of each stage.
std::vector<std::vector<Recompute>> recompute_of_ranks(const Config& config, const std::vector<int>& stage_rank);

/// What Trireme's rank with most to send sends in a step, axis by axis, and the compute beside it (`compute` and `recompute` of the forecast). Bytes,
/// of P parameters that lie evenly on the pipeline:
///   tensor       gathers of [T,D], (t-1)/t of it each, for L blocks m (8 L + 2), with sequence parallelism m (10 L + 2), 2 or 3 more for each block
///                that recomputes in full, 2 more where embedding and head are on one rank; behind all compute
///   parameters   P/(tp) (n-1)/n of the shards, after an update behind the first forward; in ZeRO-3 twice a micro-batch, behind all compute
///   gradients    P/(tp) (n-1)/n, behind the last backward; accumulated sharded for every micro-batch, behind all backwards
///   replicas     2 P/(tpn) (r-1)/r, behind the last backward
///   pipeline     [T,D] (over t with sequence parallelism) forward and back over each boundary, behind all compute
/// Axes of one rank, and nothing to send, are left out. `config` is resolved.
std::vector<Traffic> traffic_of(const Config& config, const StepParts& parts);

/// A link that makes `traffic` vanish, and the one that there is.
struct LinkNeed {
  Traffic traffic;
  double bandwidth = 0;            ///< bytes/s of a rank's link at which it takes as long as the compute beside it
  double latency = 0;              ///< seconds a hop at which messages alone take a tenth of a step
  bool network = false;            ///< between nodes, or within one
  double available_bandwidth = 0;  ///< as the forecast reckons: a rank's in a ring (ring_bandwidth); a device's share for transfers of the pipeline
  double available_latency = 0;
};
/// `cluster` is resolved.
std::vector<LinkNeed> link_needs(const Config& config, const ClusterConfig& cluster, const Forecast& forecast);

}  // namespace trireme
