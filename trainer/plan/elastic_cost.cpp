#include "trainer/plan/elastic_cost.h"

#include <algorithm>

#include "trainer/layout/elastic.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/text.h"

namespace trireme {

std::vector<ElasticStep> elastic_steps(const Config& config, const ClusterConfig& cluster, const Forecast& complete) {
  constexpr size_t kMost = 8;
  std::vector<ElasticStep> steps{{*config.parallel.data, complete.step_seconds, largest_peak(complete.memory), complete.fits}};
  const std::vector<int> worlds = legal_worlds(config);
  const size_t count = std::min(worlds.size(), kMost);
  for (size_t i = 1; i < count; ++i) {
    const int64_t data = worlds[i * (worlds.size() - 1) / (count - 1)] / ranks_per_replica(config.parallel);
    const Forecast fewer = forecast(resolve(with_data_ranks(config, data).value()), cluster);
    steps.push_back({data, fewer.step_seconds, largest_peak(fewer.memory), fewer.fits});
  }
  return steps;
}

nlohmann::ordered_json elastic_steps_json(const std::vector<ElasticStep>& steps) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ElasticStep& step : steps)
    json.push_back({{"data", step.data}, {"step_seconds", step.step_seconds}, {"peak_bytes", step.peak_bytes}, {"fits", step.fits}});
  return json;
}

std::string elastic_steps_text(const std::vector<ElasticStep>& steps) {
  std::string text = "resilience.elastic: the same global batch with fewer data ranks:\n  data ranks   step        speed   peak memory\n";
  for (const ElasticStep& step : steps)
    text += print("  %-12lld %-11s %5.1f %%   %s%s\n", static_cast<long long>(step.data), seconds_text(step.step_seconds).c_str(),
                  100 * steps.front().step_seconds / step.step_seconds, bytes_text(step.peak_bytes).c_str(), step.fits ? "" : ", does not fit");
  return text;
}

}  // namespace trireme
