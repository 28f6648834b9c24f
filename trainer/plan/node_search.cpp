#include "trainer/plan/node_search.h"

#include "kernels/core/check.h"
#include "trainer/files/table.h"
#include "trainer/plan/text.h"

namespace trireme {
namespace {

constexpr double kTokens = 1e9;  ///< for which device hours and costs are given

double tokens_per_second(const NodeCount& count) {
  return count.best().forecast.tokens_per_second_per_device * static_cast<double>(count.cluster.devices());
}

std::vector<int64_t> counts_to_try(const Config& config, const ClusterConfig& cluster) {
  const std::optional<int64_t> fewest = fewest_nodes(config, cluster);
  if (!fewest) return {};
  std::vector<int64_t> counts{*fewest};
  for (int64_t nodes = 1; nodes <= kMostTimesFewest * *fewest && nodes * cluster.devices_per_node <= kMostDevices; nodes *= 2)
    if (nodes > *fewest) counts.push_back(nodes);
  return counts;
}

}  // namespace

NodeSearch search_nodes(const Config& config, const ClusterConfig& cluster, const std::function<void(double)>& progress) {
  NodeSearch search;
  const std::vector<int64_t> counts = counts_to_try(config, cluster);
  for (size_t i = 0; i < counts.size(); ++i) {
    NodeCount count{.cluster = cluster, .found = {}};
    count.cluster.nodes = counts[i];
    const auto share = [&](double done) {
      if (progress) progress((static_cast<double>(i) + done) / static_cast<double>(counts.size()));
    };
    count.found = search_layouts(config, count.cluster, share, {.advise = false});
    if (count.found.layouts.empty()) continue;
    count.device_hours = kTokens / count.best().forecast.tokens_per_second_per_device / 3600;
    if (const std::optional<double>& price = cluster.device.price_per_hour) count.cost = *price * count.device_hours;
    search.counts.push_back(std::move(count));
    const size_t last = search.counts.size() - 1;
    if (search.counts[last].device_hours < search.counts[search.cheapest].device_hours) search.cheapest = last;
    if (tokens_per_second(search.counts[last]) > tokens_per_second(search.counts[search.fastest])) search.fastest = last;
  }
  if (search.counts.empty()) return search;
  NodeCount& cheapest = search.counts[search.cheapest];  // only for this one, because batches are found by further searches
  cheapest.found.batches = batches_without_idle_ranks(config, cheapest.cluster, cheapest.best().forecast);
  return search;
}

std::string node_search_text(const NodeSearch& search) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < search.counts.size(); ++i) {
    const NodeCount& count = search.counts[i];
    std::string remark;
    const auto add = [&](bool applies, const char* word) {
      if (applies) remark += concat(remark.empty() ? "" : ", ", word);
    };
    add(i == 0, "fewest");
    add(i == search.cheapest, "cheapest");
    add(i == search.fastest, "fastest");
    add(count.best().forecast.tight, "tight");
    rows.push_back({{"nodes", std::to_string(count.cluster.nodes)},
                    {"devices", std::to_string(count.cluster.devices())},
                    {"layout", count.best().layout},
                    {"step", seconds_text(count.best().forecast.step_seconds)},
                    {"device hours per 1e9 tokens", number_text(count.device_hours)}});
    if (count.cost) rows.back()["cost per 1e9 tokens"] = number_text(*count.cost);
    rows.back()["is"] = remark;
  }
  return "numbers of nodes, each with its fastest layout that fits:\n" + table_of(rows);
}

nlohmann::ordered_json node_search_json(const NodeSearch& search) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < search.counts.size(); ++i) {
    const NodeCount& count = search.counts[i];
    rows.push_back({{"nodes", count.cluster.nodes},
                    {"devices", count.cluster.devices()},
                    {"layout", count.best().layout},
                    {"step_seconds", count.best().forecast.step_seconds},
                    {"tokens_per_second", tokens_per_second(count)},
                    {"device_hours_per_billion_tokens", count.device_hours},
                    {"cost_per_billion_tokens", count.cost ? nlohmann::ordered_json(*count.cost) : nlohmann::ordered_json()},
                    {"fewest", i == 0},
                    {"cheapest", i == search.cheapest},
                    {"fastest", i == search.fastest}});
  }
  return rows;
}

}  // namespace trireme
