#pragma once
#include <vector>

#include "trainer/plan/layouts.h"
#include "trainer/plan/step_costs.h"

namespace trireme {

/// Seconds below which no step can come whose stages take so long, whatever its schedule idles: what a search prunes by. `transfers` as in StepCosts,
/// or empty.
double least_step_seconds(const Layout& layout, int64_t microbatches, const std::vector<PartSeconds>& stages,
                          const std::vector<double>& transfers = {});

}  // namespace trireme
