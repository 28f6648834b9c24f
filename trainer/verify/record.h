#pragma once
// What a short training run computes, gathered from all ranks: everything that must not depend on the layout.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/loop/trainer.h"

namespace trireme {

/// A parameter (or its gradient) as a whole, unpadded.
struct GlobalTensor {
  struct Holder {
    int rank;  ///< of the world
    Box box;
  };
  std::array<int64_t, 2> shape{0, 1};
  std::vector<double> values;  ///< NaN where no rank holds the element
  std::vector<Holder> holders;
};
using GlobalTensors = std::map<std::string, GlobalTensor>;

/// Two ranks that hold one element and do not hold the same bits.
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
  /// These only where they are asked for: as the product makes them, before the first step, after it, of step 2, after that.
  GlobalTensors fresh_weight, initial_weight, first_weight, second_gradient, second_weight, second_average;
  std::optional<Disagreement> disagreement;  ///< the first, if any
  std::string unheld;                        ///< a tensor with elements of no rank
  std::string outside;                       ///< a tensor of which a rank holds more than there is
  /// Parameters whose updates rounding decides: Lion takes the sign of GPT-2's key bias gradients, which are zero in exact arithmetic. Nothing else depends on
  /// these biases, for a softmax does not see what they add.
  std::set<std::string> undetermined;
  std::string rejected;                           ///< the step that was not accepted, and why; the run ended there
  bool operator==(const RunRecord& other) const;  ///< losses, norms, first_gradient, weight and average, bit for bit
};

struct RecordOptions {
  int steps = 3;
  bool every_state = false;  ///< the tensors of RunRecord that must be asked for
  double bias_scale = 0.1;  ///< of the normal distribution of initial biases: those of the product are 0, and a bias of 0 hides what is wrong with it
  double norm_scale = 0;    ///< the same, added to the weights of norms: among ones nobody sees which is read, nor that a norm and RoPE change places
  std::string zeroed = {};  ///< weights whose names end so are 0 at first; empty: none
};

/// This rank's part of the run; collective, and the record is whole on every rank. The learning rate is that of the configuration and half of it in turn.
RunRecord record_run(Trainer& trainer, const Dataset& data, const Dataset& validation, const RecordOptions& options);

enum class Gathered : uint8_t { kWeight, kGradient, kAverage };
/// The parameters, their gradients in units of the loss, or their moving average, from the boxes of all ranks; collective. What is wrong with them goes
/// into `record`.
GlobalTensors gather(Trainer& trainer, Gathered what, double loss_scale, RunRecord& record);

}  // namespace trireme
