#pragma once
// `trireme train --change KEY,...`: what a resumed run may train differently than its checkpoint, and how that is recorded.
#include <set>
#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/config/config.h"
#include "trainer/data/sampler.h"

namespace trireme {

/// The keys that `names` (key paths, or sections such as "training.schedule") allow a resumed run to change. A section stands for those of its keys
/// that can change.
/// Errors: ConfigError for an unknown name, with the nearest known one; for model.* and other keys that can never change, with the reason; and for
/// keys that a resumed run may change anyway.
std::set<std::string> changeable_keys(const std::vector<std::string>& names);

/// A key whose values differ between a checkpoint and the run that resumes from it, and which decides what is trained.
struct KeyDifference {
  std::string key;
  std::string before, now;              ///< as written to a file; empty if not set or without effect
  nlohmann::json old_value, new_value;  ///< null if not set or without effect
  /// The key has an effect in only one of the configurations, because another key differs: it need not be named.
  bool follows = false;
};
/// Every difference that changes the mathematics of the run, and every other one of a key in `named`, in file order.
std::vector<KeyDifference> differences(const Config& saved, const Config& now, const std::set<std::string>& named = {});

/// Lines "checkpoint: key: value", "now: key: value" for every difference that changes the mathematics of the run and is not allowed by `named`.
/// Layout, names, intervals of saving and evaluation, and keys read only by `trireme plan` and the memory check do not count.
/// training.initial_weights counts by its text: a resumed run never reads those files again, so they may change or disappear, but a different path
/// makes a different run.
std::string mathematical_difference(const Config& saved, const Config& now, const std::set<std::string>& named = {});

/// The advice at the end of a refusal because of mathematical_difference: the --change option to add, or why a key can never change. `own_run`: the
/// checkpoint lies in run.directory, so that the user may have meant another run.
std::string advice_to_change(const Config& saved, const Config& now, const std::set<std::string>& named, bool own_run);

/// True if a change of precision or of training.loss_scale makes the loss scale of fp16 start from training.loss_scale.initial.
bool restarts_loss_scale(const ConfigChange& change);

/// Position in the training data after the changes in `branch`.
DataStart data_start(const std::vector<ConfigChange>& branch);

/// What a run of `now` changes at the checkpoint `about` of configuration `saved`; `changes` is empty if nothing differs. `same_tokens`: the
/// training data contain the same tokens.
/// The position in the data is a number of samples. It is kept by a change that leaves the samples as they are, such as one of
/// training.global_batch_size: the next step begins behind the last sample that was used. With other samples, i.e. after a change of the tokens of
/// data.train, of data.weights, data.document_mask, data.packing, data.packing_window or training.sequence_length, the next step begins at place 0 of
/// their sample order.
ConfigChange change_of(const CheckpointDescription& about, const Config& saved, const Config& now, bool same_tokens,
                       const std::set<std::string>& named);

/// Refuses training.epochs where it does not determine the number of steps. Errors: ConfigError.
void check_epochs(const Config& now, const std::vector<ConfigChange>& branch);

/// What a run has behind it at its start: the counts and changes of the checkpoint that it resumes from; nothing for a new run.
struct RunHistory {
  int64_t step = 0, samples = 0, tokens = 0;
  std::vector<ConfigChange> branch = {};
  AlgorithmsByGpu product_algorithms = {};
  privacy::History privacy = {};
  bool from_peers = false;  ///< the state was in the memory of peers, and not in a checkpoint
};

}  // namespace trireme
