#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/job/launcher.h"

namespace trireme {

/// The command line without an option, written "--option value" or "--option=value".
std::vector<std::string> without(const std::string& option, const std::vector<std::string>& words);

/// Decides how a failed job of `trireme train` goes on: by `--resume auto`, once the run directory holds what the job has done.
class Continuer {
 public:
  /// Before the first job. `resume`: as RunOptions; `words`: the ranks' command line, with it.
  Continuer(std::filesystem::path run_directory, std::string resume, std::vector<std::string> words);

  /// After a job that failed.
  Continuation operator()();

 private:
  struct State {
    std::optional<std::filesystem::path> checkpoint;
    std::filesystem::file_time_type saved{};
    std::optional<std::filesystem::file_time_type> metrics;
  };
  State look() const;
  bool goes_on(const State& now) const;
  /// What the end of metrics.jsonl tells of the job that wrote it.
  struct Tail {
    int64_t step = 0;  ///< the last that was done
    bool diverged = false;
  };
  Tail tail_of_metrics() const;

  std::filesystem::path run_;
  std::string resume_;
  std::vector<std::string> words_;
  State at_launch_, before_;
};

}  // namespace trireme
