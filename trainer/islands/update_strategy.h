#pragma once
// How the weights of islands (parallel.islands) follow from their gradients: by the updates of the step alone, by rounds of local steps
// (training.local), or by servers, exchanges with a centre or shared memory (training.asynchronous).
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/ops/transfer.h"
#include "parallel/comm/progress.h"
#include "trainer/islands/local_updates.h"
#include "trainer/islands/parameter_server.h"
#include "trainer/islands/shared_shards.h"

namespace trireme {

/// What OUTER and EXCHANGE read of the step that they end.
struct EndedStep {
  int64_t step = 0;          ///< from 0
  int64_t targets = 0;       ///< valid tokens of its batch, over the island
  Tensor sums;               ///< [kStepSums] f64, over the island
  Tensor scalars;            ///< [kStepScalars] f64
  bool counts_shard = true;  ///< this rank counts its shards in sums over the island
};

/// What a step's OUTER or EXCHANGE leaves.
struct IslandFigures {
  std::optional<ScalarReadback> outer = {};  ///< figures of outer steps: UpdateStrategy::outer_result()
  double outer_bytes = 0;                    ///< sent in them by this rank
  std::optional<Arrivals> exchanged = {};    ///< with elastic averaging: the exchanges with the centre that have become known
};

/// One rank's part. This class itself is the strategy without rounds: all ranks share the updates of each step, which is a round of its own.
class UpdateStrategy {
 public:
  UpdateStrategy(Context& ctx, const TrainingConfig& training)
      : ctx_(ctx), training_(training), rounds_(rounds_of(training, training.steps.value_or(0))) {}
  virtual ~UpdateStrategy() = default;
  UpdateStrategy(const UpdateStrategy&) = delete;
  UpdateStrategy& operator=(const UpdateStrategy&) = delete;

  /// Reports waits for other islands to `progress` from now on; it must outlive this object.
  void watch(Progress& progress) { progress_ = &progress; }
  /// Sets the run's last step (from 1), after which a round ends, too. Set the same value on all ranks.
  void set_last_step(int64_t last) { rounds_.last = last; }
  const Rounds& rounds() const { return rounds_; }
  /// True if all islands have the same shared weights: before the first step of a round.
  bool islands_agree() const { return islands_agree_; }
  /// With parameter servers `rates` gives the learning rate of a step (from 0), as servers may apply it before this rank starts it; else all steps of a
  /// round have that of its first.
  virtual void set_learning_rates(std::function<double(int64_t)>) {}
  /// With servers: by step, the workers of the gradients or exchanges of each update, in the order of a log that the steps repeat.
  virtual void set_order(std::map<int64_t, std::vector<int>>) {}

  /// A step (from 0) has begun; islands agree after it if a round ends with it.
  void note_step(int64_t step) { islands_agree_ = rounds_.ends_after(step + 1); }
  /// Where steps are updates of parameter servers: computes gradients of this island by `compute` until the update of `step` (from 0) has been applied,
  /// and returns it. `accepted`: steps accepted so far. `compute` gets the step of a gradient and its number among those of the step. Else, and in a forecast of memory, nullopt.
  using ComputeGradient = std::function<void(int64_t step, int64_t part)>;
  virtual std::optional<AppliedUpdate> take_update(int64_t step, double learning_rate, int64_t accepted, const ComputeGradient& compute);
  /// OUTER or EXCHANGE, the action behind the updates of a step, or in their place.
  virtual void end_step(const EndedStep& step);
  /// What the step that ended last has left.
  virtual IslandFigures take_figures() { return {}; }
  /// `figures`: of IslandFigures::outer.
  virtual OuterResult outer_result(const std::vector<double>& figures, double bytes) const;

  /// The weights were replaced: outer momentum is zero and start_round().
  virtual void start_run() { start_round(); }
  /// The state between two rounds has been loaded. Unless islands keep weights of their own, the current weights become the shared ones.
  void start_round();
  /// The current weights become the shared ones, and start_run().
  void weights_replaced();
  /// Where islands have weights of their own, these become the shared ones.
  void take_shared_weights();
  /// True if islands have weights of their own beside the shared ones.
  bool keeps_island_weights() const { return shared_ && trireme::keeps_island_weights(training_); }

  /// Views of the owned shard of a unit: the shared weights where islands keep their own, and the momentum of the outer step. Undefined without them.
  Tensor shared_weights(size_t stage, size_t unit) const { return keeps_island_weights() ? shared_->of(stage, unit) : Tensor(); }
  virtual Tensor outer_momentum(size_t, size_t) const { return {}; }
  /// Bytes that this rank sends in the outer steps of a round; 0 without them.
  virtual double outer_bytes() const { return 0; }
  /// Bytes that this rank sends to and receives from servers for a gradient or an exchange; 0 without them.
  virtual double server_bytes() const { return 0; }

 protected:
  void note(const char* what, int64_t number);
  std::unique_ptr<ScopedWait> waiting_for(const char* what);

  Context& ctx_;
  const TrainingConfig& training_;
  Rounds rounds_;
  std::unique_ptr<SharedShards> shared_;  ///< with training.local and elastic averaging
  bool islands_agree_ = true;

 private:
  friend class SharedWeights;
  Progress* progress_ = nullptr;
  bool has_shared_weights_ = false;  ///< a SharedWeights lives
};

/// The strategy of a resolved configuration. `config`, `mesh` and `stages` outlive it; the stages have their optimizers. Collective.
/// Errors: AgreedError (usage) with hogwild on several hosts; IoError if servers cannot connect.
std::unique_ptr<UpdateStrategy> make_update_strategy(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages);
/// The strategies of training.asynchronous.
std::unique_ptr<UpdateStrategy> make_asynchronous_strategy(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages);

/// While it lives, the stages have the weights that all islands share. Within another one it does nothing.
class SharedWeights {
 public:
  explicit SharedWeights(UpdateStrategy& updates) : updates_(updates), exchanges_(updates.keeps_island_weights() && !updates.has_shared_weights_) {
    exchange();
  }
  ~SharedWeights() noexcept(false) {
    if (std::uncaught_exceptions() > exceptions_) return;  // the run ends, and a second error would hide the first
    exchange();
  }
  SharedWeights(const SharedWeights&) = delete;
  SharedWeights& operator=(const SharedWeights&) = delete;

 private:
  void exchange();

  UpdateStrategy& updates_;
  const bool exchanges_;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace trireme
