#include "trainer/loop/run.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "kernels/core/rng.h"
#include "trainer/config/write.h"
#include "trainer/data/tokenizer.h"
#include "trainer/files/durable_file.h"
#include "trainer/loop/agree.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/launcher.h"
#include "trainer/loop/learning_rate.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/metrics.h"
#include "trainer/loop/state.h"
#include "trainer/model/flops.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// The whole state of one rank's run, set up in the order of the constructor; every step of it is agreed on by all ranks.
class Run {
 public:
  Run(Context& ctx, Communicator& world, const Config& config, const RunOptions& options);
  ExitCode loop();

 private:
  void open_data();
  void load(const std::string& checkpoint);
  void open_directory();
  void start_step(int64_t step);
  void finish_step();
  void evaluate(int64_t step);
  void save(int64_t step);
  void note_save_error(const std::optional<std::string>& error);
  int64_t last_step() const { return std::min(total_, options_.max_steps.value_or(total_)); }
  bool reports() const { return world_.rank() == 0; }

  Context& ctx_;
  Communicator& world_;
  Config config_;
  RunOptions options_;
  StopRequest stop_;
  std::shared_ptr<void> lock_;  ///< rank 0: on the run directory, until this run ends
  std::unique_ptr<TokenDataset> train_, validation_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<MetricsWriter> metrics_;    ///< rank 0
  std::unique_ptr<ConsoleReporter> console_;  ///< rank 0
  std::optional<MemoryForecast> memory_;      ///< of this rank, on a GPU
  double flops_per_token_ = 0;
  int64_t total_ = 0;
  int64_t done_ = 0;  ///< steps
  struct Started {
    int64_t step;
    Trainer::StepInFlight in_flight;
  };
  std::optional<Started> started_;  ///< not yet reported
  std::chrono::steady_clock::time_point last_report_ = std::chrono::steady_clock::now();
  bool save_failed_ = false;  ///< the last save, on this rank
};

Run::Run(Context& ctx, Communicator& world, const Config& config, const RunOptions& options)
    : ctx_(ctx), world_(world), config_(config), options_(options) {
  std::map<std::string, std::string> facts;
  agree(world_, [&] {
    open_data();
    facts = {{"binary", binary_digest()},
             {"configuration", to_yaml(config_)},
             {"--max-steps", std::to_string(last_step())},
             {"training data", std::to_string(train_->fingerprint())},
             {"validation data", validation_ ? std::to_string(validation_->fingerprint()) : ""}};
  });
  check_same_everywhere(world_, facts);
  std::string checkpoint;  // empty: from the start
  agree(world_, [&] {
    if (reports()) checkpoint = checkpoint_to_resume(config_.run.directory, options_.resume).value_or("");
  });
  checkpoint = all_gather_strings(world_, checkpoint)[0];
  if (ctx_.device == Device::kCuda) memory_ = reserve_memory(ctx_, world_, config_);
  agree(world_, [&] { trainer_ = std::make_unique<Trainer>(ctx_, world_, config_, true); });
  if (checkpoint.empty()) {
    trainer_->initialise();
  } else {
    load(checkpoint);
  }
  if (done_ >= last_step()) return;  // a finished run stays as it is
  agree(world_, [&] {
    if (!reports()) return;
    lock_ = lock_run_directory(config_.run.directory);
    if (checkpoint_to_resume(config_.run.directory, options_.resume).value_or("") != checkpoint)
      throw ConfigError(
          concat("run.directory=", config_.run.directory, ": another job has just saved there; the same command again goes on from it"));
    open_directory();
  });
  agree(world_, [&] {
    if (!fs::exists(fs::path(config_.run.directory) / "config.yaml"))
      throw IoError(concat("run.directory=", config_.run.directory, ": rank 0 has made it, and it is not there; it must be one place for all ranks"));
  });
  if (reports()) announce_ready();  // every rank has its StopRequest since its Run began
  const std::string session =
      std::to_string(random_key(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()), std::to_string(getpid())));
  checkpointer_ =
      std::make_unique<Checkpointer>(CheckpointOptions{fs::path(config_.run.directory) / "checkpoints", all_gather_strings(world_, session)[0],
                                                       world_.rank(), world_.size(), config_.checkpoint.keep, config_.checkpoint.asynchronous});
}

void Run::open_data() {
  train_ = std::make_unique<TokenDataset>(open_dataset(config_, config_.data.train));
  if (!config_.data.validation.empty()) validation_ = std::make_unique<TokenDataset>(open_dataset(config_, config_.data.validation));
  total_ = total_steps(config_, train_->sequences());
  if (config_.training.epochs) {  // the rules and the `auto` that had to wait for the number of steps
    Config counted = config_;
    counted.training.steps = total_;
    counted.training.epochs.reset();
    config_.training.schedule.decay_steps = resolve(counted, world_.size()).training.schedule.decay_steps;
  }
  flops_per_token_ = training_flops_per_token(config_.model, config_.training.sequence_length);
}

void Run::load(const std::string& checkpoint) {
  std::unique_ptr<CheckpointReader> reader;
  agree(world_, [&] {
    reader = std::make_unique<CheckpointReader>(checkpoint);
    const CheckpointDescription& saved = reader->description();
    const std::string difference = mathematical_difference(saved_config(*reader, checkpoint), config_);
    if (!difference.empty())
      throw ConfigError(concat("cannot resume from ", checkpoint, ": the configuration has changed what is trained:\n", difference,
                               "use another run.directory for another run"));
    if (saved.training_data != std::to_string(train_->fingerprint()))
      throw DataError(concat("cannot resume from ", checkpoint,
                             ": data.train holds other tokens than when it was saved; use another run.directory for another run"));
    done_ = saved.step;
  });
  load_state(*trainer_, *reader);
  if (reports()) std::cerr << "resuming from " << checkpoint << ", step " << done_ << " of " << total_ << "\n";
}

void Run::open_directory() {
  const fs::path directory = config_.run.directory;
  fs::create_directories(directory / "checkpoints");
  write_durably(directory / "config.yaml", to_yaml(config_));
  const nlohmann::ordered_json environment = describe_environment(ctx_, world_.size(), trainer_->mesh().shape);
  write_durably(directory / "environment.json", environment.dump(2) + "\n");
  MetricsWriter::cut_back(directory / "metrics.jsonl", done_);
  metrics_ = std::make_unique<MetricsWriter>(directory / "metrics.jsonl");
  console_ = std::make_unique<ConsoleReporter>(total_, standard_output_is_terminal());
  const int64_t parameters = parameter_count(config_.model);
  metrics_->event("start", {{"step", done_},
                            {"steps", total_},
                            {"parameters", parameters},
                            {"world_size", world_.size()},
                            {"layout", environment["layout"]},
                            {"version", environment["version"]}});
  console_->message(concat(config_.run.name, ": ", config_.model.architecture, " with ", parameters, " parameters, tensor ", config_.parallel.tensor,
                           " x pipeline ", config_.parallel.pipeline, " x data ", *config_.parallel.data, ", ZeRO-", config_.parallel.zero_stage,
                           ", ", config_.training.precision, "; ", total_, " steps of ", config_.training.global_batch_size, " x ",
                           config_.training.sequence_length, " tokens"));
  if (memory_) console_->message("memory of rank 0 on the GPU, bytes:\n" + memory_table(*memory_));
}

/// On a GPU the figures of a step are read while the next one runs; a CPU has them at once.
void Run::start_step(int64_t step) {
  const double rate = learning_rate(config_.training.schedule, config_.training.optimizer, config_.training.global_batch_size, step, total_);
  Started now{step, trainer_->start(*train_, step - 1, rate)};
  finish_step();
  started_ = std::move(now);
  if (ctx_.device != Device::kCuda) finish_step();
}

void Run::finish_step() {
  if (!started_) return;
  const int64_t step = started_->step;
  const StepResult result = trainer_->finish(started_->in_flight);
  started_.reset();
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(last_report_, now)).count();
  if (!reports()) return;
  const auto tokens = config_.training.global_batch_size * config_.training.sequence_length;
  const double rate_of_tokens = static_cast<double>(tokens) / seconds;
  const StepMetrics line{step,          result.loss, result.grad_norm, result.learning_rate,
                         step * tokens, seconds,     rate_of_tokens,   flops_per_token_ * rate_of_tokens / 1e12,
                         std::nullopt};
  metrics_->step(line);
  console_->step(line);
  if (result.accepted) return;
  metrics_->event("rejected_step", {{"step", step}, {"parameter", result.offender}});
  console_->message(concat("step ", step, " rejected on every rank: the gradient", result.offender.empty() ? "" : " of " + result.offender,
                           " is not finite; weights are unchanged"));
}

void Run::evaluate(int64_t step) {
  const double loss = trainer_->evaluate(*validation_, config_.training.evaluate.batches).loss;
  if (!reports()) return;
  metrics_->evaluation(step, loss);
  console_->evaluation(step, loss);
}

void Run::save(int64_t step) {
  note_save_error(checkpointer_->finish());  // of the save before this one
  save_failed_ = false;
  const int64_t tokens = step * config_.training.global_batch_size * config_.training.sequence_length;
  const MeshShape& mesh = trainer_->mesh().shape;
  checkpointer_->save({step,
                       tokens,
                       trainer_->accepted_steps(),
                       to_yaml(config_),
                       describe_model(config_.model),
                       config_.data.tokenizer,
                       std::to_string(train_->fingerprint()),
                       {{"pipeline", mesh.pipeline}, {"replicate", mesh.replicate}, {"shard", mesh.shard}, {"tensor", mesh.tensor}}},
                      state_tensors(*trainer_));
}

/// A rank that cannot write makes rank 0's save fail too, with the cause: one message for the job.
void Run::note_save_error(const std::optional<std::string>& error) {
  if (!error) return;
  save_failed_ = true;
  if (reports()) console_->message(*error + "; older checkpoints stand");
}

ExitCode Run::loop() {
  const int64_t last = last_step();
  if (done_ >= last) {
    if (reports()) std::cerr << "nothing to do: " << done_ << " of " << total_ << " steps are done" << std::endl;
    return ExitCode::kOk;
  }
  bool stopped = false;
  last_report_ = std::chrono::steady_clock::now();
  for (int64_t step = done_ + 1; step <= last && !stopped; ++step) {
    start_step(step);
    stopped = all_reduce_scalar(world_, stop_.requested() ? 1 : 0, ReduceOp::kMax) > 0;
    const int64_t interval = config_.checkpoint.every, every = config_.training.evaluate.every;
    const bool saves = (interval > 0 && step % interval == 0) || step == last || stopped;
    const bool evaluates = validation_ && ((every > 0 && step % every == 0) || step == total_);
    if (saves || evaluates) finish_step();
    if (saves) save(step);
    note_save_error(checkpointer_->take_error());
    // After the save: an evaluation may take longer than a scheduler waits between its signal and the end.
    if (evaluates) evaluate(step);
    if (saves || evaluates) last_report_ = std::chrono::steady_clock::now();
    done_ = step;
  }
  note_save_error(checkpointer_->finish());
  // Until here rank 0 may still be publishing what the others have written.
  const bool lost = all_reduce_scalar(world_, save_failed_ ? 1 : 0, ReduceOp::kMax) > 0;
  if (lost) throw AgreedError(ExitCode::kIo, concat("the checkpoint of step ", done_, " could not be saved"), reports());
  if (stopped && done_ < total_) {
    if (reports()) console_->message(concat("stopped on request after step ", done_, ", checkpoint saved; the same command goes on from there"));
    return ExitCode::kRequeue;
  }
  if (reports()) console_->message(concat("done: ", done_, " of ", total_, " steps; run directory ", config_.run.directory));
  return ExitCode::kOk;
}

}  // namespace

TokenDataset open_dataset(const Config& config, const std::vector<std::string>& directories) {
  return {directories, config.training.sequence_length, *config.model.vocab_size, make_tokenizer(config.data.tokenizer).digest()};
}

Config saved_config(const CheckpointReader& reader, const std::string& checkpoint) {
  try {
    return resolve(parse_config(reader.description().config, checkpoint + "/manifest.json"));
  } catch (const ConfigError& error) {
    throw DataError(concat(checkpoint, ": the configuration saved in it is not valid: ", error.what()));
  }
}

int64_t total_steps(const Config& config, int64_t sequences) {
  if (config.training.steps) return *config.training.steps;
  return Sampler{0, sequences, config.training.global_batch_size}.steps_for(config.training.epochs.value());
}

std::optional<std::string> checkpoint_to_resume(const std::string& run_directory, const std::string& resume) {
  if (resume != "auto" && resume != "never") return resume;
  std::vector<std::string> warnings;
  const auto newest = find_newest_checkpoint(run_directory, warnings);
  if (resume == "never") {
    if (newest || fs::exists(fs::path(run_directory) / "metrics.jsonl"))
      throw ConfigError(concat("run.directory=", run_directory, ": already holds a run; allowed another directory, or --resume auto to continue it"));
    return std::nullopt;
  }
  for (const std::string& warning : warnings) std::cerr << "warning: " << warning << "\n";
  if (!newest) return std::nullopt;
  return newest->string();
}

std::shared_ptr<void> lock_run_directory(const std::string& run_directory) {
  std::error_code error;
  fs::create_directories(run_directory, error);
  const std::string path = run_directory + "/run.lock";
  const int file = error ? -1 : ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0)
    throw IoError(concat("run.directory=", run_directory, ": cannot be written: ", error ? error.message() : std::generic_category().message(errno)));
  std::shared_ptr<void> lock(nullptr, [file](void*) { ::close(file); });
  // The ranks of a job whose launcher was killed live on for some seconds.
  for (int tenths = 0; ::flock(file, LOCK_EX | LOCK_NB) != 0; ++tenths) {
    if (tenths == 80)
      throw ConfigError(concat("run.directory=", run_directory, ": another job trains there; allowed another directory, or to wait for its end"));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return lock;
}

std::string mathematical_difference(const Config& saved, const Config& now) {
  const auto neutral = [](Config config) {
    const RunConfig run = config.run;
    config.run = {};
    config.run.seed = run.seed;
    config.kernels = {};
    config.parallel = {};
    config.checkpoint = {};
    config.training.evaluate = {};
    config.training.logits_chunk.reset();
    config.training.micro_batch_size = 1;
    config.data.validation.clear();
    // Where the schedule does not look at the end of training, training longer changes nothing that was done.
    if (config.training.schedule.name == "constant") {
      config.training.steps = 1;
      config.training.epochs.reset();
    }
    return config;
  };
  // The resolved file has one key a line, sections one level of indentation deeper.
  const auto lines = [](const std::string& text) {
    std::vector<std::string> all, sections;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      const size_t indent = line.find_first_not_of(' ');
      if (indent == std::string::npos || line[indent] == '#') continue;
      sections.resize(indent / 2);
      std::string key;
      for (const std::string& section : sections) key += section + ".";
      if (line.back() == ':')
        sections.push_back(line.substr(indent, line.size() - indent - 1));
      else
        all.push_back(key + line.substr(indent));
    }
    return all;
  };
  const std::vector<std::string> a = lines(to_yaml(neutral(saved))), b = lines(to_yaml(neutral(now)));
  std::string difference;
  for (const std::string& line : a)
    if (std::find(b.begin(), b.end(), line) == b.end()) difference += "  checkpoint: " + line + "\n";
  for (const std::string& line : b)
    if (std::find(a.begin(), a.end(), line) == a.end()) difference += "  now:        " + line + "\n";
  return difference;
}

ExitCode run_training(Context& ctx, Communicator& world, const Config& config, const RunOptions& options) {
  return Run(ctx, world, config, options).loop();
}

}  // namespace trireme
