#pragma once
// One of the four virtual interfaces: how gradients are summed over ranks. GradStore calls it; it calls the Communicator.
#include <map>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/param.h"

namespace trireme {

/// One reduction of a unit's gradient. Tensors are 1-D, in the gradient dtype, and must stay valid until finish().
struct Reduction {
  enum class Kind : uint8_t {
    kScatter,   ///< over `shard`: reduce-scatter of the whole unit's gradient; each rank receives the sum of its own part
    kReplicas,  ///< over `replicate`, in place: ranks that own the same shard sum it
    kTied,      ///< over `embedding`, in place: first and last stage sum the gradients of their copies of a tied parameter
  };
  Kind kind;
  int unit;
  Communicator* comm;
  Tensor whole;             ///< [size * shard_numel], only for kScatter; unspecified after finish()
  Tensor shard;             ///< [shard_numel], receives the sum. May be this rank's own part of `whole`, unless `accumulate`
  bool accumulate = false;  ///< only for kScatter: the sum is added to `shard` instead of replacing it
};

/// Sums gradients over ranks. All ranks of a group start and finish the same reductions in the same order. A unit has at most one reduction in
/// flight; several units may have one at the same time.
class Reducer {
 public:
  Reducer() = default;
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Starts a reduction, which overlaps the compute that follows. Errors: InternalError if the unit's previous reduction is not finished, or if the
  /// tensors do not match the kind.
  void start(Context& ctx, const Reduction& reduction);
  /// Waits for the unit's reduction; its shard then contains the result. Errors: InternalError if no reduction of the unit was started.
  void finish(Context& ctx, int unit);

  /// Called before the first reduction of a step; steps count from 0.
  virtual void begin_step(int64_t /*step*/) {}
  /// Called for each unit after the last reduction of a step, once `scalars` (kernels/ops/optimizer.h) say whether the step is accepted: the state
  /// after a rejected step is the state before it.
  virtual void settle(Context& /*ctx*/, int /*unit*/, const Tensor& /*scalars*/) {}

  /// Bytes that this rank sends for one reduction of a unit, of kScatter or kReplicas, over a group of `ranks`; the unit's shards have `shard_numel`
  /// elements.
  virtual double sent_bytes(Reduction::Kind kind, int unit, int64_t shard_numel, int ranks) const = 0;

  /// State of a unit that this rank keeps between steps, for example the residual error of compression. A checkpoint must contain it for a
  /// bit-identical resume. The plain sum keeps none.
  struct State {
    const char* name;
    Tensor tensor;
    int64_t begin = 0;                ///< position of its first element in the unit's flat buffer
    const ParamSpec* spec = nullptr;  ///< not null: `tensor` is a matrix of its own for this parameter, equal on all data ranks
    int worker = -1;                  ///< the data rank that it belongs to, if this rank keeps the state of all of them
  };
  virtual std::vector<State> state(int /*unit*/) const { return {}; }

 private:
  /// start() and finish() after their checks.
  virtual void begin(Context& ctx, const Reduction& reduction) = 0;
  virtual void end(Context& ctx, const Reduction& reduction) = 0;

  std::map<int, Reduction> in_flight_;  ///< by unit
};

/// The plain sum, by the communicator. Wire: (n-1)/n * bytes of `whole` for kScatter, else 2(n-1)/n * bytes of `shard`; kScatter and kReplicas in the
/// dtype `wire`, kTied in the gradient dtype. Memory until finish(): the result of a reduce-scatter if it cannot be written directly into the shard;
/// a copy of the gradient in flight if `wire` is not the gradient dtype and the group has more than one rank.
class SumReducer final : public Reducer {
 public:
  explicit SumReducer(DType wire) : wire_(wire) {}

  double sent_bytes(Reduction::Kind kind, int unit, int64_t shard_numel, int ranks) const override;

 private:
  /// A sum in flight and the tensor that receives it.
  struct Arrival {
    Tensor sum;
    bool in_place = false;  ///< sum is the shard
    Work work;
  };
  void begin(Context& ctx, const Reduction& reduction) override;
  void end(Context& ctx, const Reduction& reduction) override;
  Tensor on_wire(Context& ctx, const Reduction& reduction) const;

  DType wire_;
  std::map<int, Arrival> arrivals_;  ///< by unit
};

}  // namespace trireme
