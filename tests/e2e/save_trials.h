#pragma once
// CheckpointManager that are disturbed: the same run from the same checkpoint, any number of times.
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/e2e/harness.h"

namespace trireme::test {

/// `train run.yaml` without evaluation.
extern const Arguments kTrainOnly;
constexpr size_t kSteps = 6;  ///< of a trial; checkpoints every 2

size_t count(const std::string& text, const std::string& words);
std::set<std::string> names_in(const std::filesystem::path& directory);

/// A run that stands at step 2, for any number of trials to go on from, and what comes of it undisturbed.
class Trials {
 public:
  explicit Trials(const Arguments& ranks);

  std::filesystem::path path(const std::string& name) const { return directory_ / name; }
  /// A trial's run directory.
  std::string copy(const std::string& name = "trial") const;
  Outcome run(const std::string& name, const Arguments& more) const { return test::run(directory_, command(name) + more); }
  /// The trial goes on under the shim, which takes `settings` without their prefix (tests/shim/io.cpp).
  Outcome disturbed(const Arguments& settings, const Arguments& more) const;
  /// The trial goes on with so many file descriptors.
  Outcome run_with_descriptors(int limit) const;
  /// The calls with which a rank saves step 4.
  int calls_of_a_save(int rank) const;
  /// Every published checkpoint is whole, and `latest` names one. Its step.
  int64_t require_whole() const;
  /// Nothing is left of what went wrong but these checkpoints, and what was trained is what an undisturbed run trains.
  void require_as_undisturbed(const std::set<std::string>& steps) const;

 private:
  Arguments command(const std::string& name) const { return kTrainOnly + ranks_ + sets({"run.directory=" + name}); }

  TemporaryDirectory directory_;
  Arguments ranks_;
  std::vector<double> losses_;
};

}  // namespace trireme::test
