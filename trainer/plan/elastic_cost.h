#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/plan/forecast.h"

namespace trireme {

/// A step of an elastic job with some of its data ranks.
struct ElasticStep {
  int64_t data = 0;         ///< data ranks
  double step_seconds = 0;  ///< for the same global batch
  double peak_bytes = 0;    ///< largest peak of a rank
  bool fits = true;         ///< in the device's memory
};

/// A step of each layout with which a job of resilience.elastic continues, most data ranks first. `config` is resolved; `complete`: its forecast. At most
/// eight layouts, among them those with most and with fewest data ranks. A forecast for each.
std::vector<ElasticStep> elastic_steps(const Config& config, const ClusterConfig& cluster, const Forecast& complete);
nlohmann::ordered_json elastic_steps_json(const std::vector<ElasticStep>& steps);
/// A table.
std::string elastic_steps_text(const std::vector<ElasticStep>& steps);

}  // namespace trireme
