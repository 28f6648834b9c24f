#pragma once
// Time of the sums of gradients over data ranks, plain, compressed (training.compression) or robust (security.aggregation). `config` and `cluster` are resolved.
#include "trainer/config/cluster.h"
#include "trainer/config/config.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/stack.h"

namespace trireme {

/// Bytes that an element of a matrix's gradient takes in a message after the warm-up. power_sgd: the mean over the elements of the model's parameters on
/// the first tensor rank, of what a data rank contributes to the sums.
double gradient_message_bytes(const Config& config, const Stack& stack);

/// Bytes that an element of a matrix takes in a gather of parameters (training.compression.parameters).
double parameter_message_bytes(const Config& config);

/// Gather of `elements` parameters over a group of shards: the messages, and the passes that encode a shard and decode all. With
/// parallel.secondary_shards the mean over the two gathers of each micro-batch.
double gather_seconds(const Config& config, const GroupPlacement& shard, double elements, const ClusterConfig& cluster);

class GradientSeconds {
 public:
  GradientSeconds(const Config& config, const Stack& stack, const ClusterConfig& cluster);

  /// Reduce-scatter of `elements` over a shard group. power_sgd: all-reduces of their factors over all data ranks. Robust rules: an exchange of
  /// copies, compressed or not, between all data ranks, and the passes of the rule over them.
  double scatter(const GroupPlacement& shard, double elements) const;
  /// The group whose ranks scatter() waits for.
  const GroupPlacement& scatter_group(const GroupPlacement& shard) const { return factors_ || robust_ ? data_ : shard; }
  /// All-reduce of `elements` over a group of replicas: compressed, an exchange of pieces and a gather of their sums. power_sgd: nothing. Robust
  /// rules: a gather of the results.
  double replicas(const GroupPlacement& replicate, double elements) const;
  /// All-reduce over the two owners of a tied unit of `elements`: of their shard, with a robust rule of all copies of a piece.
  double tied(const GroupPlacement& ends, double elements) const;

 private:
  double coding(double encoded, double decoded) const;
  double factors(double elements) const;
  double rule(double elements) const;

  ClusterConfig cluster_;
  GroupPlacement data_;
  bool factors_, robust_, all_products_, feedback_, compressed_scatter_, compressed_replicas_;
  double plain_bytes_, message_bytes_, element_bytes_, shards_;
};

}  // namespace trireme
