#pragma once
#include <optional>
#include <string>

#include "trainer/config/rules.h"

namespace trireme {

/// A relieved rank of resilience.reroute, written "DATA/PIPELINE".
struct RelievedRank {
  int64_t data = 0, pipeline = 0;
  bool operator==(const RelievedRank&) const = default;
};
/// nullopt unless the text is two numbers in plain digits with a slash between them.
std::optional<RelievedRank> parse_relieved_rank(const std::string& text);

/// The rules of resilience.reroute: which ranks can be relieved.
void check_reroute(Rules& rules, const Config& c);

}  // namespace trireme
