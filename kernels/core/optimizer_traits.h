#pragma once
// The optimizers by name: what a configuration, a checkpoint and a forecast know of them. Their arithmetic is kernels/ops/update.h.
#include <array>
#include <cstddef>
#include <cstdint>

namespace trireme {

enum class Optimizer : uint8_t { kAdamW, kLion };

constexpr size_t kMostStates = 2;
/// The name, among that state, of the moving average of the weights, which any optimizer may have beside its own.
constexpr const char* kAverageName = "ema";

/// What is known of an optimizer beside its arithmetic.
struct OptimizerTraits {
  const char* name;                                  ///< as training.optimizer.name
  std::array<const char*, kMostStates> state_names;  ///< of the tensors it keeps of each weight, in its shape and dtype: parts of a checkpoint
  int states;                                        ///< how many
  bool reads_epsilon;                                ///< training.optimizer.epsilon has a meaning
  double default_beta2;
};
/// In the order of Optimizer.
constexpr std::array<OptimizerTraits, 2> kOptimizers{{
    {"adamw", {"exp_avg", "exp_avg_sq"}, 2, true, 0.95},
    {"lion", {"exp_avg"}, 1, false, 0.99},
}};
constexpr const OptimizerTraits& traits_of(Optimizer optimizer) { return kOptimizers[static_cast<size_t>(optimizer)]; }

}  // namespace trireme
