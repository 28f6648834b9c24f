#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/progress.h"
#include "trainer/audit/run_audit.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/tokenizer_copy.h"
#include "trainer/loop/trainer.h"
#include "trainer/resilience/run_lock.h"
#include "trainer/run/reporter.h"

namespace trireme {

/// Timeout in seconds for a rank that sets up, loads or writes a state: ten minutes plus the time for the complete state at 100 MB/s.
double state_timeout(const Config& config);

/// What the state of a run has beside that of the trainer.
struct SavedState {
  int64_t padding = 0;         ///< StepResult::padding of all steps since the start of this job
  int64_t rejected_steps = 0;  ///< how many steps in a row were rejected, up to this one
  StopState early_stopping = {};
  std::vector<StepFigures> anomaly_window = {};  ///< AnomalyWindow::state
  privacy::History privacy = {};                 ///< what the run has released up to the step
};

/// Saves the checkpoints of a running training loop. Arguments must outlive it; `lock` is null on all ranks but 0.
class CheckpointManager {
 public:
  /// `session`: equal on every rank, new at every start. `training_data`: TokenDataset::identity of the tokens. Reads the tokenizer of `config` here,
  /// so that every checkpoint contains the one that the run started with, even if its file changes. Errors: those of Tokenizer::open.
  /// `history`: of the checkpoint that the run resumed from; its counts continue, and its changes and algorithms enter every checkpoint. `audit`: with
  /// security.audit, on rank 0; else null.
  CheckpointManager(Trainer& trainer, const Config& config, const std::string& session, std::string training_data, RunHistory history,
                    const RunLock* lock, Reporter& reporter, Progress& progress, audit::RunAudit* audit = nullptr);

  /// Saves the state after `step`, with `state` of what is beside the trainer. With checkpoint.asynchronous a thread writes after the return. A failure is
  /// reported once per job, and training continues.
  /// Collective. Errors, on all ranks: IoError if this job has lost the lock on the run directory.
  void save(int64_t step, const SavedState& state);
  /// What save() says of the state. Collective.
  CheckpointDescription describe(int64_t step, const SavedState& state) const;
  /// Step of the last save of this job, or of the checkpoint that it resumed from.
  int64_t last_saved() const { return last_saved_; }
  /// With checkpoint.keep_best: adds the validation loss after `step` to its checkpoint, if this job saved it or resumed from it, once it is published.
  void evaluated(int64_t step, double loss);
  /// With checkpoint.keep_best: removes what the last evaluation has made superfluous. Call after finish(), at the end.
  void remove_old();
  /// Waits for the save in progress. Collective; errors as above.
  void finish();
  /// Reports a save that has finished in the background, if any.
  void poll();
  /// Rank 0: the outcome of the last save, once it has been reported; null before.
  const SaveReport* outcome() const { return outcome_ ? &*outcome_ : nullptr; }
  /// Not empty if share_failures() must be called: why a save failed on this rank, which other ranks may not know.
  const std::string& unshared_failure() const { return failure_to_tell_; }
  /// Exchanges failures between ranks without using the disk, so that rank 0 stops waiting for a part that cannot be written. Collective; errors as
  /// above.
  void share_failures();
  /// True if the last save failed on this rank.
  bool failed() const { return failed_; }
  /// Rank 0: true if it failed because the state is not finite.
  bool not_finite() const { return failed_ && outcome_ && outcome_->not_finite; }

 private:
  CheckpointManager(Trainer& trainer, const Config& config, const std::string& session, std::string training_data, RunHistory history,
                    TokenizerCopy tokenizer, const RunLock* lock, Reporter& reporter, Progress& progress, audit::RunAudit* audit = nullptr);
  void note(const std::optional<SaveReport>& report);
  void record_evaluation();
  bool reports() const { return world_.rank() == 0; }

  Trainer& trainer_;
  Communicator& world_;
  const Config& config_;
  StoredTokenizer tokenizer_;
  std::string training_data_;
  RunHistory history_;
  const RunLock* lock_;
  Reporter& reporter_;
  Progress& progress_;
  Checkpointer checkpointer_;
  int64_t last_saved_;  ///< step of the last save of this job, or of the checkpoint that it resumed from
  std::optional<SaveReport> outcome_;
  bool in_flight_ = false;                               ///< rank 0: the last save has not been reported
  std::optional<std::pair<int64_t, double>> evaluated_;  ///< rank 0: step and loss of the last evaluation, until it is recorded
  bool failed_ = false;
  std::string failure_to_tell_;
};

}  // namespace trireme
