#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::doctor {

enum class Grade : uint8_t { kGood, kWeak, kBad };
const char* name_of(Grade grade);  ///< "good", "weak", "bad"

/// What one check says about one rank, or about the job.
struct Finding {
  Grade grade = Grade::kGood;
  std::string text = {};    ///< the facts
  std::string remedy = {};  ///< a command or a key that helps; empty if good
  /// Findings of the same grade and group form one line, which shows the text of the one with the highest severity. Set it for measured figures, which
  /// differ a little on every host; another kind of text or remedy needs another group. Empty: findings with equal text and remedy form one line.
  std::string group = {};
  double severity = 0;

  // Set by diagnose():
  std::string check = {};
  std::vector<int> ranks = {};  ///< ranks that it holds for, ascending
  std::string worst_host = {};  ///< host of the rank whose text is shown; empty if all are of the same severity
  bool operator==(const Finding&) const = default;
};

}  // namespace trireme::doctor
