#pragma once
// Layouts of a job that continues with fewer data ranks (resilience.elastic: replicas).
#include <optional>
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// Ranks of one data rank: tensor x pipeline, on all islands.
int64_t ranks_per_replica(const ParallelConfig& parallel);

/// `config` with `data` data ranks. With parallel.replicate above 1 the shard groups keep their size and the number of replicas changes; nullopt if
/// `data` is not a multiple of the size.
std::optional<Config> with_data_ranks(const Config& config, int64_t data);

/// The numbers of ranks with which a job of this configuration may run, largest first: without resilience.elastic that of its layout, else those of all
/// legal layouts with parallel.data down to resilience.minimum_replicas data ranks. `config`: resolved.
std::vector<int> legal_worlds(const Config& config);

}  // namespace trireme
