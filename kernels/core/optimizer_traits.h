#pragma once
// Properties of the optimizers that configurations, checkpoints and forecasts need. Their arithmetic is in kernels/ops/update.h.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme {

enum class Optimizer : uint8_t { kAdamW, kLion, kSgd, kMuon };

/// Muon: the length of an update of a matrix [rows, columns], as a factor on the orthogonal matrix (kernels/ops/muon.h).
enum class MuonScale : uint8_t {
  kRms,       ///< 0.2 sqrt(max(rows, columns)): the root mean square of AdamW's updates, whose learning rate and weight decay then fit (Liu et al.)
  kSpectral,  ///< sqrt(max(1, rows / columns)): the change of a layer's output is then independent of its shape (Jordan et al.)
};

constexpr size_t kMaxStates = 2;
/// State name of the exponential moving average of the weights, which can be combined with any optimizer.
constexpr const char* kAverageName = "ema";

struct OptimizerTraits {
  const char* name;                                 ///< value of training.optimizer.name
  std::array<const char*, kMaxStates> state_names;  ///< names in checkpoints of the state tensors per weight, which have its shape and dtype
  int states;                                       ///< number of state tensors
  bool reads_epsilon;                               ///< whether training.optimizer.epsilon is used
  double default_beta2;                             ///< of an optimizer with states
  /// The update of a weight depends on its whole matrix. AdamW updates the parameters that are not weights of linear layers in blocks.
  bool updates_matrices;
};
/// Indexed by Optimizer.
constexpr std::array<OptimizerTraits, 4> kOptimizers{{
    {"adamw", {"exp_avg", "exp_avg_sq"}, 2, true, 0.95, false},
    {"lion", {"exp_avg"}, 1, false, 0.99, false},
    {"sgd", {}, 0, false, 0, false},
    {"muon", {"momentum_buffer"}, 1, true, 0.95, true},
}};
constexpr const OptimizerTraits& traits_of(Optimizer optimizer) { return kOptimizers[static_cast<size_t>(optimizer)]; }

/// The optimizer whose rule updates a parameter if `chosen` is that of the run.
constexpr Optimizer update_rule_of(Optimizer chosen, bool is_hidden_matrix) {
  return traits_of(chosen).updates_matrices && !is_hidden_matrix ? Optimizer::kAdamW : chosen;
}
/// The names of the state that the parameter has, that of the moving average apart.
constexpr std::span<const char* const> state_names_of(Optimizer chosen, bool is_hidden_matrix) {
  const OptimizerTraits& traits = traits_of(update_rule_of(chosen, is_hidden_matrix));
  return std::span(traits.state_names).first(static_cast<size_t>(traits.states));
}

}  // namespace trireme
