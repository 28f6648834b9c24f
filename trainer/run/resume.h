#pragma once
// Which checkpoint a run goes on from, and whether it may.
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/huggingface/weight_source.h"
#include "trainer/loop/trainer.h"

namespace trireme {

/// The checkpoints to try, newest first, for `resume` = auto | never | a checkpoint's directory; none: from the start.
/// Errors: ConfigError where `never`, or a checkpoint from elsewhere, would run into another run's files; MissingFileError where the run has saved checkpoints
/// and `auto` finds none; IoError.
std::vector<std::string> checkpoints_to_resume(const std::string& run_directory, const std::string& resume);

/// Errors: ConfigError where `config` would go on training something else than what was saved, or nothing but weights was; DataError where the tokens are
/// others.
/// `training_data`: TokenDataset::identity of the tokens there are now.
void check_resumable(const CheckpointReader& reader, const std::string& checkpoint, const Config& config, const std::string& training_data);

/// Errors: ConfigError where a run of `config` (resolved) cannot start from these weights: another model, with the keys that differ, or another tokenizer.
void check_initial_weights(const WeightSource& source, const Config& config);

/// The checkpoint that a run goes on from, its step, and the steps rejected in a row up to it; of a run that starts, none and 0.
struct Resumed {
  std::string checkpoint;
  int64_t step = 0;
  int64_t rejected_steps = 0;
};
/// Fills `trainer` from the first of `checkpoints` that is whole, where there are none with training.initial_weights or those of its seed; a damaged or torn
/// one before it costs a warning. `automatic`: nobody asked for a certain one. Collective.
/// Errors, on all ranks: those of check_resumable for a whole one, for no other checkpoint of the run would do better; DataError where none is whole.
Resumed load_newest(Trainer& trainer, const std::vector<std::string>& checkpoints, const Config& config, const std::string& training_data,
                    bool automatic);

/// Lines "checkpoint: key: value", "now: key: value" in which two configurations differ in a way that changes the mathematics of the run; layout, names,
/// intervals of saving and evaluation, and what `trireme plan` and the check of memory read do not. training.initial_weights does, by its text: a run goes on
/// from its own checkpoints, never from there, so what lies there may change or go, but a run that names other weights is another run.
std::string mathematical_difference(const Config& saved, const Config& now);

}  // namespace trireme
