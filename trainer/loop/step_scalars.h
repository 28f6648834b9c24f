#pragma once
// The scalars by which a step is judged. The host writes learning rate and limits before the step; NORM sums squares and losses, and decides on the
// device whether the step is accepted; the host reads the outcome later.
#include <string>
#include <vector>

#include "kernels/ops/optimizer.h"
#include "kernels/ops/transfer.h"
#include "parallel/mesh.h"
#include "trainer/config/config.h"
#include "trainer/loop/batches.h"
#include "trainer/loop/layer_gradients.h"
#include "trainer/loop/step_result.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

/// True for fp16, which has dynamic loss scaling; in other precisions the scale stays 1.
bool scales_loss(const TrainingConfig& training);

/// One rank's. Device memory: [kStepScalars], twice [kStepSums], [1] and for training another [1] f64.
class StepScalars {
 public:
  /// `config`, `mesh` and `stages` outlive it. `for_training` false: the stages have no gradients, and no step is judged.
  StepScalars(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages, bool for_training);
  StepScalars(const StepScalars&) = delete;
  StepScalars& operator=(const StepScalars&) = delete;

  /// Sets what the next step is judged by.
  void set_limits(const StepLimits& limits, double learning_rate, const BatchFigures& batch);
  /// NORM: one all-reduce for squared gradient norm, loss and the number of ranks that stand out. Each gradient element and each token's loss is added
  /// by exactly one rank. `counts_shard`: whether this rank adds its gradients. `loss`: [1] f64, the summed loss that this rank adds, if any.
  void norm(bool counts_shard, const Tensor& loss);

  /// Queues the transfer of what the step has left.
  ScalarReadback read_back() const;
  /// What a step's `outcome` says. `loss_factor`: mean loss = summed loss * loss_factor. The ranks compare it, because each acts on its own copy.
  /// Waits for the device. Collective.
  /// Errors: AgreedError (internal) on all ranks if their copies differ, which is a fault of a memory, link or processor; with several islands
  /// InternalError on those of one. The weights may then differ as well.
  StepResult read(const ScalarReadback& outcome, int64_t step, double loss_factor);
  /// An update that others have applied.
  void count_accepted() { ++accepted_steps_; }

  const Tensor& scalars() const { return scalars_; }  ///< [kStepScalars] f64, read by updates
  const Tensor& sums() const { return sums_; }        ///< [kStepSums] f64, over the island
  int64_t accepted_steps() const { return accepted_steps_; }
  void set_accepted_steps(int64_t steps);
  /// The loss scale after the finished steps.
  LossScale loss_scale() const { return loss_scale_; }
  void set_loss_scale(const LossScale& loss_scale);

  /// The gradient of each layer: "embedding", "blocks.0", ..., "final_norm", "head". The squares of the norms add up to the square of
  /// StepResult::grad_norm, up to rounding. Not on a GPU, where only the sum is computed.
  std::vector<LayerGradient> layer_gradients() { return layer_gradients_.gather(mesh_.step, used_scale_); }
  /// Counts the last step for LayerGradient::zero_steps. A step that is executed several times counts once, one without a target not at all.
  void count_layer_gradients() { layer_gradients_.count_step(); }

 private:
  std::string offender_name(int64_t index);

  Context& ctx_;
  Mesh& mesh_;
  const Stages& stages_;
  const TrainingConfig& training_;
  AdamW hyper_;
  LossScaling scaling_;
  LossScale loss_scale_;                     ///< after finished steps
  double used_scale_ = 1;                    ///< the loss scale of the last finished step
  int64_t accepted_steps_ = 0;               ///< among the finished steps
  Tensor sums_, norm_, scalars_;             ///< f64: [kStepSums], [1], [kStepScalars]
  Tensor local_sums_;                        ///< sums_ before the sum over the ranks
  std::vector<Tensor> gradients_;            ///< owned_gradients
  std::vector<std::string> gradient_names_;  ///< of gradients_
  Tensor offender_;                          ///< [1] f64: index in gradients_ of a rejected step's first non-finite one
  LayerGradients layer_gradients_;           ///< of this rank's part of the gradients; with loss scale
};

}  // namespace trireme
