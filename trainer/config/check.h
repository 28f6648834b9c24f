#pragma once
#include "trainer/config/config.h"
#include "trainer/config/report.h"

namespace trireme {

/// Every rule that needs no world size: the range and choices of each key, keys given without effect, and the rules between keys. Rules that read
/// a key already in `violations` are left out. Each violation stands at the key that is best changed.
void check(const Config& config, const Sources& sources, Violations& violations);

/// The most micro-batches x stages of a step. Every rank holds the lists of the whole pipeline in memory: two or more actions for each of them.
constexpr int64_t kMostPairs = 20'000'000;
inline bool is_short_enough(int64_t stages, int64_t microbatches) { return microbatches <= kMostPairs / stages; }

}  // namespace trireme
