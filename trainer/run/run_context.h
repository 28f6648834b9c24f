#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/audit/run_audit.h"
#include "trainer/job/stop_signals.h"
#include "trainer/loop/trainer.h"
#include "trainer/resilience/run_lock.h"
#include "trainer/run/checkpoint_manager.h"
#include "trainer/run/rank_figures.h"
#include "trainer/run/reporter.h"
#include "trainer/run/run.h"
#include "trainer/run/run_data.h"
#include "trainer/run/steady_steps.h"
#include "trainer/run/step_timeout.h"

namespace trireme {

class RunPhase;

/// Seconds, for a rank that waits for other jobs, which may take as long as they like.
inline constexpr double kNoTimeLimit = 1e9;

/// Measures the steps of a job.
struct StepClock {
  std::optional<RankFigures> figures;  ///< from the first step on
  StepTimeout timeout{};
  SteadySteps steady;
  std::chrono::steady_clock::time_point last_report = std::chrono::steady_clock::now();

  /// `step` has ended. Returns its seconds. `traced`: it does not count for the forecast.
  double finish(int64_t step, const StepResult& result, bool traced);
  /// After something other than training, whose time does not belong to the next step.
  void interrupt();
};

/// What a run and its phases share. A member may use those before it until its destruction.
struct RunContext {
  Context& ctx;
  Communicator& world;
  Config config;
  RunOptions options;
  Progress& progress;
  StopRequest stop{};
  std::string session = {};             ///< equal on every rank, new at every start
  std::vector<std::string> hosts = {};  ///< of each rank
  std::unique_ptr<RunData> data = {};
  std::string training_data = {};  ///< TokenDataset::identity of the training set
  std::unique_ptr<Trainer> trainer = {};
  std::unique_ptr<RunLock> lock = {};                   ///< rank 0: held until this run ends
  bool has_lock = false;                                ///< this job holds it; the same on all ranks
  std::unique_ptr<audit::RunAudit> audit = {};          ///< rank 0, with security.audit
  Reporter reporter = {};                               ///< has an effect on rank 0 only; may write to `audit`
  std::unique_ptr<CheckpointManager> checkpoints = {};  ///< uses `lock`, `audit` and `reporter` until its destruction
  StepClock clock = {};
  RunHistory history = {};  ///< of the checkpoint that the run resumed from, with this resume's change and algorithms
  int64_t total = 0;
  int64_t done = 0;                                          ///< steps completed
  int64_t affordable = std::numeric_limits<int64_t>::max();  ///< the last step that the privacy budget allows
  int64_t padding = 0;                                       ///< StepResult::padding of the steps reported since the start of this job
  std::vector<RunPhase*> phases = {};                        ///< in the order in which their hooks are called

  std::filesystem::path directory() const { return config.run.directory; }
  bool reports() const { return world.rank() == 0; }
  bool coordinates() const { return options.federation && options.federation->coordinates; }
  bool is_member() const { return options.federation && !options.federation->coordinates; }
  Rounds rounds() const { return is_member() ? Rounds{.round = options.federation->round_steps, .last = total} : rounds_of(config.training, total); }
  /// The last step of this job. With training.local and training.asynchronous a round is not cut short: only after
  /// it a state can be saved.
  int64_t last_step() const { return rounds().end_of(std::min({total, affordable, options.max_steps.value_or(total)})); }
  /// Whether islands decide anything alone within a round.
  bool islands_decide() const { return config.parallel.islands > 1 && !has_parameter_servers(config.training); }
  bool evaluates_at(int64_t step) const;
  double learning_rate_of(int64_t step) const;
  /// Writes to this rank's own log.
  void log(RankRecord::Level level, const std::string& text) const;
  void set_timeout() { progress.set_timeout(clock.timeout.seconds()); }
  /// True on every rank if any rank has received a stop request. Collective.
  bool stop_agreed() const;
  /// What the state after `step` has of the phases.
  SavedState state(int64_t step) const;
  /// Errors, on all ranks: AgreedError if copies of the state differ between ranks. Collective.
  void check_replicas(int64_t step);
};

}  // namespace trireme
