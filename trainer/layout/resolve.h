#pragma once
// From a configuration as it was written to one that can run.
#include <optional>
#include <vector>

#include "trainer/config/load.h"

namespace trireme {

/// Fills in every `auto`. Afterwards these alone may be nullopt: one of steps and epochs, what has no effect (reference_batch_size without scaling,
/// decay_steps without wsd), and decay_steps where the run is counted in epochs.
/// world_size: the ranks that were started; nullopt where none were, and then `data: auto` is 1.
/// Works on a configuration made in code too (no sources); it is checked in full, so the result of a second resolve is the same.
/// Errors: ConfigError, with the product of the degrees and the nearest legal layouts where they are not the world.
Config resolve(const Config& config, std::optional<int64_t> world_size = std::nullopt, const Sources& sources = {});
inline Config resolve(const LoadedConfig& loaded, std::optional<int64_t> world_size = std::nullopt) {
  return resolve(loaded.config, world_size, loaded.sources);
}

/// Contiguous split of the layers over `stages`, each at least one, that minimises the largest cost of a stage and, among those splits, the sum of
/// squares (the most even). first_extra and last_extra are added to the first and the last stage. Exact; O(stages x layers^2).
std::vector<int64_t> balance_layers(const std::vector<double>& cost_of_layer, double first_extra, double last_extra, int64_t stages);

}  // namespace trireme
