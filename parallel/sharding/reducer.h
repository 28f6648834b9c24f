#pragma once
// One of the four virtual seams: how the gradients of several ranks become one. It stands between GradStore and Communicator.
#include <map>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

/// One reduction of a unit's gradient. Tensors are 1-D, in the gradient dtype, and stay where they are until finish().
struct Reduction {
  enum class Kind : uint8_t {
    kScatter,   ///< over `shard`: every rank gives its gradient of the whole unit and gets the sum of its own part
    kReplicas,  ///< over `replicate`, in place: ranks that own the same shard sum it
    kTied,      ///< over `embedding`, in place: first and last stage sum the gradients of their copies of a tied parameter
  };
  Kind kind;
  int unit;
  Communicator* comm;
  Tensor whole;             ///< [size * shard_numel], of kScatter alone; unspecified after finish()
  Tensor shard;             ///< [shard_numel]: where the sum goes. May be this rank's own part of `whole`, unless `accumulate`
  bool accumulate = false;  ///< of kScatter: the sum is added to `shard` instead of replacing what it holds
};

/// Sums gradients over ranks. All ranks of a group start and finish the same reductions in the same order. A unit has at most one reduction in
/// flight; several units may have one at the same time.
class Reducer {
 public:
  Reducer() = default;
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Starts a reduction, which runs behind what is computed next. Errors: InternalError if the unit's last one is not finished, or on a reduction
  /// whose tensors do not match its kind.
  void start(Context& ctx, const Reduction& reduction);
  /// The unit's shard holds the result. Errors: InternalError if no reduction of the unit was started.
  void finish(Context& ctx, int unit);

  /// What this rank keeps of a unit from one step to the next, and a checkpoint must hold for the same bits after a resume: the error that
  /// compression left over, for example. The plain sum keeps nothing.
  struct State {
    const char* name;
    Tensor tensor;
  };
  virtual std::vector<State> state(int /*unit*/) const { return {}; }

 private:
  /// start() and finish() after their checks.
  virtual void begin(Context& ctx, const Reduction& reduction) = 0;
  virtual void end(Context& ctx, const Reduction& reduction) = 0;

  std::map<int, Reduction> in_flight_;  ///< by unit
};

/// The plain sum, as the communicator takes it. Wire: (n-1)/n * bytes of `whole` for kScatter, else 2(n-1)/n * bytes of `shard`; kScatter and
/// kReplicas in the dtype `wire`, kTied in the gradient dtype. Memory, until finish(): what a reduce-scatter brings where that cannot go straight into
/// the shard; a copy of what is in flight where `wire` is not the gradient dtype and the group has several ranks.
class SumReducer final : public Reducer {
 public:
  explicit SumReducer(DType wire) : wire_(wire) {}

 private:
  /// Where the sum arrives, and its way there.
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
