#pragma once
// Differentially private training as one job of a run sees it: the key of its random numbers, its noise, its budget and its history. A pure function of
// what it is given, without files and ranks.
#include <cstdint>
#include <limits>
#include <string>

#include "parallel/crypto/private_random.h"
#include "trainer/config/config.h"
#include "trainer/privacy/history.h"
#include "trainer/privacy/statement.h"

namespace trireme {

/// What a job finds at its start.
struct PrivacyStart {
  int64_t step = 0;                  ///< steps of the run that are done
  int64_t total = 0;                 ///< steps of the complete run
  int64_t sequences = 0;             ///< of the training data
  std::string data;                  ///< SHA-256 of the samples of the training data
  std::string initial_weights = {};  ///< of a new run: SHA-256 of those that it reads, if any
  privacy::History saved = {};
  privacy::History known = {};  ///< of RUN/privacy.json, in the run directory and in that of the checkpoint
  std::string changes = {};     ///< made by this resume; empty if none
};

class PrivateTraining {
 public:
  /// `key`: null if this job does not make its steps private, after others that did.
  /// Errors: ConfigError, naming the key of the configuration, if the budget does not suffice, or a step would draw more sequences than there are.
  PrivateTraining(const Config& config, const PrivacyStart& start, const crypto::Key* key);

  /// Null without a key.
  const crypto::PrivateRandom* random() const { return random_ ? &*random_ : nullptr; }
  const privacy::Mechanism& mechanism() const { return history_.back().mechanism; }
  /// The last step that the budget allows; without a budget, the largest integer.
  int64_t last_step() const { return last_step_; }
  /// The loss of privacy of all jobs, after step `step` of this one.
  privacy::Epsilon epsilon(int64_t step) const;

  /// The history after step `step` of this job.
  privacy::History history(int64_t step) const;
  const privacy::Facts& facts() const { return facts_; }
  /// The bracket of the numerical accountant after step `step`; nothing if it would take too long. Takes a second.
  std::optional<privacy::Bracket> tight(int64_t step) const;
  /// Not empty if the user should know something before the first step.
  const std::string& warning() const { return warning_; }
  /// "privacy: each of 1000 sequences enters a step with probability 0.01, ...": one line for the start of a job.
  std::string text() const;

 private:
  double choose_noise(const Config& config, const PrivacyStart& start, double rate, const std::string& key, const std::string& changes) const;
  void check_budget(const Config& config, const PrivacyStart& start, bool continues);

  privacy::Facts facts_;
  privacy::History history_;  ///< as this job has found it, with its own segment last
  privacy::RdpCurve before_;  ///< of all segments but the last
  privacy::RdpCurve step_;    ///< of one step of the last
  std::optional<crypto::PrivateRandom> random_;
  int64_t last_step_ = std::numeric_limits<int64_t>::max();
  std::string warning_;
};

/// The last step to announce in RUN/privacy.json before step `step` is taken: that of the next checkpoint, but at most kMostAhead steps.
inline constexpr int64_t kMostAhead = 1000;
int64_t announced_step(int64_t step, int64_t checkpoint_every, int64_t last);

}  // namespace trireme
