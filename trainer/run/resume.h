#pragma once
// Selects the checkpoint that a run resumes from, and checks that the configuration allows it.
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/huggingface/weight_source.h"
#include "trainer/loop/trainer.h"

namespace trireme {

/// The checkpoints to try, newest first, for `resume` = auto | never | a checkpoint's directory; empty: start from step 0.
/// Errors: ConfigError if `never`, or a checkpoint from elsewhere, would overwrite another run's files; MissingFileError if the run has saved
/// checkpoints but `auto` finds none; IoError.
std::vector<std::string> checkpoints_to_resume(const std::string& run_directory, const std::string& resume);

/// Checks that a run of `config` may continue from the checkpoint. `training_data`: TokenDataset::identity of the current tokens.
/// Errors: ConfigError if the mathematics of the run would change, or the checkpoint contains weights only; DataError if the tokens differ.
void check_resumable(const CheckpointReader& reader, const std::string& checkpoint, const Config& config, const std::string& training_data);

/// Checks that a run of `config` (resolved) can start from these weights. Errors: ConfigError if the model, with the keys that differ, or the
/// tokenizer differs.
void check_initial_weights(const WeightSource& source, const Config& config);

/// The checkpoint that a run resumes from, its step, and the number of consecutive rejected steps up to it; empty and 0 for a new run.
struct Resumed {
  std::string checkpoint;
  int64_t step = 0;
  int64_t rejected_steps = 0;
};
/// Loads the first valid one of `checkpoints` into `trainer`; without checkpoints, initialises it from training.initial_weights or the seed.
/// Incomplete and damaged checkpoints are skipped with a warning if `automatic`, i.e. if the user named no checkpoint. Collective.
/// Errors, on all ranks: those of check_resumable for a valid checkpoint, since they apply to all of the run; DataError if none is valid.
Resumed load_newest(Trainer& trainer, const std::vector<std::string>& checkpoints, const Config& config, const std::string& training_data,
                    bool automatic);

/// Lines "checkpoint: key: value", "now: key: value" for every difference that changes the mathematics of the run. Layout, names, intervals of saving
/// and evaluation, and keys read only by `trireme plan` and the memory check do not count. training.initial_weights counts by its text: a resumed run
/// never reads those files again, so they may change or disappear, but a different path makes a different run.
std::string mathematical_difference(const Config& saved, const Config& now);

}  // namespace trireme
