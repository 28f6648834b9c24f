#pragma once
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/sharding/unit.h"
#include "parallel/sharding/zero_policy.h"

namespace trireme {

/// Owns the gradients of one of this rank's stages: what W accumulates into (a unit's full gradient) and the owned shard the optimizer reads.
/// Resident: the full gradient P lives for the run, the shard is a view of it, reduced once a step.
/// Not resident: P/S for the run, plus a full gradient for each unit between its first W and the end of its reduction.
/// Wire: (S-1)/S * unit bytes per reduce_grads; 2(R-1)/R * shard bytes per reduce_replicas, both in Precision::reduce; 2(n-1)/n * the tied shard for
/// reduce_tied (n = 2), in the gradient dtype. A narrower wire takes a copy of what is in flight.
class GradStore {
 public:
  GradStore(Context& ctx, std::vector<Unit*> units, Communicator& shard, Communicator& replicate, const ZeroPolicy& policy,
            const Precision& precision);

  void begin_step(Context& ctx);         ///< all gradients zero
  void acquire(Context& ctx, int unit);  ///< Param::grad of the unit may be added to
  /// Each of the next three starts a reduction, which must be over (wait) before the unit's gradient is touched again.
  void reduce(Context& ctx, int unit);           ///< reduce-scatter; Param::grad is gone until acquired again
  void reduce_replicas(Context& ctx, int unit);  ///< all-reduce of the owned shard; after the unit's last reduce
  void reduce_tied(Context& ctx, int unit, Communicator& embedding);
  void wait(Context& ctx, int unit);  ///< the owned shard holds what the reduction in flight gives; a full gradient that is not resident is freed
  /// Sums what is partial over tensor ranks, on the owned shards: one all-reduce each over `tensor` and `kv`. Wire: 2(n-1)/n of its bytes.
  void sum_partial(Context& ctx, Communicator& tensor, Communicator& kv);

  Tensor shard(int unit) const { return states_[static_cast<size_t>(unit)].shard; }  ///< [shard_numel]

 private:
  struct State {
    Tensor full, shard;
    Tensor scattered;  ///< where a reduce-scatter lands that cannot go straight into the shard
    Tensor summed;     ///< what is being summed over replicas: the shard, or its copy in the wire dtype
    Work reduction;    ///< in flight
  };
  /// The gradient itself, or a copy in the wire dtype.
  Tensor on_wire(Context& ctx, const Communicator& comm, const Tensor& gradient) const;
  void sum_partial(Context& ctx, Partial over, Communicator& comm);

  std::vector<Unit*> units_;
  std::vector<State> states_;
  Communicator* shard_;
  Communicator* replicate_;
  bool resident_;
  DType dtype_, wire_;
};

}  // namespace trireme
