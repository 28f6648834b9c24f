#pragma once
// Disturbed saves: the same run from the same checkpoint, any number of times.
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/e2e/harness.h"

namespace trireme::test {

constexpr size_t kSteps = 6;  ///< of a trial; checkpoints every 2

/// A run with a checkpoint of step 2 that any number of trials resume, and the result of an undisturbed one.
class Trials {
 public:
  explicit Trials(const Arguments& ranks);

  std::filesystem::path path(const std::string& name) const { return directory_ / name; }
  /// Copies the initial run directory for a trial.
  std::string copy(const std::string& name = "trial") const;
  Outcome run(const std::string& name, const Arguments& more) const { return test::run(directory_, command(name) + more); }
  /// Resumes the trial with the shim, whose `settings` are given without their prefix (tests/shim/io.cpp).
  Outcome disturbed(const Arguments& settings, const Arguments& more) const;
  /// Resumes the trial with a limit of `limit` file descriptors.
  Outcome run_with_descriptors(int limit) const;
  /// The number of I/O calls of a rank that saves step 4.
  int calls_of_a_save(int rank) const;
  /// Checks that every published checkpoint is valid and that `latest` names the newest one; returns its step.
  int64_t require_whole() const;
  /// Checks that exactly these checkpoints exist, without leftovers, and that the losses are those of an undisturbed run.
  void require_as_undisturbed(const std::set<std::string>& steps) const;

 private:
  Arguments command(const std::string& name) const { return kTrainOnly + ranks_ + sets({"run.directory=" + name}); }

  TemporaryDirectory directory_;
  Arguments ranks_;
  std::vector<double> losses_;
};

}  // namespace trireme::test
