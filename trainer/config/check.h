#pragma once
#include <string>

#include "trainer/config/config.h"
#include "trainer/config/report.h"

namespace trireme {

/// Checks every rule that does not need the world size: range and choices of each key, keys without effect, and rules between keys. Skips rules that
/// read a key already in `violations`. Each violation is reported at the key that the user should change.
void check(const Config& config, const Sources& sources, Violations& violations);

/// Maximum of micro-batches x stages per step. Every rank keeps the lists of the whole pipeline in memory: two or more actions for each pair.
constexpr int64_t kMaxActionPairs = 20'000'000;
inline bool fits_action_limit(int64_t stages, int64_t microbatches) { return microbatches <= kMaxActionPairs / stages; }

/// The first factor of the number of ranks in a text: "islands 2 x ", or "" with one island, which texts need not name.
std::string islands_text(const ParallelConfig& parallel);

}  // namespace trireme
