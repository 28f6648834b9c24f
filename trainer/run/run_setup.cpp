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
#include "trainer/loop/product_tuning.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"
#include "trainer/plan/shape_rates.h"
#include "trainer/run/audit_sink.h"
#include "trainer/run/job_audit.h"
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
    : run_{.ctx = ctx, .world = world, .config = config, .options = options, .progress = progress}, anomalies_(run_, saves_, exchanges) {
  run_.phases = {&rejections_, &anomalies_, &arrivals_, &saves_, &privacy_, &rebalance_, &evaluation_, &peers_};
  run_.progress.act("setting up");
  run_.progress.set_timeout(state_timeout(run_.config));
  open_on_all_ranks();
  agree_on_session();
  make_trainer();
  peers_.connect();
  if (log != nullptr) steps_.trace(*log);
  resume();
  if (log != nullptr && run_.reports() && run_.done >= run_.options.trace_steps->last)
    std::cerr << concat("--trace-steps=", to_string(*run_.options.trace_steps), ": nothing to trace, ", run_.done, " steps are already done\n");
  if (has_nothing_to_do()) return;  // a finished run is not changed
  tune();
  if (run_.reports()) announce_ready(run_.options.environment);  // every rank has had a StopRequest since the start of its command
  collectively(run_.world, [&] {
    run_.checkpoints = std::make_unique<CheckpointManager>(*run_.trainer, run_.config, run_.session, run_.training_data, run_.history,
                                                           run_.lock.get(), run_.reporter, run_.progress, run_.audit.get());
  });
  steps_.count_sets();
  for (RunPhase* const phase : run_.phases) phase->open();
}

/// Opens the data, and checks that all ranks are about to do the same.
void Run::open_on_all_ranks() {
  std::map<std::string, std::string> facts;
  collectively(run_.world, [&] {
    open_data();
    check_trace_steps(run_.options, run_.config, run_.total);
    if (run_.reports() && run_.ctx.device == Device::kCuda && run_.config.kernels.tuning_file != "none")
      check_tuning_file(run_.config.kernels.tuning_file);
    forecast_.forecast_time();
    std::string validation;
    for (const ValidationSet& set : run_.data->validation) validation += concat(set.name, "=", set.data.identity(), " ");
    facts = {{"binary", binary_digest()},
             {"configuration", to_yaml(run_.config)},
             {"--max-steps", std::to_string(run_.last_step())},
             {"--change", names_of(run_.options.change)},
             {"--trace-steps", run_.options.trace_steps ? to_string(*run_.options.trace_steps) : "none"},
             {"schedule", to_text(training_schedule(run_.config))},  // each rank may have read it from a file
             {"training data", run_.training_data},
             {"validation data", validation}};
  });
  check_same_everywhere(run_.world, facts);
  if (!run_.reports()) return;
  std::vector<std::string> doubts = run_.data->train.suspicions();
  for (const ValidationSet& set : run_.data->validation) std::ranges::copy(set.data.suspicions(), std::back_inserter(doubts));
  for (const std::string& doubt : doubts) std::cerr << concat("warning: ", printable(doubt), "\n");
}

void Run::agree_on_session() {
  const std::string session =
      std::to_string(random_key(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()), std::to_string(getpid())));
  run_.session = all_gather_strings(run_.world, session)[0];
  run_.hosts = all_gather_strings(run_.world, host_name());
}

void Run::make_trainer() {
  const TrainerPlan plan = forecast_.plan_trainer();
  if (run_.ctx.device == Device::kCuda) reserve_memory(run_.ctx, run_.world, run_.config, plan.memory);
  collectively(run_.world, [&] { run_.trainer = std::make_unique<Trainer>(run_.ctx, run_.world, run_.config, true, plan.recompute, plan.schedule); });
  if (run_.ctx.device == Device::kCuda) register_memory(run_.world);
  run_.trainer->watch(run_.progress);
  run_.trainer->updates().set_last_step(run_.total);
  run_.trainer->updates().set_learning_rates([this](int64_t step) { return run_.learning_rate_of(step + 1); });
}

/// A run that was stopped before its last evaluation still rehearses a step, because the evaluation uses the step's algorithms.
void Run::tune() {
  run_.progress.act("timing matrix products");
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<TunedProducts> tuned =
      tune_products(*run_.trainer, run_.data->train, std::min(run_.done, run_.total - 1), std::exchange(run_.history.product_algorithms, {}));
  if (!tuned) return;
  run_.history.product_algorithms = tuned->algorithms;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!tuned->note.empty()) run_.reporter.message("note: " + tuned->note);
  run_.reporter.event("tuned_products", run_.done, {{"timed", tuned->timed}, {"known", tuned->known}, {"seconds", seconds}},
                      concat("algorithms of matrix products: ", counted(tuned->timed, "kind"), " timed, ", tuned->known, " known (",
                             run_.config.kernels.tuning_file, ")"));
}

void Run::open_data() {
  run_.data = std::make_unique<RunData>(run_.coordinates() ? no_run_data(run_.config) : open_run_data(run_.config));
  run_.training_data = run_.coordinates() ? "of the members of a federation" : run_.data->train.identity();
  samples_.open();
  run_.total = total_steps(run_.config, run_.data->train.sequences());
  if (run_.config.training.epochs) {  // rules and `auto` values that depend on the number of steps
    Config counted = run_.config;
    counted.training.steps = run_.total;
    counted.training.epochs.reset();
    run_.config.training.schedule.decay_steps = resolve(counted, run_.world.size()).training.schedule.decay_steps;
  }
}

/// Loads before locking, so that a refused run changes nothing in the run directory. A job that is ending may save meanwhile; under the lock the set
/// of checkpoints is final, so it is listed again once. A run that may continue from copies of peers takes the lock first, because a running job replaces
/// its own.
void Run::resume() {
  run_.progress.act("loading");
  if (peers_.may_have_copies()) take_lock();
  std::vector<std::string> checkpoints = candidates();
  for (;;) {
    const Resumed resumed = load(checkpoints);
    if (has_nothing_to_do()) return sweep_finished(resumed);
    arrivals_.read_replay();
    if (!run_.has_lock) {
      take_lock();
      const std::vector<std::string> now = candidates();
      if (now != checkpoints || peers_.may_have_copies()) {
        checkpoints = now;
        continue;
      }
      privacy_.load(resumed);  // another job may have released more
    }
    return begin(resumed);
  }
}

/// Loads the newest state, of which all phases get their parts.
Resumed Run::load(const std::vector<std::string>& checkpoints) {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_ptr<PeerState> peers = run_.has_lock && peers_.may_have_copies() ? peers_.find(checkpoints) : nullptr;
  Resumed resumed = load_newest(*run_.trainer, checkpoints, run_.config, run_.training_data,
                                run_.options.resume == "auto" || is_run_directory(run_.options.resume), run_.options.change, peers.get());
  peers.reset();
  jobs_.add_load(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  run_.done = resumed.step;
  run_.history = resumed.history;
  if (run_.reports() && !resumed.checkpoint.empty())
    std::cerr << concat("resuming from ", resumed.checkpoint, ", step ", run_.done, " of ", run_.total, "\n");
  for (RunPhase* const phase : run_.phases) phase->load(resumed);
  return resumed;
}

/// Begins to write to the run directory, of which this job holds the lock.
void Run::begin(const Resumed& resumed) {
  for (RunPhase* const phase : run_.phases) phase->resume(resumed);
  collectively(run_.world, [&] {
    if (run_.reports()) open_directory(resumed);
  });
  collectively(run_.world, [&] {
    if (!fs::exists(run_.directory() / "config.yaml"))
      throw IoError(
          concat("run.directory=", run_.directory().string(), ": created by rank 0, but not visible on this rank; it must be shared by all ranks"));
  });
  privacy_.begin();
  open_record();
}

void Run::take_lock() {
  run_.progress.act("waiting for the run directory's lock");
  std::string stopped;
  collectively(run_.world, [&] {
    if (!run_.reports()) return;
    try {
      run_.lock = std::make_unique<RunLock>(run_.directory(), [this] { return !run_.stop.requested(); });
      remove_unpublished(run_.directory() / "checkpoints");
    } catch (const Error& error) {
      if (error.code() != ExitCode::kRequeue) throw;
      stopped = error.what();
    }
  });
  if (all_reduce_scalar(run_.world, stopped.empty() ? 0 : 1, ReduceOp::kMax) > 0) throw AgreedError(ExitCode::kRequeue, stopped, run_.reports());
  run_.has_lock = true;
  run_.progress.act("loading");
}

/// A rank without a black box or a log trains as well; one message says so.
void Run::open_record() {
  if (run_.options.record == nullptr) return;
  const MeshShape& shape = run_.trainer->mesh().shape;
  std::string coordinate;
  for (const MeshAxisRow& axis : shown_axes(shape))
    coordinate += concat(coordinate.empty() ? "" : ", ", axis.name, " ", run_.trainer->mesh().at.*axis.index);
  const std::string device =
      run_.ctx.device == Device::kCuda ? run_.ctx.gpu->properties().name : concat("cpu, ", counted(run_.ctx.threads, "thread"));
  const BlackBoxOwner owner{run_.world.rank(), run_.world.size(), run_.session, device, coordinate};
  const std::string problem = run_.options.record->open(run_.directory(), owner, run_.config.observe.black_box);
  const std::vector<std::string> problems = all_gather_strings(run_.world, problem);
  const auto first = std::ranges::find_if(problems, [](const std::string& each) { return !each.empty(); });
  if (first == problems.end()) return;
  const auto more = std::ranges::count_if(problems, [](const std::string& each) { return !each.empty(); }) - 1;
  run_.reporter.message(concat("warning: ", *first, more > 0 ? concat("; the same on ", counted(more, "other rank")) : "",
                               "; trireme inspect will not know where it is. Training continues"));
}

/// Does not change a finished run, except that it removes unpublished leftovers and peer copies of a kill at its very end and completes its audit log.
void Run::sweep_finished(const Resumed& resumed) {
  const fs::path checkpoints = run_.directory() / "checkpoints";
  if (run_.config.security.audit.enabled) collectively(run_.world, [&] { complete_audit(run_, resumed); });
  if (run_.has_lock && !PeerState::find(run_.world, run_.config, run_.done, std::numeric_limits<int64_t>::max()))
    peers_.end();  // none that a longer job could use
  if (run_.lock || !run_.reports() || !has_unpublished(checkpoints)) return;
  try {
    const RunLock lock(run_.directory());
    remove_unpublished(checkpoints);
  } catch (const Error&) {  // another job holds the lock, or the directory is not writable
  }
}

/// checkpoints_to_resume() of rank 0, on all ranks.
std::vector<std::string> Run::candidates() {
  std::string names;
  collectively(run_.world, [&] {
    if (!run_.reports()) return;
    for (const std::string& name : checkpoints_to_resume(run_.directory().string(), run_.options.resume)) names += name + '\0';
  });
  names = all_gather_strings(run_.world, names)[0];
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
  run_.reporter.event("change", change.step,
                      {{"from", resumed.checkpoint}, {"sample", change.sample}, {"changes", nlohmann::ordered_json(change.changes)}},
                      concat(text, "\n  the training data continue at sample ", change.sample, " of their order"));
}

void Run::open_directory(const Resumed& resumed) {
  const std::string& checkpoint = resumed.checkpoint;
  const fs::path checkpoints = make_directories_in(run_.directory(), "checkpoints");
  sync_directory(run_.directory());
  sync_directory(fs::absolute(run_.directory()).parent_path());
  open_audit(run_, resumed);  // first, because it may refuse the checkpoint
  // Rolled back with --resume DIR: from now on the newer checkpoints belong to a different history.
  std::error_code other_run;
  if (!checkpoint.empty() && fs::equivalent(checkpoint, checkpoints / checkpoint_name(run_.done), other_run))
    point_latest(checkpoints, checkpoint_name(run_.done), run_.session);
  write_durably(run_.directory() / "config.yaml", to_yaml(run_.config));
  if (run_.config.resilience.peer_copies > 0 || fs::exists(run_.directory() / kPeerRecordName))
    write_peer_record(run_.directory(), {run_.session, resumed.peers});
  const nlohmann::ordered_json environment = describe_environment(run_.ctx, run_.world.size(), run_.trainer->mesh().shape);
  write_durably(run_.directory() / "environment.json", environment.dump(2) + "\n");
  const fs::path aside = checkpoint.empty() ? MetricsSink::rename_existing(run_.directory() / "metrics.jsonl") : fs::path();
  TerminalWidth width;
  if (standard_output_is_terminal(run_.options.environment)) width = [] { return terminal_columns(STDOUT_FILENO); };
  std::FILE* const messages = both_outputs_are_terminals(run_.options.environment) ? stdout : stderr;  // so that none overtakes the progress line
  const MetricsSink::Discarded discarded =
      aside.empty() ? MetricsSink::lines_after(run_.directory() / "metrics.jsonl", run_.history.step) : MetricsSink::lines_after(aside, 0);
  run_.reporter.open(run_.config, environment, forecast_.time(), run_.history, run_.total, width, messages);
  jobs_.start(resumed, discarded);
  if (run_.audit) run_.reporter.add_sink(audit::kLogName, std::make_unique<AuditSink>(*run_.audit));
  if (!run_.audit && fs::exists(run_.directory() / audit::kLogName))
    run_.reporter.message(concat("warning: security.audit.enabled=false, and ", (run_.directory() / audit::kLogName).string(),
                                 " exists: it gets no record of this job"));
  report_change(resumed);
  for (RunPhase* const phase : run_.phases) phase->announce();
  report_start(aside);
}

/// `aside`: the new name of the metrics of a run that has saved no checkpoint; empty: none.
void Run::report_start(const fs::path& aside) {
  if (!aside.empty())
    run_.reporter.message(concat("starting over: the previous run saved no checkpoint here; its metrics were renamed to ", aside.string()));
  if (shares_weights(run_.config.training) && run_.config.parallel.islands > 1)
    run_.reporter.message(
        "warning: training.asynchronous.mode=hogwild: the islands change the same weights without a lock, so results differ from run to run");
  if (!run_.data->validation.empty()) run_.reporter.message(evaluation_.text());
  forecast_.report_time();
  if (run_.coordinates()) return;  // it takes no steps
  if (run_.ctx.device == Device::kCuda)
    for (const std::string& line : shape_warnings(run_.config)) run_.reporter.message("warning: " + line);
  forecast_.report_memory();
}

}  // namespace trireme
