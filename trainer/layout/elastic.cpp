#include "trainer/layout/elastic.h"

#include "trainer/config/check.h"
#include "trainer/config/report.h"

namespace trireme {

int64_t ranks_per_replica(const ParallelConfig& parallel) { return parallel.islands * parallel.tensor * parallel.pipeline; }

std::optional<Config> with_data_ranks(const Config& config, int64_t data) {
  Config changed = config;
  ParallelConfig& p = changed.parallel;
  const int64_t shards = p.data.value() / p.replicate;
  if (p.replicate > 1) {
    if (data % shards != 0) return std::nullopt;
    p.replicate = data / shards;
  }
  p.data = data;
  return changed;
}

std::vector<int> legal_worlds(const Config& config) {
  const int64_t each = ranks_per_replica(config.parallel), most = config.parallel.data.value();
  std::vector<int> worlds{static_cast<int>(most * each)};
  if (!is_elastic(config.resilience)) return worlds;
  for (int64_t data = most - 1; data >= config.resilience.minimum_replicas; --data) {
    const std::optional<Config> fewer = with_data_ranks(config, data);
    Violations violations;
    if (fewer) check(*fewer, {}, violations);
    if (fewer && violations.empty()) worlds.push_back(static_cast<int>(data * each));
  }
  return worlds;
}

}  // namespace trireme
