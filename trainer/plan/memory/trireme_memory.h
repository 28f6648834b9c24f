#pragma once
// Memory of Trireme's own ranks by formula, for searches over layouts. Takes tens of microseconds per layout; counting takes tens of milliseconds per
// rank.
#include <vector>

#include "parallel/pipeline/step_times.h"
#include "trainer/model/part_profile.h"
#include "trainer/plan/forecast.h"

namespace trireme {

/// One entry per pipeline rank, without the runtime allowance. Parameters, gradients and optimizer state are exact, the rest is within a few percent.
/// `config` is resolved. `profiles`: part profiles of config.model. `lists`: steady_lists().
std::vector<RankBytes> trireme_memory(const Config& config, PartProfiles& profiles, const ActionLists& lists);

/// A number of micro-batches, at most `microbatches`, with which a schedule reaches the same number in flight on each rank as with `microbatches`.
int64_t steady_state_microbatches(int64_t ranks, int64_t microbatches);
/// The configuration with that number of micro-batches: each rank has the same memory, but for the token ids of those left out. Not shortened are
/// gpipe, which has all micro-batches in flight, a schedule file, and steps in which data ranks differ.
Config with_steady_microbatches(const Config& config);
/// The lists of a training step of that configuration. `schedule`: step_schedule(config).
const ActionLists& steady_lists(const Config& config, StepSchedule& schedule);

}  // namespace trireme
