#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trainer/run/private_training.h"
#include "trainer/run/run_context.h"
#include "trainer/run/run_phase.h"

namespace trireme {

/// security.privacy in a run: its key, RUN/privacy.json, the budget, and what is reported.
class PrivacyPhase final : public RunPhase {
 public:
  explicit PrivacyPhase(RunContext& run) : run_(run) {}

  /// Called again under the lock on the run directory, as another job may have been ending. Collective.
  void load(const Resumed& resumed) override;
  /// Tells the trainer, and the user what the job is about to do.
  void begin();
  /// Writes the steps up to the next checkpoint to privacy.json before the first of them, so that none is forgotten if the job is killed. Collective.
  void before_step(int64_t step) override;
  void add_figures(int64_t step, nlohmann::ordered_json& fields) const override;
  void add_state(int64_t step, SavedState& state) const override;
  /// Reports at the end of a job the exact number of steps, the second accountant, and the line that an auditor reads. Collective.
  void end();

 private:
  privacy::History known_history(const Resumed& resumed) const;
  void digest_data();
  void write_statement(int64_t step, const std::optional<privacy::Bracket>& tight) const;

  RunContext& run_;
  std::unique_ptr<PrivateTraining> privacy_;     ///< with security.privacy, and after it
  std::string samples_digest_, weights_digest_;  ///< with it: PrivacyStart::data and initial_weights; empty until they are computed
  int64_t announced_ = 0;                        ///< with it: the last step in privacy.json
};

}  // namespace trireme
