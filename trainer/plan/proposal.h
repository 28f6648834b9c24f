#pragma once
// What a search says about its layouts, in words and as a file.
#include "trainer/plan/search.h"

namespace trireme {

/// "12 % slower: bubble 1.31 s against 0.22 s (16 micro-batches on 16 pipeline ranks)": the part of the step that grows most.
std::string why_slower(const RankedLayout& layout, const RankedLayout& best);
/// "does not fit: pipeline rank 0 needs 93.1 GB of 80.0".
std::string why_too_large(const Forecast& forecast);

/// `given`, with of `resolved` what a layout consists of.
Config as_written(const Config& given, const Config& resolved);

/// What to change where nothing fits: the remedies; else that nothing was found to help, or which rule no layout can keep.
std::string advice(const SearchResult& result, const Config& config, const ClusterConfig& cluster);

}  // namespace trireme
