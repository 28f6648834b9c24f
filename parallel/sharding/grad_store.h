#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/sharding/reducer.h"
#include "parallel/sharding/unit.h"
#include "parallel/sharding/zero_policy.h"

namespace trireme {

/// Owns the gradients of one of this rank's stages: a unit's full gradient, into which W accumulates, and the owned shard, which the optimizer reads.
/// Memory, P elements in all units, S shards. Resident: P for the run; the shard is a view of it, reduced once per step.
/// Not resident: P/S for the run, plus a full gradient for each unit between its first W and the end of its reduction.
/// A frozen unit has none, and its parameters do not count.
/// The Reducer defines how gradients are summed over data ranks and tied copies, and the bytes on the wire.
class GradStore {
 public:
  /// Errors: InternalError if only some parameters of a unit are trainable.
  GradStore(Context& ctx, std::vector<Unit*> units, const ZeroPolicy& policy, DType dtype, std::unique_ptr<Reducer> reducer);

  /// `change` is called with a unit's full gradient before each reduce() of it, to change what this rank contributes.
  void before_reduce(std::function<void(Context& ctx, int unit, const Tensor& full)> change) { before_reduce_ = std::move(change); }

  void begin_step(Context& ctx, int64_t step);  ///< empties all gradients; steps count from 0
  void acquire(Context& ctx, int unit);         ///< makes Param::grad of a trainable unit available for accumulation, empty if it was not
  /// Each of the next three starts a reduction; call `wait` before the unit's gradient is accessed again. Errors: those of Reducer.
  void reduce(Context& ctx, int unit);           ///< reduce-scatter; a Param::grad that is not resident is unbound until acquired again
  void reduce_replicas(Context& ctx, int unit);  ///< all-reduce of the owned shard; after the unit's last reduce
  void reduce_tied(Context& ctx, int unit, Communicator& embedding);
  void wait(Context& ctx, int unit);  ///< completes the reduction in flight into the owned shard; frees a full gradient that is not resident
  /// After the norm: keeps or drops what the unit's reductions of this step left for the next one (Reducer::settle).
  void settle(Context& ctx, int unit, const Tensor& scalars) { reducer_->settle(ctx, unit, scalars); }
  /// Sums partial gradients over tensor ranks, on the owned shards: one all-reduce each over `tensor` and `kv`. Wire: 2(n-1)/n of the summed bytes.
  void sum_partial(Context& ctx, Communicator& tensor, Communicator& kv);

  Tensor shard(int unit) const { return states_[static_cast<size_t>(unit)].shard; }  ///< [shard_numel]; undefined for a frozen unit
  const Reducer& reducer() const { return *reducer_; }

 private:
  struct State {
    Tensor full, shard;
  };
  const Unit& unit_of(int unit) const { return *units_[static_cast<size_t>(unit)]; }
  /// Declares a full gradient empty: a fill would cost a write and a read of it, 1 to 2 % of an 8B model's step under ZeRO-2 and 3.
  void empty(Context& ctx, int unit);
  void sum_partial(Context& ctx, Partial over, Communicator& comm);

  std::vector<Unit*> units_;
  std::vector<State> states_;
  bool resident_;
  DType dtype_;
  std::unique_ptr<Reducer> reducer_;
  std::function<void(Context& ctx, int unit, const Tensor& full)> before_reduce_;
};

/// Sums tensors of dtype `dtype` over the ranks, in place, by one all-reduce of a packed copy; nothing if there are none.
void sum_packed(Context& ctx, Communicator& comm, const std::vector<Tensor>& parts, DType dtype);

}  // namespace trireme
