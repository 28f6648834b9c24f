#pragma once
// What `trireme plan` says of layouts, for people and for programs.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/plan/search.h"

namespace trireme {

/// FLOPs of a step with what recomputation adds over those without it, all of attention counted in both: what turns MFU into the hardware utilisation
/// that SC'21 (arXiv:2104.04473) publishes. A block that recomputes in full counts as one more forward.
double recomputation_factor(const Config& config);

/// Of one layout: model, memory of each pipeline rank against the device, where the step's time goes, MFU under each convention, throughput; with
/// `tokens` what training on so many takes, costs (where the device has a price) and uses (where it has watts).
std::string plan_text(const RankedLayout& plan, const ClusterConfig& cluster, std::optional<double> tokens);

/// {"layout", "step_seconds", "tokens_per_second_per_gpu", "mfu", "bubble", "fits", "memory_bytes": [peak of each pipeline rank],
/// "step_seconds_range", "mfu_full_attention", "mfu_with_recomputation", "tokens_per_day", "parts": {seconds by what the slowest rank does},
/// "memory": [{bytes by category}], "memory_limit_bytes", "reason": null or why it is not the best}; with `tokens` {"training": {"tokens", "days",
/// "device_hours", "cost", "kilowatt_hours"}}.
nlohmann::ordered_json plan_json(const RankedLayout& plan, const ClusterConfig& cluster, std::optional<double> tokens);

/// The best layouts as a ranked table with the reasons of losers, what came nearest where few fit, and the advice.
std::string search_text(const SearchResult& result);

}  // namespace trireme
