#include "trainer/loop/memory_table.h"

#include <algorithm>
#include <numeric>

#include "trainer/files/table.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

std::string text_of(int64_t bytes) { return binary_bytes_text(static_cast<double>(bytes)); }

struct Column {
  std::string head;
  const RankMemory* memory;
};

/// Indices of the `count` ranks with the highest peaks, ascending.
std::vector<size_t> greatest(const std::vector<RankMemory>& ranks, size_t count) {
  std::vector<size_t> places(ranks.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::ranges::stable_sort(places, std::ranges::greater(), [&](size_t place) { return ranks[place].peak_total; });
  places.resize(std::min(count, places.size()));
  std::ranges::sort(places);
  return places;
}

const char* peak_phase(const RankMemory& memory) {
  const auto most = std::ranges::max_element(memory.phases, {}, &MemoryPeaks::peak_total);
  return name_of(static_cast<MemoryPhase>(most - memory.phases.begin()));
}

std::string phases_text(const char* what, const std::vector<RankMemory>& ranks) {
  std::string text = concat("by phase, ", what, ":");
  for (size_t p = 0; p < kMemoryPhases; ++p) {
    int64_t most = 0;
    for (const RankMemory& rank : ranks) most = std::max(most, rank.phases[p].peak_total);
    if (most > 0) text += concat(text.back() == ':' ? " " : ", ", name_of(static_cast<MemoryPhase>(p)), " ", text_of(most));
  }
  return text;
}

ordered_json json_of(const MemoryPeaks& peaks) {
  ordered_json json;
  for (size_t c = 0; c < kMemoryCategories; ++c) json[name_of(static_cast<MemoryCategory>(c))] = peaks.peak[c];
  json["peak"] = peaks.peak_total;
  return json;
}

bool accumulates_full(const Config& config) { return zero_policy(config.parallel).gradients_resident; }

}  // namespace

std::string memory_table(const std::vector<RankMemory>& forecast, const std::vector<RankMemory>& measured, int first) {
  constexpr size_t kMost = 8;
  std::vector<Column> columns;
  for (const size_t rank : greatest(forecast, measured.empty() ? kMost : kMost / 2)) {
    columns.push_back({concat("pipeline ", static_cast<size_t>(first) + rank), &forecast[rank]});
    if (!measured.empty()) columns.push_back({concat("measured ", static_cast<size_t>(first) + rank), &measured[rank]});
  }
  const auto line = [&](const char* name, const auto& cell) {
    ordered_json row = {{"memory", name}};
    for (const Column& column : columns) row[column.head] = cell(*column.memory);
    return row;
  };
  ordered_json rows = ordered_json::array();
  for (size_t c = 0; c < kMemoryCategories; ++c)
    rows.push_back(line(name_of(static_cast<MemoryCategory>(c)), [&](const RankMemory& memory) { return text_of(memory.peak[c]); }));
  rows.push_back(line("peak of the sum", [](const RankMemory& memory) { return text_of(memory.peak_total); }));
  rows.push_back(line("phase of the peak", [](const RankMemory& memory) { return peak_phase(memory); }));
  return table_of(rows) + (measured.empty() ? phases_text("forecast", forecast) : phases_text("measured", measured));
}

ordered_json memory_json(const std::vector<RankMemory>& ranks) {
  ordered_json all = ordered_json::array();
  for (const RankMemory& rank : ranks) {
    ordered_json& json = all.emplace_back(json_of(rank));
    for (size_t p = 0; p < kMemoryPhases; ++p) json["phases"][name_of(static_cast<MemoryPhase>(p))] = json_of(rank.phases[p]);
  }
  return all;
}

bool accumulation_is_a_choice(const Config& config) {
  return zero_policy(config.parallel).may_shard_gradients && microbatches_of(config) > 1 && !needs_full_gradients(config.training.compression);
}

Config with_other_accumulation(const Config& config) {
  Config other = config;
  other.parallel.gradient_accumulation = accumulates_full(config) ? GradientAccumulation::kSharded : GradientAccumulation::kFull;
  return other;
}

std::string accumulation_text(const Config& config, const std::vector<RankMemory>& chosen, const std::vector<RankMemory>& other) {
  const auto costs = [](const char* which, const std::vector<RankMemory>& ranks) {
    int64_t held = 0;
    double sent = 0;
    for (const RankMemory& rank : ranks) {
      held = std::max(held, rank.peak[static_cast<size_t>(MemoryCategory::kGradients)]);
      sent = std::max(sent, rank.reduced_bytes);
    }
    return concat(which, " stores up to ", text_of(held), " of gradients and sends ", binary_bytes_text(sent), " per step to reduce them");
  };
  const bool full = accumulates_full(config);
  return concat("parallel.gradient_accumulation: ", costs(full ? "full" : "sharded", chosen), "; ", costs(full ? "sharded" : "full", other));
}

}  // namespace trireme
