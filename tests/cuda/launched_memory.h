#pragma once
// Dynamic shared memory of launches, which the machine code does not tell, and what tests/kernels/sass.txt says of it. Kernels have the names of that file:
// without namespaces and parameters.
#include <cstdint>
#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "tests/cuda_sim/cuda_sim.h"
#include "tests/support/places.h"

namespace trireme {

/// Bytes of the last launch of each kernel since the machine was reset.
inline std::map<std::string, int64_t> launched_memory() {
  static const std::regex namespaces(R"(\(anonymous namespace\)::|\btrireme::(cuda::)?|^void )");
  std::map<std::string, int64_t> kernels;
  for (const auto& [name, bytes] : cuda_sim::launched_kernels()) {
    const std::string text = std::regex_replace(name, namespaces, "");
    kernels[text.substr(0, text.find(">(") + 1)] = bytes;
  }
  return kernels;
}

inline std::map<std::string, int64_t> recorded_memory() {
  std::map<std::string, int64_t> recorded;
  std::ifstream file(test::in_checkout("tests/kernels/sass.txt"));
  static const std::regex row(R"(^(.*?) \| .*threads .* \| dynamic (\d+) \|.*)");
  std::smatch match;
  for (std::string line; std::getline(file, line);)
    if (std::regex_match(line, match, row)) recorded[match[1]] = std::stoll(match[2]);
  return recorded;
}

}  // namespace trireme
