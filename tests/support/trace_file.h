#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace trireme::test {

/// The contents of a Chrome trace. `problem` is a violation in it, "" if there is none: invalid JSON, two events of one row at the same time, a row
/// or process without a name, a transfer with only one end, one that arrives before it leaves, or in no event.
struct TraceFile {
  std::string problem;
  std::map<int, std::string> processes;                   ///< names, by pid
  std::map<std::pair<int, std::string>, int64_t> events;  ///< by pid and name of the row
  std::map<std::pair<int, std::string>, double> busy;     ///< microseconds, likewise
  int64_t arrows = 0;                                     ///< transfers with both ends
};
TraceFile read_trace(const std::string& text);

}  // namespace trireme::test
