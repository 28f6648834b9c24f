#pragma once
// A training job that is watched and disturbed while it runs.
#include <map>

#include "tests/e2e/harness.h"

namespace trireme::test {

/// `trireme train run.yaml` of `directory` (prepare_run), into `directory`/`run`; what it says goes to files, so that it can be read at any time.
class LiveJob {
 public:
  LiveJob(const TemporaryDirectory& directory, const std::string& run, const Arguments& arguments, const Arguments& environment = {});

  /// Until metrics.jsonl holds step `step` or a later one. False: the job ended first.
  bool wait_for_step(size_t step);
  /// Seconds until standard error holds `text`; negative if the job ended without, or after `limit` seconds.
  double wait_for_error(const std::string& text, double limit);
  /// Seconds until no process of the job is left; negative after `limit`.
  double wait_until_gone(double limit) const;
  Outcome wait();

  /// Processes of the ranks, which have just been started or are at work. Fails the test unless there are `count`.
  std::map<int, pid_t> ranks(size_t count) const;
  pid_t mpirun() const;
  void signal(int number) const { process_.signal(number); }  ///< to the launcher
  std::string err() const { return read_file(err_); }
  const std::filesystem::path& run_directory() const { return run_; }
  size_t last_step() const;  ///< in metrics.jsonl; 0 without

 private:
  bool over() const;
  std::filesystem::path run_, out_, err_;
  Process process_;
};

/// Preloads tests/shim/behave.cpp: rank `rank` does `deed` once `trigger` exists and holds `text`.
Arguments misbehaviour(int rank, const std::string& deed, const std::filesystem::path& trigger, const std::string& text = "");

}  // namespace trireme::test
