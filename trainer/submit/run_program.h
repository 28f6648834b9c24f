#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace trireme::submit {

struct ProgramResult {
  int code = 0;  ///< 128 + n for death by signal n
  std::string out, err;
};

/// Runs command[0], looked up in PATH, without a shell, and reads what it prints. nullopt if there is no such program. A program that has not ended
/// after `timeout` is killed. `environment`: NAME=VALUE each; empty: that of this process. Errors: IoError if it cannot be started, prints more than 64 MiB, or was killed.
std::optional<ProgramResult> run_program(const std::vector<std::string>& command, std::chrono::seconds timeout = std::chrono::seconds(60),
                                         const std::vector<std::string>& environment = {});

}  // namespace trireme::submit
