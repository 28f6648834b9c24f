#pragma once
// Steps in which some ranks compute nothing (resilience.reroute): who computes their micro-batches, and the lists of all pipelines.
#include <optional>
#include <vector>

#include "parallel/pipeline/reroute.h"
#include "trainer/config/config.h"

namespace trireme {

/// nullopt without resilience.reroute. `config` is resolved. `microbatches`: of each data rank.
std::optional<Rerouting> rerouting_of(const Config& config, int microbatches);

/// The same configuration without relieved ranks: the undisturbed step.
Config without_reroute(Config config);

/// World ranks of pipeline rank `pipeline` among which is one with the highest forecast of memory: the first data rank; with resilience.reroute also
/// the first helpers, the relieved data ranks and the first other ones.
std::vector<int> ranks_to_forecast(const Config& config, int pipeline);

}  // namespace trireme
