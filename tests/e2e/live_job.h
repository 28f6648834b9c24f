#pragma once
// A training job that a test observes and disturbs while it runs.
#include <functional>
#include <map>

#include "tests/e2e/harness.h"

namespace trireme::test {

/// `trireme train run.yaml` in `directory` (prepare_run), with run directory `directory`/`run`. Its output goes to files, so that it can be read at
/// any time.
class LiveJob {
 public:
  LiveJob(const TemporaryDirectory& directory, const std::string& run, const Arguments& arguments, const Arguments& environment = {},
          const std::string& program = kBinary, std::chrono::seconds limit = std::chrono::seconds(100));

  /// Waits until metrics.jsonl contains step `step` or a later one. Returns false if the job ends first.
  bool wait_for_step(size_t step);
  /// Waits until `done` returns true, which is called every 10 ms. Returns false if the job ends first.
  bool wait_until(const std::function<bool()>& done);
  /// Seconds until standard error contains `text`; negative if the job ends first, or after `limit` seconds.
  double wait_for_error(const std::string& text, double limit);
  /// Seconds until all processes of the job have ended; negative after `limit`.
  double wait_until_gone(double limit) const;
  Outcome wait();

  /// Processes of the ranks, by rank. Waits for them and fails the test unless there are `count`.
  std::map<int, pid_t> ranks(size_t count) const;
  pid_t mpirun() const;
  void signal(int number) const { process_.signal(number); }  ///< sent to the launcher
  std::string err() const { return read_file(err_); }
  const std::filesystem::path& run_directory() const { return run_; }
  size_t last_step() const;  ///< in metrics.jsonl; 0 if there is none

 private:
  bool over() const;
  std::filesystem::path run_, out_, err_;
  Process process_;
};

/// Preloads tests/shim/behave.cpp: rank `rank` does `deed` once `trigger` exists and contains `text`.
Arguments misbehaviour(int rank, const std::string& deed, const std::filesystem::path& trigger, const std::string& text = "");

}  // namespace trireme::test
