#include "trainer/run/early_stopping.h"

#include <cmath>

#include "kernels/core/check.h"

namespace trireme {

EarlyStopping::EarlyStopping(const StopConfig& config, const StopState& state) : config_(config) {
  if (config_.patience) state_ = state;
}

void EarlyStopping::add(int64_t step, double loss) {
  if (!config_.patience || step <= state_.step) return;
  state_.step = step;
  const bool improved = std::isfinite(loss) && (!state_.best || (loss < *state_.best && *state_.best - loss >= config_.minimum));
  state_.without_improvement = improved ? 0 : state_.without_improvement + 1;
  if (!improved) return;
  state_.best = loss;
  state_.best_step = step;
}

std::string EarlyStopping::text() const {
  const int64_t count = state_.without_improvement;
  return concat("the validation loss has not improved", config_.minimum > 0 ? concat(" by ", config_.minimum) : "", " in ", count,
                count == 1 ? " evaluation" : " evaluations", state_.best ? concat(" since ", *state_.best, " at step ", state_.best_step) : "");
}

}  // namespace trireme
