// Set-up of a run before its first step.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/core/counted.h"
#include "kernels/core/rng.h"
#include "kernels/core/writable_file.h"
#include "trainer/config/write.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/job/launcher.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/collectively.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/memory_table.h"
#include "trainer/loop/product_tuning.h"
#include "trainer/loop/recompute.h"
#include "trainer/plan/shape_rates.h"
#include "trainer/run/audit_sink.h"
#include "trainer/run/metrics_sink.h"
#include "trainer/run/rank_run.h"
#include "trainer/run/resume.h"

namespace trireme {

namespace fs = std::filesystem;

static std::string names_of(const std::set<std::string>& keys) {
  std::string names;
  for (const std::string& key : keys) names += key + " ";
  return names;
}

Run::Run(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress, CommunicationLog* log,
         ExchangeLog& exchanges)
    : ctx_(ctx), world_(world), config_(config), options_(options), progress_(progress), exchanges_(exchanges) {
  progress_.act("setting up");
  progress_.set_timeout(state_timeout(config_));
  std::map<std::string, std::string> facts;
  collectively(world_, [&] {
    open_data();
    check_trace_steps(options_, config_, total_);
    if (reports() && ctx_.device == Device::kCuda && config_.kernels.tuning_file != "none") check_tuning_file(config_.kernels.tuning_file);
    const std::string gpu = ctx_.device == Device::kCuda ? ctx_.gpu->properties().name : "";
    if (!coordinates()) forecast_ = forecast_run(config_, world_.size(), options_.ranks_per_host.value_or(world_.size()), gpu);
    std::string validation;
    for (const ValidationSet& set : data_->validation) validation += concat(set.name, "=", set.data.identity(), " ");
    facts = {{"binary", binary_digest()},
             {"configuration", to_yaml(config_)},
             {"--max-steps", std::to_string(last_step())},
             {"--change", names_of(options_.change)},
             {"--trace-steps", options_.trace_steps ? to_string(*options_.trace_steps) : "none"},
             {"schedule", to_text(training_schedule(config_))},  // each rank may have read it from a file
             {"training data", training_data_},
             {"validation data", validation}};
  });
  check_same_everywhere(world_, facts);
  if (reports()) {
    std::vector<std::string> doubts = data_->train.suspicions();
    for (const ValidationSet& set : data_->validation) std::ranges::copy(set.data.suspicions(), std::back_inserter(doubts));
    for (const std::string& doubt : doubts) std::cerr << concat("warning: ", printable(doubt), "\n");
  }
  const std::string session =
      std::to_string(random_key(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()), std::to_string(getpid())));
  session_ = all_gather_strings(world_, session)[0];
  hosts_ = all_gather_strings(world_, host_name());
  make_trainer();
  open_peer_copies();
  if (log != nullptr) tracer_.emplace(*trainer_, *log, options_.trace_steps.value(), directory());
  resume();
  if (tracer_ && reports() && done_ >= options_.trace_steps->last)
    std::cerr << concat("--trace-steps=", to_string(*options_.trace_steps), ": nothing to trace, ", done_, " steps are already done\n");
  if (finished() && !has_unsaved_state()) return;  // a finished run is not changed
  tune();
  if (reports()) announce_ready(options_.environment);  // every rank has had a StopRequest since the start of its command
  collectively(world_, [&] {
    checkpoints_ =
        std::make_unique<CheckpointManager>(*trainer_, config_, session_, training_data_, history_, lock_.get(), reporter_, progress_, audit_.get());
  });
  const std::vector<Dataset::Group> groups = data_->train.groups();
  if (reports() && groups.size() > 1)
    blend_.emplace(static_cast<uint64_t>(config_.run.seed), groups, config_.training.global_batch_size, data_start(history_.branch));
  if (recalled_loss_) checkpoints_->evaluated(done_, *recalled_loss_);
  begin_peer_copies();
}

void Run::make_trainer() {
  RankMemory mine, otherwise;
  std::vector<Recompute> recompute;
  LoweredSchedule schedule;
  const bool choice = accumulation_is_a_choice(config_);
  collectively(world_, [&] {
    recompute = recompute_policy(config_);
    schedule = lowered_schedule(config_);
    mine = forecast_memory(config_, world_.rank(), world_.size(), recompute, schedule);
    if (choice) otherwise = forecast_memory(with_other_accumulation(config_), world_.rank(), world_.size(), recompute);
  });
  const MeshShape mesh = mesh_shape(config_.parallel);
  memory_ = memory_by_pipeline_rank(world_, mesh, mine);
  if (ctx_.device != Device::kCuda && config_.plan.must_fit)
    check_host_memory(world_, host_name(), static_cast<double>(mine.peak_total), host_memory());
  if (choice) accumulation_ = "\n" + accumulation_text(config_, memory_, memory_by_pipeline_rank(world_, mesh, otherwise));
  if (config_.training.recompute == RecomputeMode::kBudget) recompute_ = "\n" + recompute_text(config_, schedule.stage_rank, recompute);
  if (ctx_.device == Device::kCuda) reserve_memory(ctx_, world_, config_, mine);
  collectively(world_, [&] { trainer_ = std::make_unique<Trainer>(ctx_, world_, config_, true, recompute, schedule); });
  if (ctx_.device == Device::kCuda) register_memory(world_);
  trainer_->watch(progress_);
  trainer_->set_last_step(total_);
  trainer_->set_learning_rates([this](int64_t step) { return learning_rate_of(step + 1); });
}

/// A run that was stopped before its last evaluation still rehearses a step, because the evaluation uses the step's algorithms.
void Run::tune() {
  progress_.act("timing matrix products");
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<TunedProducts> tuned =
      tune_products(*trainer_, data_->train, std::min(done_, total_ - 1), std::exchange(history_.product_algorithms, {}));
  if (!tuned) return;
  history_.product_algorithms = tuned->algorithms;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!tuned->note.empty()) reporter_.message("note: " + tuned->note);
  reporter_.event("tuned_products", done_, {{"timed", tuned->timed}, {"known", tuned->known}, {"seconds", seconds}},
                  concat("algorithms of matrix products: ", counted(tuned->timed, "kind"), " timed, ", tuned->known, " known (",
                         config_.kernels.tuning_file, ")"));
}

void Run::open_data() {
  data_ = std::make_unique<RunData>(coordinates() ? no_run_data(config_) : open_run_data(config_));
  training_data_ = coordinates() ? "of the members of a federation" : data_->train.identity();
  if (config_.observe.samples.every > 0) open_samples();
  total_ = total_steps(config_, data_->train.sequences());
  if (config_.training.epochs) {  // rules and `auto` values that depend on the number of steps
    Config counted = config_;
    counted.training.steps = total_;
    counted.training.epochs.reset();
    config_.training.schedule.decay_steps = resolve(counted, world_.size()).training.schedule.decay_steps;
  }
}

/// Loads before locking, so that a refused run changes nothing in the run directory. A job that is ending may save meanwhile; under the lock the set
/// of checkpoints is final, so it is listed again once. A run that may continue from copies of peers takes the lock first, because a running job replaces
/// its own.
void Run::resume() {
  progress_.act("loading");
  if (may_have_peer_copies()) take_lock();
  std::vector<std::string> checkpoints = candidates();
  for (;;) {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_ptr<PeerState> peers = has_lock_ && may_have_peer_copies() ? find_peer_state(checkpoints) : nullptr;
    const Resumed resumed = load_newest(*trainer_, checkpoints, config_, training_data_,
                                        options_.resume == "auto" || is_run_directory(options_.resume), options_.change, peers.get());
    peers.reset();
    load_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    done_ = resumed.step;
    history_ = resumed.history;
    resumed_peers_ = resumed.peers;
    if (reports() && !resumed.checkpoint.empty()) std::cerr << concat("resuming from ", resumed.checkpoint, ", step ", done_, " of ", total_, "\n");
    open_privacy(resumed);
    recall_evaluation(resumed);
    if (finished() && !has_unsaved_state()) return sweep_finished(resumed);
    read_replay();
    if (!has_lock_) {
      take_lock();
      const std::vector<std::string> now = candidates();
      if (now != checkpoints || may_have_peer_copies()) {
        checkpoints = now;
        continue;
      }
      open_privacy(resumed);
    }
    const bool islands = islands_decide();
    const int64_t island = trainer_->mesh().at.island;
    rejected_ = RejectedSteps(config_.training.max_rejected_steps, resumed.rejected_steps, islands ? concat(" by island ", island) : "");
    if (islands && island > 0 && trainer_->mesh().step.rank() == 0) reporter_.keep_island_events();
    window_ = AnomalyWindow(config_.observe.anomalies, resumed.anomaly_window);
    rank_window_ = RankWindow(config_.observe.anomalies);
    resume_split(resumed);
    resume_order(resumed);
    collectively(world_, [&] {
      if (reports()) open_directory(resumed);
    });
    collectively(world_, [&] {
      if (!fs::exists(directory() / "config.yaml"))
        throw IoError(
            concat("run.directory=", directory().string(), ": created by rank 0, but not visible on this rank; it must be shared by all ranks"));
    });
    begin_privacy();
    open_record();
    return;
  }
}

void Run::take_lock() {
  progress_.act("waiting for the run directory's lock");
  std::string stopped;
  collectively(world_, [&] {
    if (!reports()) return;
    try {
      lock_ = std::make_unique<RunLock>(directory(), [this] { return !stop_.requested(); });
      remove_unpublished(directory() / "checkpoints");
    } catch (const Error& error) {
      if (error.code() != ExitCode::kRequeue) throw;
      stopped = error.what();
    }
  });
  if (all_reduce_scalar(world_, stopped.empty() ? 0 : 1, ReduceOp::kMax) > 0) throw AgreedError(ExitCode::kRequeue, stopped, reports());
  has_lock_ = true;
  progress_.act("loading");
}

/// A rank without a black box or a log trains as well; one message says so.
void Run::open_record() {
  if (options_.record == nullptr) return;
  const MeshShape& shape = trainer_->mesh().shape;
  std::string coordinate;
  for (const MeshAxisRow& axis : shown_axes(shape))
    coordinate += concat(coordinate.empty() ? "" : ", ", axis.name, " ", trainer_->mesh().at.*axis.index);
  const std::string device = ctx_.device == Device::kCuda ? ctx_.gpu->properties().name : concat("cpu, ", counted(ctx_.threads, "thread"));
  const BlackBoxOwner owner{world_.rank(), world_.size(), session_, device, coordinate};
  const std::string problem = options_.record->open(directory(), owner, config_.observe.black_box);
  const std::vector<std::string> problems = all_gather_strings(world_, problem);
  const auto first = std::ranges::find_if(problems, [](const std::string& each) { return !each.empty(); });
  if (first == problems.end()) return;
  const auto more = std::ranges::count_if(problems, [](const std::string& each) { return !each.empty(); }) - 1;
  reporter_.message(concat("warning: ", *first, more > 0 ? concat("; the same on ", counted(more, "other rank")) : "",
                           "; trireme inspect will not know where it is. Training continues"));
}

/// Does not change a finished run, except that it removes unpublished leftovers and peer copies of a kill at its very end and completes its audit log.
void Run::sweep_finished(const Resumed& resumed) {
  const fs::path checkpoints = directory() / "checkpoints";
  if (config_.security.audit.enabled) collectively(world_, [&] { complete_audit(resumed); });
  if (has_lock_ && !PeerState::find(world_, config_, done_, std::numeric_limits<int64_t>::max()))
    end_peer_copies();  // none that a longer job could use
  if (lock_ || !reports() || !has_unpublished(checkpoints)) return;
  try {
    const RunLock lock(directory());
    remove_unpublished(checkpoints);
  } catch (const Error&) {  // another job holds the lock, or the directory is not writable
  }
}

/// checkpoints_to_resume() of rank 0, on all ranks.
std::vector<std::string> Run::candidates() {
  std::string names;
  collectively(world_, [&] {
    if (!reports()) return;
    for (const std::string& name : checkpoints_to_resume(directory().string(), options_.resume)) names += name + '\0';
  });
  names = all_gather_strings(world_, names)[0];
  std::vector<std::string> all;
  for (size_t begin = 0, end; (end = names.find('\0', begin)) != names.npos; begin = end + 1) all.push_back(names.substr(begin, end - begin));
  return all;
}

/// Records what --change has changed, as the first line after the start of the run.
void Run::report_change(const Resumed& resumed) {
  if (!resumed.changed) return;
  const ConfigChange& change = resumed.history.branch.back();
  std::string text = concat("changed at step ", change.step, " of ", resumed.checkpoint, ":");
  for (const auto& [key, values] : change.changes.items())
    text += concat("\n  ", key, ": ", values[0].dump(-1, ' ', true), " -> ", values[1].dump(-1, ' ', true));
  reporter_.event("change", change.step,
                  {{"from", resumed.checkpoint}, {"sample", change.sample}, {"changes", nlohmann::ordered_json(change.changes)}},
                  concat(text, "\n  the training data continue at sample ", change.sample, " of their order"));
}

void Run::open_directory(const Resumed& resumed) {
  const std::string& checkpoint = resumed.checkpoint;
  const fs::path checkpoints = make_directories_in(directory(), "checkpoints");
  sync_directory(directory());
  sync_directory(fs::absolute(directory()).parent_path());
  open_audit(resumed);  // first, because it may refuse the checkpoint
  // Rolled back with --resume DIR: from now on the newer checkpoints belong to a different history.
  std::error_code other_run;
  if (!checkpoint.empty() && fs::equivalent(checkpoint, checkpoints / checkpoint_name(done_), other_run))
    point_latest(checkpoints, checkpoint_name(done_), session_);
  write_durably(directory() / "config.yaml", to_yaml(config_));
  if (config_.resilience.peer_copies > 0 || fs::exists(directory() / kPeerRecordName)) write_peer_record(directory(), {session_, resumed.peers});
  const nlohmann::ordered_json environment = describe_environment(ctx_, world_.size(), trainer_->mesh().shape);
  write_durably(directory() / "environment.json", environment.dump(2) + "\n");
  const fs::path aside = checkpoint.empty() ? MetricsSink::rename_existing(directory() / "metrics.jsonl") : fs::path();
  TerminalWidth width;
  if (standard_output_is_terminal(options_.environment)) width = [] { return terminal_columns(STDOUT_FILENO); };
  std::FILE* const messages = both_outputs_are_terminals(options_.environment) ? stdout : stderr;  // so that none overtakes the progress line
  const MetricsSink::Discarded discarded =
      aside.empty() ? MetricsSink::lines_after(directory() / "metrics.jsonl", history_.step) : MetricsSink::lines_after(aside, 0);
  reporter_.open(config_, environment, forecast_, history_, total_, width, messages);
  record_start(resumed, discarded);
  if (audit_) reporter_.add_sink(audit::kLogName, std::make_unique<AuditSink>(*audit_));
  if (!audit_ && fs::exists(directory() / audit::kLogName))
    reporter_.message(
        concat("warning: security.audit.enabled=false, and ", (directory() / audit::kLogName).string(), " exists: it gets no record of this job"));
  report_change(resumed);
  report_logged_splits();
  report_logged_order();
  if (!aside.empty())
    reporter_.message(concat("starting over: the previous run saved no checkpoint here; its metrics were renamed to ", aside.string()));
  if (shares_weights(config_.training) && config_.parallel.islands > 1)
    reporter_.message(
        "warning: training.asynchronous.mode=hogwild: the islands change the same weights without a lock, so results differ from run to run");
  if (!data_->validation.empty()) reporter_.message(evaluation_text());
  if (forecast_) reporter_.message(forecast_text(*forecast_));
  if (coordinates()) return;  // it takes no steps
  if (ctx_.device == Device::kCuda)
    for (const std::string& line : shape_warnings(config_)) reporter_.message("warning: " + line);
  const char* const without = ctx_.device == Device::kCpu ? ", without workspace of CPU kernels" : "";
  reporter_.message(
      concat("memory forecast per rank, maximum of each pipeline rank", without, ":\n", memory_table(memory_), accumulation_, recompute_));
}

}  // namespace trireme
