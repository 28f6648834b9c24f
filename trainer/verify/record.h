#pragma once
// What a short training run computes, gathered from all ranks: everything that must not depend on the layout.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/loop/trainer.h"

namespace trireme {

/// A full parameter or gradient, without padding.
struct GlobalTensor {
  struct Holder {
    int rank;  ///< world rank
    Box box;
  };
  std::array<int64_t, 2> shape{0, 1};
  std::vector<double> values;  ///< NaN if no rank owns the element
  std::vector<Holder> holders;
};
using GlobalTensors = std::map<std::string, GlobalTensor>;

/// Two ranks with different bits for the same element.
struct Disagreement {
  std::string tensor;
  size_t place = 0;
  int first_rank = 0, second_rank = 0;
  double first = 0, second = 0;
  std::string str() const;
};

struct RunRecord {
  std::vector<double> loss, grad_norm;
  double validation_loss = 0;
  GlobalTensors first_gradient;  ///< of step 1
  GlobalTensors weight;          ///< after the last step
  GlobalTensors average;         ///< of the weights, after the last step; empty without training.ema
  /// Only with RecordOptions::every_state: weights as initialised, before step 1 and after it; gradient of step 2; weights and average after step 2.
  GlobalTensors fresh_weight, initial_weight, first_weight, second_gradient, second_weight, second_average;
  std::optional<Disagreement> disagreement;  ///< the first, if any
  std::string unheld;                        ///< a tensor with elements that no rank owns
  std::string outside;                       ///< a tensor of which a rank owns rows beyond the end
  /// Parameters whose updates depend on rounding: Lion takes the sign of gradients of key biases, which are zero in exact arithmetic where RoPE does not
  /// rotate the bias. Nothing else depends on these biases, because a softmax is invariant to what they add.
  std::set<std::string> undetermined;
  double norm_offset = 0;                         ///< what norms add to their weights before they multiply
  std::string rejected;                           ///< the rejected step and the reason; the run ended there
  bool operator==(const RunRecord& other) const;  ///< losses, norms, first_gradient, weight and average, bit for bit
};

struct RecordOptions {
  int steps = 3;
  bool every_state = false;  ///< record the optional tensors of RunRecord too
  double bias_scale = 0.1;   ///< standard deviation of initial biases and of B of adapters: the product's are 0, which would hide errors
  double norm_scale = 0;     ///< the same, added to norm weights: all ones would hide which is read, and a swap of norm and RoPE
  std::string zeroed = {};   ///< weights whose names have this suffix start as 0; empty: none
};

/// Trains and records; the record is complete on every rank. Collective. The learning rate alternates between the configuration's and half of it.
RunRecord record_run(Trainer& trainer, const Dataset& data, const Dataset& validation, const RecordOptions& options);

enum class Gathered : uint8_t { kWeight, kGradient, kAverage };
/// Assembles the parameters, their gradients (divided by `loss_scale`), or their moving average from the boxes of all ranks.
/// Frozen parameters have no gradient and no average. Collective.
/// Inconsistencies are noted in `record`.
GlobalTensors gather(Trainer& trainer, Gathered what, double loss_scale, RunRecord& record);

}  // namespace trireme
