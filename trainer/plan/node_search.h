#pragma once
// Search over numbers of nodes: `trireme plan --nodes auto --search`.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/plan/search.h"

namespace trireme {

/// Largest number of nodes tried, as a multiple of the smallest on which the model fits.
inline constexpr int64_t kMostTimesFewest = 16;

/// A number of nodes with its search, in which at least one layout fits.
struct NodeCount {
  ClusterConfig cluster;
  SearchResult found;
  double device_hours = 0;     ///< per 1e9 tokens
  std::optional<double> cost;  ///< the same in the currency of device.price_per_hour
  const RankedLayout& best() const { return found.layouts.front(); }
};

struct NodeSearch {
  std::vector<NodeCount> counts;  ///< ascending
  size_t cheapest = 0;            ///< index of the fewest device hours per token; ties: the fewest nodes
  size_t fastest = 0;             ///< index of the most tokens per second
};

/// Searches layouts on the smallest number of nodes on which the model fits, and on the powers of two above it up to kMostTimesFewest times as many,
/// with the same global batch. Numbers of nodes on which no layout is legal or fits are left out. Better batches are looked for on the cheapest number
/// of nodes. `progress`: as in search_layouts().
NodeSearch search_nodes(const Config& config, const ClusterConfig& cluster, const std::function<void(double)>& progress = {});

/// Table of the numbers of nodes.
std::string node_search_text(const NodeSearch& search);
/// [{"nodes", "devices", "layout", "step_seconds", "tokens_per_second", "device_hours_per_billion_tokens", "cost_per_billion_tokens": null without a
/// price, "fewest", "cheapest", "fastest"}].
nlohmann::ordered_json node_search_json(const NodeSearch& search);

}  // namespace trireme
