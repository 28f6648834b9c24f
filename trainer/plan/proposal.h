#pragma once
// Explains the results of a layout search: reasons, advice, and the proposed configuration.
#include "trainer/plan/search.h"

namespace trireme {

/// "12 % slower: bubble 1.31 s against 0.22 s (16 micro-batches on 16 pipeline ranks)": names the part of the step that grows most.
std::string slowdown_reason(const RankedLayout& layout, const RankedLayout& best);
/// Two sentences on the best layout and the next one with another tensor degree, pipeline degree or schedule: the parts of the step that decide, and the
/// memory of both. Empty without a second layout.
std::string winning_reason(const SearchResult& result);
/// "does not fit: pipeline rank 0 needs 93.1 GB, a device has 80.0 GB".
std::string memory_reason(const Forecast& forecast);

/// `given` with the keys that make up a layout taken from `resolved`.
Config with_layout_of(const Config& given, const Config& resolved);

/// What to change if nothing fits: the remedies; otherwise says that none was found, or what makes every layout illegal.
std::string advice(const SearchResult& result, const Config& config, const ClusterConfig& cluster);

}  // namespace trireme
