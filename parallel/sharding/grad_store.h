#pragma once
#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/sharding/unit.h"
#include "parallel/sharding/zero_policy.h"

namespace trireme {

class GradStore;

/// The reduce-scatter that a rank started last, of all its stages.
struct LastReduction {
  GradStore* store = nullptr;
  int unit = -1;
};

/// Owns the gradients of one of this rank's stages: what W accumulates into (a unit's full gradient) and the owned shard the optimizer reads.
/// Resident: the full gradient P lives for the run, the shard is a view of it, reduced once a step.
/// Not resident: P/S for the run, plus a full gradient for each unit between its first W and the end of its reduction.
/// Wire: (S-1)/S * unit bytes per reduce_grads; 2(R-1)/R * shard bytes per reduce_replicas, both in Precision::reduce; 2(n-1)/n * the tied shard for
/// reduce_tied (n = 2), in the gradient dtype. A narrower wire takes a copy of what is in flight.
class GradStore {
 public:
  GradStore(Context& ctx, std::vector<Unit*> units, Communicator& shard, Communicator& replicate, const ZeroPolicy& policy,
            const Precision& precision, std::shared_ptr<LastReduction> last = std::make_shared<LastReduction>());

  void begin_step(Context& ctx);                 ///< all gradients zero
  void acquire(Context& ctx, int unit);          ///< Param::grad of the unit may be added to
  void reduce(Context& ctx, int unit);           ///< starts the reduce-scatter; Param::grad is gone until acquired again
  void reduce_replicas(Context& ctx, int unit);  ///< starts the all-reduce of the owned shard; after the unit's last reduce
  void reduce_tied(Context& ctx, int unit, Communicator& embedding);
  /// Waits for everything in flight, then sums what is partial over tensor ranks, on the owned shards: one all-reduce each over `tensor` and `kv`.
  void finish(Context& ctx, Communicator& tensor, Communicator& kv);

  Tensor shard(int unit) const { return states_[static_cast<size_t>(unit)].shard; }  ///< [shard_numel]

 private:
  struct State {
    Tensor full, shard;
    Tensor scattered;  ///< where a reduce-scatter lands that cannot go straight into the shard
    Tensor summed;     ///< what is being summed over replicas: the shard, or its copy in the wire dtype
    Work scatter, replicas;
  };
  /// The gradient itself, or a copy in the wire dtype.
  Tensor on_wire(Context& ctx, const Communicator& comm, const Tensor& gradient) const;
  void settle_replicas(Context& ctx, State& state);
  void settle(Context& ctx, State& state);
  void sum_partial(Context& ctx, Partial over, Communicator& comm);

  std::vector<Unit*> units_;
  std::vector<State> states_;
  Communicator* shard_;
  Communicator* replicate_;
  bool resident_;
  DType dtype_, wire_;
  std::shared_ptr<LastReduction> last_;  ///< shared by the rank's stages
};

}  // namespace trireme
