#pragma once
#include <vector>

#include "kernels/core/operation_log.h"
#include "trainer/config/cluster.h"
#include "trainer/config/config.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/stack.h"

namespace trireme {

/// Seconds of operations on one rank.
struct OperationSeconds {
  double compute = 0;                ///< everything except collectives
  double attention = 0, tensor = 0;  ///< attention: part of compute; tensor: tensor-parallel collectives
};

/// The time of recorded operations on a rank of a cluster. `config` and `cluster` are resolved; the cluster outlives this object.
class OperationCosts {
 public:
  OperationCosts(const Config& config, const ClusterConfig& cluster);
  const Stack& stack() const { return stack_; }

  /// `block`: the operations are those of a block, whose products may run in fp8.
  OperationSeconds of(const std::vector<OperationRecord>& operations, bool block = false) const;

 private:
  double alignment_of(const OperationRecord& product) const;
  double fp8_seconds(const OperationRecord& product) const;
  double context_seconds(const AttentionWork& work, double attention, int64_t element) const;
  double seconds_of(const OperationRecord& operation) const;

  const ClusterConfig& cluster_;
  Stack stack_;
  GroupPlacement tensor_, context_;
  int64_t kv_heads_;  ///< on one tensor rank
};

}  // namespace trireme
