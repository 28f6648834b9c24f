#pragma once
// Properties of the optimizers that configurations, checkpoints and forecasts need. Their arithmetic is in kernels/ops/update.h.
#include <array>
#include <cstddef>
#include <cstdint>

namespace trireme {

enum class Optimizer : uint8_t { kAdamW, kLion, kSgd };

constexpr size_t kMaxStates = 2;
/// State name of the exponential moving average of the weights, which can be combined with any optimizer.
constexpr const char* kAverageName = "ema";

struct OptimizerTraits {
  const char* name;                                 ///< value of training.optimizer.name
  std::array<const char*, kMaxStates> state_names;  ///< names in checkpoints of the state tensors per weight, which have its shape and dtype
  int states;                                       ///< number of state tensors
  bool reads_epsilon;                               ///< whether training.optimizer.epsilon is used
  double default_beta2;                             ///< of an optimizer with states
};
/// Indexed by Optimizer.
constexpr std::array<OptimizerTraits, 3> kOptimizers{{
    {"adamw", {"exp_avg", "exp_avg_sq"}, 2, true, 0.95},
    {"lion", {"exp_avg"}, 1, false, 0.99},
    {"sgd", {}, 0, false, 0},
}};
constexpr const OptimizerTraits& traits_of(Optimizer optimizer) { return kOptimizers[static_cast<size_t>(optimizer)]; }

}  // namespace trireme
