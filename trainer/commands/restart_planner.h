#pragma once
#include <filesystem>
#include <ios>
#include <optional>
#include <string>
#include <vector>

#include "trainer/job/launcher.h"

namespace trireme {

/// Returns the command line without an option, given as "--option value" or "--option=value".
std::vector<std::string> without(const std::string& option, const std::vector<std::string>& words);

/// Decides how a failed job of `trireme train` restarts: with `--resume auto` as soon as the run directory contains results of the job.
class RestartPlanner {
 public:
  /// Call before the first job. `resume`: see RunOptions; `words`: the ranks' command line, including --resume.
  RestartPlanner(std::filesystem::path run_directory, std::string resume, std::vector<std::string> words);

  /// Call after a job failed.
  Continuation operator()();

 private:
  struct State {
    std::optional<std::filesystem::path> checkpoint;
    std::filesystem::file_time_type saved{};
    std::optional<std::filesystem::file_time_type> metrics;
  };
  State look() const;
  bool resumes_automatically(const State& now) const;
  /// Information from the end of metrics.jsonl about the job that wrote it.
  struct Tail {
    int64_t step = 0;                  ///< last completed step
    std::string no_retry_reason = {};  ///< why another try would end the same way; empty: unknown
    bool is_whole_file = true;
  };
  Tail tail_of_metrics() const;
  Tail tail_of_metrics(std::streamoff bytes) const;

  std::filesystem::path run_;
  std::string resume_;
  std::vector<std::string> words_;
  State at_launch_, before_;
};

}  // namespace trireme
