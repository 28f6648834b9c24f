#pragma once
#include "trainer/run/run_context.h"
#include "trainer/run/save_phase.h"

namespace trireme {

/// The coordinator of a federation as a run: it has the weights and the momentum of the outer step, and releases what its members have verified. Takes the
/// rounds of the run; one that `is_finished` only serves its last weights. Returns true if a stop was requested.
bool coordinate_rounds(RunContext& run, SavePhase& saves, bool is_finished);

}  // namespace trireme
