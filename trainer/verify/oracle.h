#pragma once
// The model once more, forward and optimizers, in plain loops over whole tensors in double: nothing of the product's kernels, layers or ranks is in it.
#include "trainer/verify/record.h"

namespace trireme {

/// A mistake on purpose: where a run computes what the model with one of these computes, the mistake is found.
enum class KnownFault : uint8_t {
  kNone,
  kRopePairs,         ///< RoPE turns neighbouring elements in place of halves
  kSeesNext,          ///< a query attends to the token after it
  kNormAfterRope,     ///< queries and keys are normalised after RoPE
  kRopeUnscaled,      ///< model.rope_scaling does nothing
  kDropoutOfStepOne,  ///< every step drops what the first one dropped
  kMaskedCount,       ///< the mean is over masked targets too
  kDocumentsMixed,    ///< documents of one sequence see each other
  kPositionsRunOn,    ///< positions do not begin anew in each document
  kHeadsInTurn,       ///< query head n reads kv head n mod kv_heads
  kWindowIgnored,     ///< model.window has no effect
  kWindowWide,        ///< a query sees the token just before its window
  kStaleWeights,      ///< a step reads the weights of the one before; told by check_baseline, which has both
};
constexpr KnownFault kKnownFaults[] = {KnownFault::kRopePairs,      KnownFault::kSeesNext,         KnownFault::kNormAfterRope,
                                       KnownFault::kRopeUnscaled,   KnownFault::kDropoutOfStepOne, KnownFault::kMaskedCount,
                                       KnownFault::kDocumentsMixed, KnownFault::kPositionsRunOn,   KnownFault::kHeadsInTurn,
                                       KnownFault::kWindowIgnored,  KnownFault::kWindowWide};
struct KnownFaultText {
  const char* layer;
  const char* trap;
};
KnownFaultText text_of(KnownFault fault);

class Oracle {
 public:
  /// `config` of any layout. Weights are looked up by the names of the parameter table.
  Oracle(const Config& config, KnownFault fault = KnownFault::kNone) : config_(config), fault_(fault) {}

  /// Mean loss over the valid targets of the global batch of `step` (from 0), as a training step computes it.
  double training_loss(const GlobalTensors& weights, const Dataset& data, int64_t step) const;
  /// Mean loss over all of `data`, without dropout.
  double evaluation_loss(const GlobalTensors& weights, const Dataset& data) const;
  /// What initialisation must give, biases and norms as RecordOptions says.
  GlobalTensors initial_weights(double bias_scale, double norm_scale) const;
  struct Step {
    const GlobalTensors& gradient;
    double learning_rate;
  };
  /// The weights after these first steps of the configured optimizer, from a state of zeros, with each global gradient clipped first.
  GlobalTensors updated(const GlobalTensors& weights, const std::vector<Step>& steps) const;
  /// The moving average of the weights, `history` being the initial ones and those after each step.
  GlobalTensors averaged(const std::vector<const GlobalTensors*>& history) const;

 private:
  Config config_;
  KnownFault fault_;
};

}  // namespace trireme
