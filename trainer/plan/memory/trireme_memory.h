#pragma once
// Memory of Trireme's own ranks by formula, for searches over layouts: tens of microseconds a layout, where counting takes tens of milliseconds a
// rank.
#include <vector>

#include "parallel/pipeline/action.h"
#include "trainer/model/part_profile.h"
#include "trainer/plan/forecast.h"

namespace trireme {

/// One entry for each pipeline rank, without the runtime's allowance. States are exact, the rest within a few percent. `config` is resolved.
/// `profiles` are those of its model.
std::vector<RankBytes> trireme_memory(const Config& config, PartProfiles& profiles);

/// As many micro-batches as a schedule needs to come to its steady state: the most in flight on each rank are those of `microbatches`.
int64_t enough_microbatches(int64_t ranks, int64_t microbatches);
/// The plan of a training step with no more than those, and so with the same most in flight; of a schedule file and of gpipe, which
/// has all in flight, the whole.
ActionLists steady_schedule(const Config& config);

}  // namespace trireme
