#pragma once
#include <vector>

#include "trainer/plan/layouts.h"
#include "trainer/plan/step_costs.h"

namespace trireme {

/// Lower bound of the step time for the given stage times, in seconds, whatever the schedule's bubble. Used to prune searches. `transfers`: as in
/// StepCosts, or empty.
double step_seconds_lower_bound(const Layout& layout, int64_t microbatches, const std::vector<PartSeconds>& stages,
                                const std::vector<double>& transfers = {});

/// The same where ranks do not wait for each other between steps (StepCosts::staggered): the work of the busiest rank.
double staggered_step_lower_bound(const Layout& layout, int64_t microbatches, const std::vector<PartSeconds>& stages);

}  // namespace trireme
