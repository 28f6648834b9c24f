#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "trainer/checkpoint/manifest.h"
#include "trainer/config/config.h"

namespace trireme {

/// Counts evaluations without improvement for training.stop. An evaluation improves if its loss is lower than that of the last one that improved, by
/// at least `minimum`; the first finite loss improves. A loss that is not finite does not. Equal on every rank; its state is part of the checkpoint.
class EarlyStopping {
 public:
  EarlyStopping() = default;
  /// Without a patience, nothing is counted, and the state of an earlier start is dropped.
  EarlyStopping(const StopConfig& config, const StopState& state);

  /// An evaluation after `step`. One that the state already contains has no effect.
  void add(int64_t step, double loss);
  bool reached() const { return config_.patience && state_.without_improvement >= *config_.patience; }
  const StopState& state() const { return state_; }
  /// Why the run stops: "the validation loss has not improved in 3 evaluations ...".
  std::string text() const;

 private:
  StopConfig config_;
  StopState state_;
};

}  // namespace trireme
