#pragma once
// Selects the checkpoint that a run resumes from, and checks that the configuration allows it.
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/huggingface/weight_source.h"
#include "trainer/loop/trainer.h"
#include "trainer/run/change.h"
#include "trainer/run/peer_state.h"

namespace trireme {

/// The checkpoints to try, newest first, for `resume` = auto | never | the directory of a checkpoint or of a run; empty: start from step 0.
/// Errors: ConfigError if `never`, or a checkpoint from elsewhere, would overwrite another run's files; MissingFileError if the run has saved
/// checkpoints but `auto` finds none, or a named run directory contains none; IoError.
std::vector<std::string> checkpoints_to_resume(const std::string& run_directory, const std::string& resume);

/// True if `resume` is the directory of a run rather than of a checkpoint. A name that does not exist counts as a checkpoint's.
bool is_run_directory(const std::string& resume);

/// True if the checkpoint lies in the run directory of `config`.
bool is_own(const std::string& checkpoint, const Config& config);

/// Checks that a run of `config` may continue from the checkpoint, and returns what it changes there: only keys in `named` (changeable_keys).
/// `training_data`: TokenDataset::identity of the current tokens.
/// Errors: ConfigError, with the --change option to add, if the mathematics of the run would change otherwise; ConfigError if the checkpoint contains
/// weights only; DataError if the tokens differ and data.train is not in `named`.
ConfigChange check_resumable(const CheckpointReader& reader, const std::string& checkpoint, const Config& config, const std::string& training_data,
                             const std::set<std::string>& named);

/// training.initial_weights. If the run has no adapters, those of the weights are merged. Errors: those of WeightSource.
std::unique_ptr<WeightSource> open_initial_weights(const Config& config);
/// Checks that a run of `config` (resolved) can start from these weights. Errors: ConfigError if the model, with the keys that differ, the
/// adapters or the tokenizer differ.
void check_initial_weights(const WeightSource& source, const Config& config);

/// The checkpoint that a run resumes from, or PeerState::name(), its step, and the number of consecutive rejected steps up to it, of this rank's island; empty and 0 for a new
/// run.
struct Resumed {
  std::string checkpoint;
  int64_t step = 0;
  int64_t rejected_steps = 0;
  RunHistory history = {};
  StopState early_stopping = {};
  std::vector<StepFigures> anomaly_window = {};  ///< AnomalyWindow::state
  std::vector<int> micro_batches = {};           ///< CheckpointDescription::micro_batches
  std::optional<PeerGeneration> peers = {};      ///< the peer copies that `checkpoint` names
  bool changed = false;                          ///< the last entry of history.branch is a change made by this resume
};
/// Loads `peers`, if given, or else the first valid one of `checkpoints` into `trainer`; without any, initialises it from training.initial_weights or the
/// seed.
/// Incomplete and damaged checkpoints are skipped with a warning if `automatic`, i.e. if the user named no checkpoint.
/// `named`: the keys that may change (changeable_keys). Collective.
/// Errors, on all ranks: those of check_resumable for a valid checkpoint, since they apply to all of the run; DataError if none is valid; ConfigError
/// if keys may change, but there is no checkpoint.
Resumed load_newest(Trainer& trainer, const std::vector<std::string>& checkpoints, const Config& config, const std::string& training_data,
                    bool automatic, const std::set<std::string>& named, PeerState* peers = nullptr);

}  // namespace trireme
