#pragma once
// Resolves a configuration as written into one that can run.
#include <optional>
#include <vector>

#include "trainer/config/load.h"

namespace trireme {

/// Fills in every `auto`. Afterwards only these may be nullopt: one of steps and epochs, keys without effect (reference_batch_size without scaling,
/// decay_steps without wsd), final_learning_rate, decay_steps if the run is counted in epochs, and those that depend on the machine, such as logits_chunk and hang_seconds.
/// world_size: number of started ranks; nullopt if no ranks were started, in which case `data: auto` is 1.
/// Also works without sources, for a configuration made in code. The configuration is fully checked; resolving twice gives the same result.
/// Errors: ConfigError. If the product of the degrees is not the world size, it names the nearest legal layouts.
Config resolve(const Config& config, std::optional<int64_t> world_size = std::nullopt, const Sources& sources = {});
inline Config resolve(const LoadedConfig& loaded, std::optional<int64_t> world_size = std::nullopt) {
  return resolve(loaded.config, world_size, loaded.sources);
}

/// Seconds after which a rank without progress counts as hung: resilience.hang_seconds, or its default. `gpus`: the run computes on GPUs; `one_host`:
/// all its ranks are on one host.
double hang_seconds(const Config& config, bool gpus, bool one_host);

/// Contiguous split of the layers over `stages`, at least one layer each, that minimises the largest stage cost and, among those splits, the sum of
/// squared costs (the most even split). first_extra and last_extra are added to the first and the last stage, which with `empty_ends` may have no
/// layer. Exact; O(stages x layers^2).
std::vector<int64_t> balance_layers(const std::vector<double>& cost_of_layer, double first_extra, double last_extra, int64_t stages, bool empty_ends);

}  // namespace trireme
