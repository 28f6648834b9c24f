#include "trainer/loop/run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <iostream>

#include "kernels/core/rng.h"
#include "trainer/config/write.h"
#include "trainer/files/durable_file.h"
#include "trainer/loop/agree.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/launcher.h"
#include "trainer/loop/learning_rate.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/reporter.h"
#include "trainer/loop/resume.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/saves.h"
#include "trainer/resilience/replica_check.h"
#include "trainer/resilience/run_lock.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// The whole state of one rank's run, set up in the order of the constructor; every step of it is agreed on by all ranks.
class Run {
 public:
  Run(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress);
  ExitCode loop();

 private:
  void open_data();
  void resume();
  void sweep_finished();
  std::vector<std::string> candidates();
  void open_directory(const std::string& checkpoint);
  void start_step(int64_t step);
  void finish_step();
  void set_patience();
  void check_replicas(int64_t step);
  void evaluate(int64_t step);
  bool evaluates_at(int64_t step) const;
  fs::path directory() const { return config_.run.directory; }
  int64_t last_step() const { return std::min(total_, options_.max_steps.value_or(total_)); }
  bool reports() const { return world_.rank() == 0; }

  Context& ctx_;
  Communicator& world_;
  Config config_;
  RunOptions options_;
  Progress& progress_;
  StopRequest stop_;
  std::string session_;  ///< the same on every rank, another at every start
  std::unique_ptr<RunData> data_;
  std::string training_data_;  ///< its fingerprint
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<RunLock> lock_;         ///< rank 0: until this run ends
  Reporter reporter_;                     ///< speaks on rank 0
  std::unique_ptr<Saves> saves_;          ///< uses the two above until its end
  std::optional<MemoryForecast> memory_;  ///< of this rank, on a GPU
  int64_t total_ = 0;
  int64_t done_ = 0;        ///< steps
  bool evaluated_ = false;  ///< after step done_, where that is due: a run may have been killed between its save and its evaluation
  struct Started {
    int64_t step;
    Trainer::StepInFlight in_flight;
  };
  std::optional<Started> started_;  ///< not yet reported
  std::chrono::steady_clock::time_point last_report_ = std::chrono::steady_clock::now();
  std::deque<double> step_seconds_;  ///< of the last steps
};

Run::Run(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress)
    : ctx_(ctx), world_(world), config_(config), options_(options), progress_(progress) {
  progress_.act("setting up");
  progress_.set_patience(state_patience(config_));
  std::map<std::string, std::string> facts;
  agree(world_, [&] {
    open_data();
    std::string validation;
    for (const ValidationSet& set : data_->validation) validation += concat(set.name, "=", set.data.fingerprint(), " ");
    facts = {{"binary", binary_digest()},
             {"configuration", to_yaml(config_)},
             {"--max-steps", std::to_string(last_step())},
             {"training data", training_data_},
             {"validation data", validation}};
  });
  check_same_everywhere(world_, facts);
  const std::string session =
      std::to_string(random_key(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()), std::to_string(getpid())));
  session_ = all_gather_strings(world_, session)[0];
  if (ctx_.device == Device::kCuda) memory_ = reserve_memory(ctx_, world_, config_);
  agree(world_, [&] { trainer_ = std::make_unique<Trainer>(ctx_, world_, config_, true); });
  trainer_->watch(progress_);
  resume();
  if (done_ >= last_step() && evaluated_) return;  // a finished run stays as it is
  if (reports()) announce_ready();                 // every rank has its StopRequest since its Run began
  agree(world_, [&] { saves_ = std::make_unique<Saves>(*trainer_, config_, session_, training_data_, lock_.get(), reporter_, progress_); });
}

void Run::open_data() {
  data_ = std::make_unique<RunData>(open_run_data(config_));
  training_data_ = std::to_string(data_->train.fingerprint());
  total_ = total_steps(config_, data_->train.sequences());
  if (config_.training.epochs) {  // the rules and the `auto` that had to wait for the number of steps
    Config counted = config_;
    counted.training.steps = total_;
    counted.training.epochs.reset();
    config_.training.schedule.decay_steps = resolve(counted, world_.size()).training.schedule.decay_steps;
  }
}

/// Loads, then locks: what is refused changes nothing in the run directory. A job on its way out may have saved meanwhile; once it is locked out, what
/// there is stays, so the second look is the last.
void Run::resume() {
  progress_.act("loading");
  std::vector<std::string> checkpoints = candidates();
  for (bool locked = false;;) {
    const Resumed resumed = load_newest(*trainer_, checkpoints, config_, training_data_, options_.resume == "auto");
    done_ = resumed.step;
    if (reports() && !resumed.checkpoint.empty()) std::cerr << concat("resuming from ", resumed.checkpoint, ", step ", done_, " of ", total_, "\n");
    agree(world_, [&] {
      if (reports()) evaluated_ = !evaluates_at(done_) || MetricsWriter::last_evaluation(directory() / "metrics.jsonl") >= done_;
    });
    evaluated_ = all_reduce_scalar(world_, reports() && !evaluated_ ? 1 : 0, ReduceOp::kMax) == 0;
    if (done_ >= last_step() && evaluated_) return sweep_finished();
    if (!locked) {
      progress_.act("waiting for the run directory's lock");
      agree(world_, [&] {
        if (!reports()) return;
        lock_ = std::make_unique<RunLock>(directory());
        remove_unpublished(directory() / "checkpoints");
      });
      locked = true;
      const std::vector<std::string> now = candidates();
      if (now != checkpoints) {
        checkpoints = now;
        continue;
      }
    }
    agree(world_, [&] {
      if (reports()) open_directory(resumed.checkpoint);
    });
    agree(world_, [&] {
      if (!fs::exists(directory() / "config.yaml"))
        throw IoError(
            concat("run.directory=", directory().string(), ": rank 0 has made it, and it is not there; it must be one place for all ranks"));
    });
    return;
  }
}

/// A finished run stays as it is, but for what a kill at its very end has left unpublished.
void Run::sweep_finished() {
  const fs::path checkpoints = directory() / "checkpoints";
  if (lock_ || !reports() || !has_unpublished(checkpoints)) return;
  try {
    const RunLock lock(directory(), false);
    remove_unpublished(checkpoints);
  } catch (const Error&) {  // another job has use for it, or nobody may write there
  }
}

/// As rank 0 sees them.
std::vector<std::string> Run::candidates() {
  std::string names;
  agree(world_, [&] {
    if (!reports()) return;
    for (const std::string& name : checkpoints_to_resume(directory().string(), options_.resume)) names += name + '\0';
  });
  names = all_gather_strings(world_, names)[0];
  std::vector<std::string> all;
  for (size_t begin = 0, end; (end = names.find('\0', begin)) != names.npos; begin = end + 1) all.push_back(names.substr(begin, end - begin));
  return all;
}

void Run::open_directory(const std::string& checkpoint) {
  const fs::path checkpoints = directory() / "checkpoints";
  fs::create_directories(checkpoints);
  sync_directory(directory());
  sync_directory(fs::absolute(directory()).parent_path());
  // Rolled back with --resume DIR: from here on the newer ones belong to another past.
  std::error_code other_run;
  if (!checkpoint.empty() && fs::equivalent(checkpoint, checkpoints / checkpoint_name(done_), other_run))
    point_latest(checkpoints, checkpoint_name(done_), session_);
  write_durably(directory() / "config.yaml", to_yaml(config_));
  const nlohmann::ordered_json environment = describe_environment(ctx_, world_.size(), trainer_->mesh().shape);
  write_durably(directory() / "environment.json", environment.dump(2) + "\n");
  reporter_.open(config_, environment, done_, total_);
  if (memory_) reporter_.message("memory of rank 0 on the GPU, bytes:\n" + memory_table(*memory_));
}

/// On a GPU the figures of a step are read while the next one runs; a CPU has them at once.
void Run::start_step(int64_t step) {
  progress_.begin_step(step);
  const double rate = learning_rate(config_.training.schedule, config_.training.optimizer, config_.training.global_batch_size, step, total_);
  Started now{step, trainer_->start(data_->train, step - 1, rate)};
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
  step_seconds_.push_back(seconds);
  set_patience();
  reporter_.step(step, result, seconds);
}

/// While steps run, a rank that stands still for five median steps is hung; the first steps make buffers and plans, and may take longer.
void Run::set_patience() {
  constexpr size_t kWindow = 21, kFewest = 3;
  if (step_seconds_.size() > kWindow) step_seconds_.pop_front();
  std::vector<double> sorted(step_seconds_.begin(), step_seconds_.end());
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  progress_.set_patience(sorted.size() < kFewest ? state_patience(config_) : std::max(config_.resilience.hang_seconds, 5 * *middle));
}

void Run::check_replicas(int64_t step) {
  progress_.act("comparing replicas");
  progress_.set_patience(state_patience(config_));
  const std::string differences = replica_differences(*trainer_);
  if (!differences.empty())
    throw AgreedError(
        ExitCode::kInternal,
        concat("after step ", step, " ranks disagree on what they hold alike; memory, a link or unlike processors may be at fault:\n", differences),
        reports());
}

void Run::evaluate(int64_t step) {
  Trainer::Evaluation all;
  std::vector<std::pair<std::string, double>> losses;
  for (const ValidationSet& set : data_->validation) {
    const Trainer::Evaluation one = trainer_->evaluate(set.data, config_.training.evaluate.batches);
    all.add(one);
    if (has_named_sets(config_)) losses.emplace_back(set.name, one.loss);
  }
  reporter_.evaluation(step, all.loss, losses);
}

bool Run::evaluates_at(int64_t step) const {
  const int64_t every = config_.training.evaluate.every;
  return !data_->validation.empty() && step > 0 && ((every > 0 && step % every == 0) || step == total_);
}

ExitCode Run::loop() {
  const int64_t last = last_step();
  if (done_ >= last && evaluated_) {
    if (reports()) std::cerr << "nothing to do: " << done_ << " of " << total_ << " steps are done" << std::endl;
    return ExitCode::kOk;
  }
  if (!evaluated_) evaluate(done_);
  bool stopped = false;
  last_report_ = std::chrono::steady_clock::now();
  for (int64_t step = done_ + 1; step <= last && !stopped; ++step) {
    start_step(step);
    constexpr double kStop = 1, kSaveFailed = 2;  // the greater is heard first, and the request stays
    const double news = all_reduce_scalar(world_, saves_->has_failure_to_tell() ? kSaveFailed : stop_.requested() ? kStop : 0, ReduceOp::kMax);
    stopped = news == kStop;
    if (news == kSaveFailed) saves_->share_failures();
    const int64_t interval = config_.checkpoint.every, check = config_.resilience.replica_check;
    const bool saves = (interval > 0 && step % interval == 0) || step == last || stopped;
    const bool checks = check > 0 && (step % check == 0 || saves);  // lest a wrong state be the only one kept
    if (checks || saves || evaluates_at(step)) finish_step();
    if (checks) check_replicas(step);
    if (saves) saves_->save(step);
    saves_->look();
    // After the save: an evaluation may take longer than a scheduler waits between its signal and the end.
    if (evaluates_at(step)) evaluate(step);
    if (checks || saves || evaluates_at(step)) last_report_ = std::chrono::steady_clock::now();
    if (checks || saves) set_patience();
    done_ = step;
  }
  progress_.act("waiting for the last checkpoint");
  progress_.set_patience(2 * state_patience(config_));
  saves_->finish();
  // Until here rank 0 may still be publishing what the others have written.
  const bool lost = all_reduce_scalar(world_, saves_->failed() ? 1 : 0, ReduceOp::kMax) > 0;
  if (lost) throw AgreedError(ExitCode::kIo, concat("the checkpoint of step ", done_, " could not be saved"), reports());
  agree(world_, [&] {
    if (const std::string trouble = reporter_.trouble(); !trouble.empty()) throw IoError(trouble + "; its last lines are lost");
  });
  if (stopped && done_ < total_) {
    reporter_.message(concat("stopped on request after step ", done_, ", checkpoint saved; the same command goes on from there"));
    return ExitCode::kRequeue;
  }
  reporter_.message(concat("done: ", done_, " of ", total_, " steps; run directory ", config_.run.directory));
  return ExitCode::kOk;
}

}  // namespace

ExitCode run_training(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress) {
  return Run(ctx, world, config, options, progress).loop();
}

}  // namespace trireme
