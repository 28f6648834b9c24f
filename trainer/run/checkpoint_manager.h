#pragma once
#include <optional>
#include <string>

#include "parallel/comm/progress.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/tokenizer_copy.h"
#include "trainer/loop/trainer.h"
#include "trainer/resilience/run_lock.h"
#include "trainer/run/reporter.h"

namespace trireme {

/// Seconds for which a rank may stand still while it sets up, loads or writes a state: ten minutes, and what 100 MB/s for the whole of it take.
double state_timeout(const Config& config);

/// The checkpoints of a run under way, as its training loop sees them. Arguments outlive it; `lock` is null on all ranks but 0.
class CheckpointManager {
 public:
  /// `session`: the same on every rank, another at every start. `training_data`: TokenDataset::identity of the tokens. The tokenizer of `config` is read here: what is
  /// saved stays the one that the run began with, whatever becomes of its file. Errors: those of Tokenizer::open.
  CheckpointManager(Trainer& trainer, const Config& config, const std::string& session, std::string training_data, const RunLock* lock,
                    Reporter& reporter, Progress& progress);

  /// After `step`, the last of `rejected_steps` in a row. Returns while a thread writes, where that is asked for. A failure is reported, once for the job, and training goes on. Collective.
  /// Errors, on all ranks: IoError if this job has lost the run directory.
  void save(int64_t step, int64_t rejected_steps);
  /// Ends the save under way. Collective; errors as above.
  void finish();
  /// Reports a save that has ended by itself.
  void poll() { note(checkpointer_.take_report()); }
  /// Whether share_failures() is due: this rank knows of a failed save that the others may not know of.
  bool has_failure_to_tell() const { return !failure_to_tell_.empty(); }
  /// Rank 0 need not wait for a part that another rank cannot write, nor that rank have a way to say so on the disk. Collective; errors as above.
  void share_failures();
  /// Of the last save, on this rank.
  bool failed() const { return failed_; }

 private:
  CheckpointManager(Trainer& trainer, const Config& config, const std::string& session, std::string training_data, TokenizerCopy tokenizer,
                    const RunLock* lock, Reporter& reporter, Progress& progress);
  void note(const std::optional<SaveReport>& report);
  bool reports() const { return world_.rank() == 0; }

  Trainer& trainer_;
  Communicator& world_;
  const Config& config_;
  StoredTokenizer tokenizer_;
  std::string training_data_;
  const RunLock* lock_;
  Reporter& reporter_;
  Progress& progress_;
  Checkpointer checkpointer_;
  bool failed_ = false;
  std::string failure_to_tell_;
};

}  // namespace trireme
