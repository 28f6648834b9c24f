#pragma once
// The files of a run, for tests that run one in their own process.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace trireme::test {

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::filesystem::path path;
};

/// Writes a token directory of `count` bytes.
void write_tokens(const std::filesystem::path& directory, int64_t count, uint64_t values = 256);

/// [step, loss, gradient norm] of every line of a run's metrics.jsonl that is a step.
std::vector<nlohmann::json> steps_of(const std::filesystem::path& run_directory);

/// The validation loss of every evaluation of a run.
std::vector<double> validation_losses_of(const std::filesystem::path& run_directory);

}  // namespace trireme::test
