#pragma once
// An independent implementation of forward and optimizers in plain fp64 loops over full tensors, without the product's kernels, layers and ranks.
#include "trainer/verify/record.h"

namespace trireme {

/// Deliberate faults of the Oracle: if the Oracle with a fault reproduces a run's loss, the run has that fault.
enum class KnownFault : uint8_t {
  kNone,
  kRopePairs,          ///< RoPE rotates neighbouring elements instead of halves
  kSeesNext,           ///< a query attends to the token after it
  kNormAfterRope,      ///< queries and keys are normalised after RoPE
  kRopeUnscaled,       ///< model.rope_scaling has no effect
  kDropoutOfStepOne,   ///< every step uses the dropout masks of the first
  kMaskedCount,        ///< the mean includes masked targets
  kDocumentsMixed,     ///< documents of one sequence attend to each other
  kPositionsRunOn,     ///< positions do not restart in each document
  kHeadsInTurn,        ///< query head n reads kv head n mod kv_heads
  kWindowIgnored,      ///< model.window has no effect
  kWindowWide,         ///< a query attends to the token just before its window
  kOtherResidual,      ///< parallel branches run in turn, or the reverse
  kRopeWhole,          ///< RoPE rotates whole heads instead of their first part
  kOtherGelu,          ///< GELU is computed in its other form
  kOneRopeBase,        ///< model.window_rope_theta has no effect
  kScaleOfHeadSize,    ///< model.attention_scale has no effect
  kPlainEmbedding,     ///< the embedding is not scaled
  kNoPostNorms,        ///< branches are added as they are
  kNoAdapters,         ///< adapters add nothing
  kOtherAdapterScale,  ///< adapter.scale has no effect: alpha is divided by the root of the rank instead of the rank, or the reverse
  kStaleWeights,       ///< a step reads the previous step's weights; detected by check_baseline, which has both
};
constexpr KnownFault kKnownFaults[] = {
    KnownFault::kRopePairs,        KnownFault::kSeesNext,      KnownFault::kNormAfterRope,  KnownFault::kRopeUnscaled,
    KnownFault::kDropoutOfStepOne, KnownFault::kMaskedCount,   KnownFault::kDocumentsMixed, KnownFault::kPositionsRunOn,
    KnownFault::kHeadsInTurn,      KnownFault::kWindowIgnored, KnownFault::kWindowWide,     KnownFault::kOtherResidual,
    KnownFault::kRopeWhole,        KnownFault::kOtherGelu,     KnownFault::kOneRopeBase,    KnownFault::kScaleOfHeadSize,
    KnownFault::kPlainEmbedding,   KnownFault::kNoPostNorms,   KnownFault::kNoAdapters,     KnownFault::kOtherAdapterScale};
struct KnownFaultText {
  const char* layer;
  const char* trap;
};
KnownFaultText text_of(KnownFault fault);

class Oracle {
 public:
  /// `config` may have any layout. Weights are looked up by the names of the parameter table.
  Oracle(const Config& config, KnownFault fault = KnownFault::kNone) : config_(config), fault_(fault) {}

  /// Mean loss over the valid targets of the global batch of `step` (from 0), as a training step computes it.
  double training_loss(const GlobalTensors& weights, const Dataset& data, int64_t step) const;
  /// Mean loss over all of `data`, without dropout.
  double evaluation_loss(const GlobalTensors& weights, const Dataset& data) const;
  /// The expected initial weights, with biases and norms as in RecordOptions.
  GlobalTensors initial_weights(double bias_scale, double norm_scale) const;
  struct Step {
    const GlobalTensors& gradient;
    double learning_rate;
  };
  /// Whether training changes the parameter: it is of an adapter, or no pattern of model.frozen names it.
  bool trains(const std::string& name) const;
  /// The weights after these first steps of the configured optimizer, from zero state, with each step's gradient clipped by its global norm.
  GlobalTensors updated(const GlobalTensors& weights, const std::vector<Step>& steps) const;
  /// The moving average of the weights that are trained. `history`: the initial weights and those after each step.
  GlobalTensors averaged(const std::vector<const GlobalTensors*>& history) const;

 private:
  Config config_;
  KnownFault fault_;
};

}  // namespace trireme
