#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/core/check.h"

namespace trireme {

/// "rank 3", "ranks 3, 4", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 9 more".
inline std::string list_ranks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += concat(i == 0 ? "" : ", ", ranks[i]);
  if (ranks.size() > kMost) text += concat(" and ", ranks.size() - kMost, " more");
  return text;
}

}  // namespace trireme
