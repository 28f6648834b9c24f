#pragma once
// Output of `trireme plan`, as text and as JSON.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/plan/search.h"

namespace trireme {

/// Ratio of a step's FLOPs with and without recomputation, both counting full attention. Turns MFU into the hardware utilisation of SC'21
/// (arXiv:2104.04473). Full recomputation of a block counts as one more forward.
double recomputation_factor(const Config& config);

/// Report on one layout: model, memory of each pipeline rank against the device, step time by cause, MFU under each convention, throughput,
/// and warnings about sizes that GPUs compute slowly. With `tokens` also time, cost (if the device has a price) and energy (if it has watts) of training
/// on that many tokens.
std::string plan_text(const RankedLayout& plan, const ClusterConfig& cluster, std::optional<double> tokens);

/// {"layout", "step_seconds", "tokens_per_second_per_gpu", "mfu", "bubble", "fits", "memory_bytes": [peak of each pipeline rank],
/// "step_seconds_range", "mfu_full_attention", "mfu_with_recomputation", "tokens_per_day", "parts": {seconds of the critical-path rank by cause},
/// "memory": [{bytes by category}], "memory_limit_bytes", "reason": null or why it is not the best, "warnings": shape_warnings()}; with `tokens`
/// {"training": {"tokens", "days", "device_hours", "cost", "kilowatt_hours"}}.
nlohmann::ordered_json plan_json(const RankedLayout& plan, const ClusterConfig& cluster, std::optional<double> tokens);

/// What is assumed of the software beyond Trireme's defaults: "; with the kernels and overlap of torchtitan; software.context 2", or nothing.
std::string software_text(const ClusterConfig& cluster);
/// Every key of the cluster's `software`: {"stack", "straggler", "compiled", "fp8", "context"}.
nlohmann::ordered_json software_json(const ClusterConfig& cluster);

/// Why the first layout is the best, a ranked table of the best layouts with the reason why each is not the best, the layouts closest to fitting,
/// better batch sizes, and the advice.
std::string search_text(const SearchResult& result);

}  // namespace trireme
