#include "trainer/run/resume.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>

#include "trainer/config/load.h"
#include "trainer/data/dataset.h"
#include "trainer/files/printable.h"
#include "trainer/loop/state.h"
#include "trainer/machine/collectively.h"
#include "trainer/run/metrics_sink.h"
#include "trainer/tokenizer/tokenizer.h"

namespace fs = std::filesystem;

namespace trireme {

static std::vector<std::string> checkpoints_in(const std::string& run_directory) {
  std::vector<std::string> found;
  for (const fs::path& checkpoint : checkpoints_of(run_directory)) found.push_back(checkpoint.string());
  return found;
}

/// Called when no checkpoint was found: fails if metrics.jsonl records one, because an unmounted file system must not look like a run without
/// checkpoints.
static std::vector<std::string> checkpoints_that_were_saved(const std::string& run_directory) {
  const fs::path metrics = fs::path(run_directory) / "metrics.jsonl", directory = fs::path(run_directory) / "checkpoints";
  const MetricsHistory before = MetricsSink::history(metrics);
  // Look again: a running job may have saved its first checkpoint meanwhile. Unpublished ones are restored once this job has the lock.
  std::vector<std::string> candidates = checkpoints_in(run_directory);
  if (!candidates.empty() || before.checkpoint.empty() || has_unpublished(directory)) return candidates;
  throw MissingFileError(
      concat("run.directory=", run_directory, ": ", metrics.string(), " records ", before.checkpoint, ", and ", directory.string(),
             " contains no checkpoint; restore it (is its file system mounted?), or start over with --resume never, which keeps the ",
             "previous metrics under another name"));
}

bool is_run_directory(const std::string& resume) {
  std::error_code ignored;
  return resume != "auto" && resume != "never" && !fs::exists(fs::symlink_status(fs::path(resume) / kManifestName, ignored)) &&
         fs::is_directory(fs::path(resume) / "checkpoints", ignored);
}

std::vector<std::string> checkpoints_to_resume(const std::string& run_directory, const std::string& resume) {
  std::vector<std::string> candidates = checkpoints_in(run_directory);
  if (resume == "auto") {
    if (candidates.empty()) candidates = checkpoints_that_were_saved(run_directory);
    return candidates;
  }
  if (resume != "never") {
    std::error_code ignored;
    const bool of_run = is_run_directory(resume);
    if (of_run && checkpoints_in(resume).empty()) throw MissingFileError(concat("--resume ", resume, ": this run has no checkpoint yet"));
    if (of_run && (candidates.empty() || fs::equivalent(resume, run_directory, ignored))) return checkpoints_in(resume);
    const auto is_it = [&](const std::string& candidate) { return fs::equivalent(candidate, resume, ignored); };
    if (!candidates.empty() && fs::exists(resume) && std::none_of(candidates.begin(), candidates.end(), is_it))
      throw ConfigError(
          concat("--resume ", resume, ": run.directory=", run_directory,
                 " already contains checkpoints from a different history of this run; allowed one of those, or a different run.directory"));
    return {resume};
  }
  if (!candidates.empty())
    throw ConfigError(
        concat("run.directory=", run_directory, ": already contains a run; allowed a different directory, or --resume auto to continue it"));
  return {};
}

bool is_own(const std::string& checkpoint, const Config& config) {
  std::error_code ignored;
  const fs::path checkpoints = fs::path(config.run.directory) / "checkpoints", absolute = fs::absolute(checkpoint).lexically_normal();
  const fs::path named = absolute.has_filename() ? absolute : absolute.parent_path();
  return fs::equivalent(named.parent_path(), checkpoints, ignored) ||
         fs::equivalent(fs::canonical(named, ignored).parent_path(), checkpoints, ignored);  // given as a link to it
}

ConfigChange check_resumable(const CheckpointReader& reader, const std::string& checkpoint, const Config& config, const std::string& training_data,
                             const std::set<std::string>& named) {
  Config saved = saved_config(reader, checkpoint);
  // Version 0.1 saved 0 for a rate that was not set. Both are the same decay up to the last step.
  if (ScheduleConfig& schedule = saved.training.schedule; !config.training.schedule.final_learning_rate && schedule.final_learning_rate == 0.0)
    schedule.final_learning_rate.reset();
  const auto is_weight = [](const auto& tensor) { return tensor.first.starts_with("weight/"); };
  const bool has_state = traits_of(saved.training.optimizer.name.value()).states > 0;
  if (has_state && std::all_of(reader.tensors().begin(), reader.tensors().end(), is_weight))
    throw ConfigError(concat("cannot resume from ", checkpoint,
                             ": it contains only weights, not the state of a run; to start a run from them, use --set ",
                             "training.initial_weights=", checkpoint));
  const bool own = is_own(reader.directory().string(), config);
  const std::string difference = mathematical_difference(saved, config, named);
  if (!difference.empty())
    throw ConfigError(concat("cannot resume from ", checkpoint, ": the configuration changes what is trained:\n", difference,
                             advice_to_change(saved, config, named, own)));
  if (Tokenizer::open(config.data.tokenizer).digest() != reader.description().tokenizer.digest)
    throw ConfigError(concat("cannot resume from ", checkpoint, ": data.tokenizer=", config.data.tokenizer,
                             ": differs from the tokenizer it was trained with, ", reader.tokenizer_spec(),
                             own ? "; use a different run.directory for a different run" : "; a resumed run keeps its tokenizer"));
  const bool same_tokens = same_data(reader.description().training_data, training_data);
  // The identity of the tokens includes the document boundaries only with a document mask, so it cannot be compared across a change of the mask.
  const bool comparable = saved.data.document_mask == config.data.document_mask;
  if (!same_tokens && comparable && !named.contains("data.train"))
    throw DataError(concat("cannot resume from ", checkpoint,
                           ": data.train contains different tokens than when it was saved; to continue with them, add --change data.train",
                           own ? "; use a different run.directory for a different run" : ""));
  const CheckpointDescription& about = reader.description();
  ConfigChange change = change_of(about, saved, config, same_tokens || !comparable, named);
  std::vector<ConfigChange> branch = about.branch;
  if (!change.changes.empty()) branch.push_back(change);
  check_epochs(config, branch);
  return change;
}

std::unique_ptr<WeightSource> open_initial_weights(const Config& config) {
  const Adapters adapters = config.model.adapter.rank > 0 ? Adapters::kApart : Adapters::kMerged;
  return std::make_unique<WeightSource>(config.training.initial_weights, WeightKind::kTrained, adapters);
}

void check_initial_weights(const WeightSource& source, const Config& config) {
  const std::string where = concat("training.initial_weights=", config.training.initial_weights, ": ");
  const std::string difference = model_difference(config.model, source.model());
  if (!difference.empty()) throw ConfigError(concat(where, "model differs from the configured one; allowed a configuration with\n", difference));
  const auto adapters = [](const ModelConfig& model) {
    std::vector<AdapterSpec> all;
    for (int64_t block = 0; block < model.layers; ++block) all.push_back(block_spec(model, block).adapter);
    return all;
  };
  if (source.model().adapter.rank > 0 && adapters(source.model()) != adapters(config.model))
    throw ConfigError(concat(where,
                             "its adapters are not those of the section adapter; allowed the same rank, scale and layers, or a folder in which they "
                             "are merged (checkpoint export --format hf)"));
  if (source.tokenizer().empty()) return;
  if (!same_ids(Tokenizer::open(source.tokenizer()), Tokenizer::open(config.data.tokenizer)))
    throw ConfigError(
        concat(where, "trained with a different tokenizer than data.tokenizer=", config.data.tokenizer, "; allowed ", source.tokenizer()));
}

/// Runs `body`, which throws only errors that all ranks agree on; returns data, missing-file and I/O errors instead of throwing them.
static std::optional<AgreedError> damage_in(const std::function<void()>& body) {
  try {
    body();
  } catch (const AgreedError& error) {
    if (error.code() != ExitCode::kData && error.code() != ExitCode::kMissingFile && error.code() != ExitCode::kIo) throw;
    return error;
  }
  return std::nullopt;
}

/// Initialises the weights of a new run. Collective.
static void begin(Trainer& trainer, const Config& config) {
  const std::string& from = config.training.initial_weights;
  Communicator& world = trainer.mesh().world;
  if (from == "none") {
    if (config.model.adapter.rank > 0 && config.model.frozen.empty() && world.rank() == 0)
      std::cerr << "warning: adapters are trained on random weights; training.initial_weights names those of a model\n";
    return trainer.initialise();
  }
  std::unique_ptr<WeightSource> source;
  collectively(world, [&] {
    source = open_initial_weights(config);
    check_initial_weights(*source, config);
  });
  if (world.rank() == 0) {
    if (const std::string& problem = source->tokenizer_problem(); !problem.empty())
      std::cerr << concat("warning: ", printable(problem), "; not compared with data.tokenizer\n");
    std::cerr << concat("starting from the weights in ", source->path(), source->merges_adapters() ? ", with its adapters merged" : "", "\n");
  }
  if (config.model.adapter.rank > 0 && source->model().adapter.rank == 0) trainer.initialise();  // the adapters, which the source lacks
  load_weights(trainer, *source);
  const NonFinite found = non_finite_weights(trainer);
  collectively(world, [&] { refuse_non_finite(source->path(), found); });
}

/// Reports if only one of checkpoint and run has a moving average of the weights.
static void note_average(const CheckpointReader& reader, const std::string& checkpoint, const Config& config) {
  const bool kept = config.training.ema.decay.has_value();
  if (kept == reader.has_kind(kAverageName)) return;
  std::cerr << concat("note: ", checkpoint,
                      kept ? " has no moving average of the weights; training.ema starts from its weights\n"
                           : " has a moving average of the weights, which is dropped because training.ema.decay is not set\n");
}

/// Refuses a checkpoint whose name and manifest disagree on the step: the order of the checkpoints would be wrong.
static std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& checkpoint) {
  auto reader = std::make_unique<CheckpointReader>(checkpoint);
  if (const std::string problem = reader->name_mismatch(); !problem.empty()) throw DataError(problem);
  return reader;
}

/// `change`: what this resume changes; without keys, nothing. `island`: of this rank.
static Resumed resumed_from(const std::string& checkpoint, const CheckpointDescription& about, const ConfigChange& change, int64_t island) {
  Resumed resumed{checkpoint,
                  about.step,
                  about.rejections_of_island(island),
                  {about.step, about.samples, about.tokens, about.branch, about.product_algorithms, about.privacy},
                  about.early_stopping,
                  about.anomaly_window,
                  about.micro_batches,
                  {},
                  !change.changes.empty()};
  if (resumed.changed) resumed.history.branch.push_back(change);
  return resumed;
}

/// A state that a run may continue from: a checkpoint, or the copies of peers.
struct Candidate {
  std::string name;
  PeerState* peers = nullptr;
};

/// Opens the candidate on all ranks. Errors: those that damage_in() returns.
static std::unique_ptr<CheckpointReader> open_candidate(const Candidate& candidate, Communicator& world) {
  if (candidate.peers != nullptr) return candidate.peers->open();
  std::unique_ptr<CheckpointReader> reader;
  collectively(world, [&] { reader = open_checkpoint(candidate.name); });
  return reader;
}

/// The first load from peers only finds out which files this rank needs.
static std::string load_candidate(Trainer& trainer, const Candidate& candidate, CheckpointReader& reader, bool new_loss_scale) {
  if (candidate.peers != nullptr) candidate.peers->fetch(reader.absent_files_of([&] { load_state(trainer, reader, new_loss_scale); }));
  return load_state(trainer, reader, new_loss_scale);
}

Resumed load_newest(Trainer& trainer, const std::vector<std::string>& checkpoints, const Config& config, const std::string& training_data,
                    bool automatic, const std::set<std::string>& named, PeerState* peers) {
  std::vector<Candidate> candidates;
  if (peers != nullptr) candidates.push_back({peers->name(), peers});
  for (const std::string& checkpoint : checkpoints) candidates.push_back({checkpoint});
  if (candidates.empty()) {
    collectively(trainer.mesh().world, [&] {
      if (!named.empty()) throw ConfigError(concat("--change: run.directory=", config.run.directory, " contains no checkpoint to resume from"));
    });
    begin(trainer, config);
    return {};
  }
  Communicator& world = trainer.mesh().world;
  std::optional<AgreedError> damage;
  for (const Candidate& candidate : candidates) {
    const std::string& name = candidate.name;
    std::unique_ptr<CheckpointReader> reader;
    ConfigChange change;
    damage = damage_in([&] { reader = open_candidate(candidate, world); });
    if (!damage) {
      collectively(world, [&] { change = check_resumable(*reader, name, config, training_data, named); });
      damage = damage_in([&] {
        const std::string note = load_candidate(trainer, candidate, *reader, restarts_loss_scale(change));
        if (!note.empty() && world.rank() == 0) std::cerr << concat("note: ", note, "\n");
      });
    }
    if (!damage) {
      if (world.rank() == 0) note_average(*reader, name, config);
      Resumed resumed = resumed_from(name, reader->description(), change, trainer.mesh().at.island);
      if (candidate.peers != nullptr) resumed.peers = candidate.peers->generation();
      resumed.history.from_peers = candidate.peers != nullptr;
      trainer.set_data_start(data_start(resumed.history.branch));
      return resumed;
    }
    if (automatic && world.rank() == 0) std::cerr << concat("warning: skipping ", name, ": ", printable(damage->what()), "\n");
  }
  if (!automatic) throw *damage;
  // Starting over could destroy recoverable data.
  if (checkpoints.empty())
    throw AgreedError(ExitCode::kData,
                      concat("cannot resume from ", peers->name(), ": ", damage->what(), "; there is no checkpoint; remove ",
                             (fs::path(config.run.directory) / kPeerRecordName).string(), " to start over"),
                      world.rank() == 0);
  throw AgreedError(
      ExitCode::kData,
      concat("no checkpoint in ", fs::path(checkpoints.front()).parent_path().string(), " can be read: ", damage->what(), "; ", kStartAgain),
      world.rank() == 0);
}

}  // namespace trireme
