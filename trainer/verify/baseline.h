#pragma once
#include "trainer/verify/difference.h"
#include "trainer/verify/oracle.h"

namespace trireme {

/// Compares one rank with the Oracle, to find errors common to all layouts, which no comparison between layouts can show. Covers initial weights,
/// losses of two steps, their gradients (by central differences of the Oracle's loss along random directions), gradient norms, weights after each of
/// the two steps, their moving average, and the validation loss.
struct BaselineCheck {
  Comparison comparison;                 ///< a gradient's Difference has place -1 and directional derivatives as values
  KnownFault fault = KnownFault::kNone;  ///< if the loss differs: the fault with which the Oracle reproduces it
};
/// `record`: a run of `config` on these data sets, with every_state and at least two steps.
BaselineCheck check_baseline(const Config& config, const RunRecord& record, const Dataset& data, const Dataset& validation,
                             const RecordOptions& options);

}  // namespace trireme
