#pragma once
#include "trainer/verify/difference.h"
#include "trainer/verify/oracle.h"

namespace trireme {

/// What can be wrong in every layout alike, and so in no comparison between them: one rank against the Oracle. Initial weights, losses of two steps, their
/// gradients by central differences of the Oracle's loss along random directions, the norm, the first AdamW step, the validation loss.
struct BaselineCheck {
  Comparison comparison;                 ///< Difference::place of a gradient is -1: figures are derivatives along a direction
  KnownFault fault = KnownFault::kNone;  ///< with which the Oracle's loss is the run's, where it is not without
};
/// `record` with every_state and at least two steps, of `config` and these data sets.
BaselineCheck check_baseline(const Config& config, const RunRecord& record, const Dataset& data, const Dataset& validation,
                             const RecordOptions& options);

}  // namespace trireme
