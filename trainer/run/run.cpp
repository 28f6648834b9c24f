#include "trainer/run/run.h"

#include <algorithm>
#include <iostream>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/files/printable.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/collectively.h"
#include "trainer/loop/histograms.h"
#include "trainer/loop/learning_rate.h"
#include "trainer/loop/plain_products.h"
#include "trainer/loop/resident.h"
#include "trainer/loop/state.h"
#include "trainer/report/suspects.h"
#include "trainer/resilience/replica_check.h"
#include "trainer/run/rank_run.h"

namespace trireme {

/// Writes to this rank's own log.
void Run::log(RankRecord::Level level, const std::string& text) {
  if (options_.record != nullptr) options_.record->write(level, text);
}

double Run::learning_rate_of(int64_t step) const {
  return learning_rate(config_.training.schedule, config_.training.optimizer, config_.training.global_batch_size, step, total_);
}

/// On a GPU the results of a step are read while the next one runs, unless one of both is traced, a step may be held back or more of it is recorded
/// than its results; on a CPU they are available immediately.
void Run::start_step(int64_t step) {
  progress_.begin_step(step, ctx_.arena->peak_bytes(), peak_resident_bytes());
  const double rate = learning_rate_of(step);
  const bool traced = tracer_ && tracer_->traces(step);
  if (traced) {
    finish_step();
    tracer_->begin(step);
  }
  trainer_->record_activations(records_activations(step));
  const bool may_repeat = config_.observe.anomalies.policy == AnomalyPolicy::kRerun;
  const LossScale before = trainer_->loss_scale();
  timeout_.start(step, config_.parallel.islands > 1 && (is_asynchronous(config_.training) || rounds().may_wait_after(step)));
  set_timeout();
  if (may_repeat) {
    trainer_->weights_changed();  // as in execute()
    exchanges_.start();
  }
  const StepLimits limits = step_limits();
  Started now{step, trainer_->start(data_->train, step - 1, rate, limits), limits, before};
  if (may_repeat) now.exchanges = exchanges_.stop();
  finish_step();
  started_ = std::move(now);
  if (traced || judges_before_update() || records_activations(step) || makes_histograms(step) || ctx_.device != Device::kCuda) finish_step();
}

void Run::finish_step() {
  if (!started_) return;
  const int64_t step = started_->step;
  const StepResult result = trainer_->finish(started_->in_flight);
  if (tracer_) tracer_->end(step);
  finished_ = *std::exchange(started_, std::nullopt);
  const auto now = std::chrono::steady_clock::now();
  double seconds = std::chrono::duration<double>(now - std::exchange(last_report_, now)).count();
  if (result.applied) seconds = result.applied->seconds;  // this rank may have computed for several updates, or for none
  timeout_.finish(step, seconds);
  const bool traced = tracer_ && tracer_->traces(step);
  if (!traced) steady_.add(seconds);
  if (save_interval_) save_interval_->add_step(seconds);
  figures_->add_step(seconds);
  if (rebalancer_) data_rank_seconds_ = seconds_of_data_ranks();
  set_timeout();
  report_step(step, result, seconds);
  if (makes_histograms(step)) {
    const std::vector<Histogram> histograms = parameter_histograms(*trainer_, static_cast<double>(result.loss_scale.value_or(1)));
    reporter_.histograms(step, histograms);
    continue_training();
  }
  if (!std::exchange(first_step_reported_, true)) {
    warn_of_plain_products(step);
    report_attention(step);
  }
  if (traced) continue_training();
  if (!tracer_ || !tracer_->has_report() || !rounds().ends_after(step)) return;  // within a round no rank waits for another island
  progress_.act(concat("writing the trace after step ", step));
  progress_.set_timeout(state_timeout(config_));
  tracer_->report(reporter_);
  set_timeout();
  continue_training();
}

/// Warns once of each shape that cuBLASLt refuses. Every step has the same shapes, so this is called after the first step and after evaluations.
void Run::warn_of_plain_products(int64_t step) {
  const PlainProducts products = plain_products(*trainer_);
  std::vector<std::string> fresh;
  for (const std::string& shape : products.shapes)
    if (plain_shapes_.insert(shape).second) fresh.push_back(shape);
  if (fresh.empty()) return;
  reporter_.event("plain_products", step, {{"per_step", products.per_step}, {"shapes", fresh}}, plain_products_warning(products.per_step, fresh));
}

/// Reports each shape of attention once, with kernels.attention: cudnn.
void Run::report_attention(int64_t step) {
  AttentionKernels fresh;
  for (const AttentionKernels::Shape& shape : attention_kernels(*trainer_, config_).shapes)
    if (std::ranges::none_of(attention_, [&](const AttentionKernels::Shape& known) { return known.is_like(shape); })) fresh.shapes.push_back(shape);
  if (fresh.shapes.empty()) return;
  attention_.insert(attention_.end(), fresh.shapes.begin(), fresh.shapes.end());
  const nlohmann::ordered_json fields = to_json(fresh);
  reporter_.event("cudnn_attention", step, fields, attention_warning(fields));
}

/// After something other than training, whose time does not belong to the next step.
void Run::continue_training() {
  last_report_ = std::chrono::steady_clock::now();
  steady_.interrupt();
  figures_->interrupt();
}

/// {"data_tokens": {path: tokens}} of each entry of data.train, if they have weights: counted since the training data last changed. With packing
/// {"data_sequences": {path: sequences}}: how many of their positions are tokens depends on the order of the samples.
nlohmann::ordered_json Run::use_of_sets(int64_t step) const {
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
  if (!blend_) return fields;
  const std::vector<int64_t> samples = blend_->samples_before(step);  // steps of a sampler count from 0
  const bool packs = config_.data.packing != Packing::kNone;
  for (size_t set = 0; set < samples.size(); ++set) {
    nlohmann::ordered_json& count = fields[packs ? "data_sequences" : "data_tokens"][config_.data.train[set]];
    count = (count.is_number() ? count.get<int64_t>() : 0) + samples[set] * (packs ? 1 : config_.training.sequence_length);
  }
  return fields;
}

static bool is_multiple(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

bool Run::records_activations(int64_t step) const { return is_multiple(step, config_.observe.activations.every); }
bool Run::makes_histograms(int64_t step) const { return is_multiple(step, config_.observe.histograms.every); }
bool Run::samples_at(int64_t step) const { return is_multiple(step, config_.observe.samples.every); }

/// The data ranks that stand out among the gradients of a step, with their distances; null: not finite or missing.
static nlohmann::ordered_json suspects_json(const std::vector<double>& distances) {
  nlohmann::ordered_json suspects = nlohmann::ordered_json::object();
  for (size_t rank = 0; rank < distances.size(); ++rank)
    if (distances[rank] > kSuspectDistance) suspects[std::to_string(rank)] = distances[rank];
  return suspects;
}

/// The fields of a step's line besides its results. Collective.
nlohmann::ordered_json Run::more_figures(int64_t step, const StepResult& result) {
  nlohmann::ordered_json fields = use_of_sets(step);
  if (result.outer)
    fields.update({{"outer_grad_norm", result.outer->gradient_norm}, {"drift", result.outer->drift}, {"outer_bytes", result.outer->sent_bytes}});
  if (const Arrivals* const arrivals = result.arrivals()) fields.update({{"workers", arrivals->workers}, {"staleness", arrivals->staleness}});
  if (is_robust(config_.security)) fields["suspects"] = suspects_json(result.distances);
  if (privacy_) fields["epsilon"] = privacy::to_json(privacy_->epsilon(step).value);
  if (rebalancer_) fields["imbalance"] = excess_of_slowest(data_rank_seconds_);
  if (!records_activations(step)) return fields;
  for (const auto& [layer, largest] : trainer_->activation_maxima()) fields["activation_max"][layer] = largest;
  return fields;
}

void Run::check_replicas(int64_t step) {
  progress_.act("comparing replicas");
  progress_.set_timeout(state_timeout(config_));
  ctx_.arena->set_phase(MemoryPhase::kSave);
  const std::string differences = replica_differences(*trainer_);
  if (!differences.empty())
    throw AgreedError(
        ExitCode::kInternal,
        concat("after step ", step, " replicated state differs between ranks; possible causes: a memory or link fault, or different processors:\n",
               differences),
        reports());
}

/// The newest checkpoint with different weights than the current ones, for which every gradient is non-finite; empty if there is none.
std::string Run::checkpoint_before_rejections() const {
  try {
    for (const std::filesystem::path& checkpoint : checkpoints_of(directory()))
      if (CheckpointReader(checkpoint).description().optimizer_steps < trainer_->accepted_steps()) return checkpoint.string();
  } catch (const Error&) {  // the path is only advice
  }
  return "";
}

/// Tells all ranks what the islands have decided alone in the round that has ended. Collective.
void Run::share_island_reports() {
  if (!islands_decide()) return;
  finish_step();
  const nlohmann::ordered_json mine = {{"rejected", rejected_.state()}, {"events", reporter_.take_island_events()}};
  std::string bytes;
  nlohmann::ordered_json::to_msgpack(mine, bytes);  // keeps numbers that are not finite
  most_rejected_.reset();
  int64_t island = 0;
  for (const std::string& of_island : by_island(*trainer_, bytes)) {
    const nlohmann::ordered_json report = nlohmann::ordered_json::from_msgpack(of_island);
    const RejectedSteps rejected(config_.training.max_rejected_steps, nlohmann::json(report["rejected"]));
    if (!most_rejected_ || rejected.count() > most_rejected_->count()) most_rejected_ = rejected;
    reporter_.report_island_events(island++, report["events"]);
  }
}

/// Called before a save: a diverged state must not be saved, as it would displace a good checkpoint.
void Run::end_if_diverged() {
  if (!most_rejected().limit_reached()) return;
  finish_step();  // a GPU is a step ahead
  if (!most_rejected().limit_reached()) return;
  progress_.act("waiting for the last checkpoint");
  progress_.set_timeout(2 * state_timeout(config_));
  checkpoints_->finish();
  reporter_.event("diverged", {}, {{"rejected_steps", most_rejected().count()}, {"limit", config_.training.max_rejected_steps}});
  const std::string before = reports() ? checkpoint_before_rejections() : "";
  throw AgreedError(
      ExitCode::kInternal,
      concat("training has diverged: ", most_rejected().text(), " (training.max_rejected_steps=", config_.training.max_rejected_steps,
             "). Start another run with a lower training.optimizer.learning_rate, more training.schedule.warmup_steps or ",
             config_.training.gradient_clip > 0 ? "a smaller training.gradient_clip" : "training.gradient_clip=1",
             scales_loss(config_.training) ? ", or with a smaller training.loss_scale.minimum" : "",
             before.empty() ? "" : concat("; training.initial_weights=", before, " starts it from weights saved before the divergence")),
      reports());
}

/// Called when the training of this job ends, before its last save. Success would say that there is a trained model. Overflows of the loss scale alone are
/// no failure of a job that ends before the last step, as the scale may be on its way down.
void Run::end_if_untrained() {
  if (is_member() || coordinates()) return;
  if (all_reduce_scalar(world_, static_cast<double>(trainer_->accepted_steps()), ReduceOp::kMax) > 0) return;
  if (done_ < total_ && most_rejected().count() == 0) return;
  progress_.act("waiting for the last checkpoint");
  progress_.set_timeout(2 * state_timeout(config_));
  checkpoints_->finish();
  throw AgreedError(
      ExitCode::kInternal,
      concat("nothing was trained: every step of this run up to step ", done_, " was rejected",
             most_rejected().count() == 0       ? "; the gradients overflowed at every loss scale from training.loss_scale.initial on"
             : most_rejected().reason().empty() ? ""
                                                : ", because " + most_rejected().reason(),
             ". The weights are those that the run began with, and no checkpoint of step ", done_, " was saved. Look at the data, or lower ",
             most_rejected().count() > 0 ? "training.optimizer.learning_rate" : "training.loss_scale.initial"),
      reports());
}

/// The check comes first, so that no inconsistent state replaces the good ones.
void Run::save(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  if (config_.resilience.replica_check_every > 0) check_replicas(step);
  log(RankRecord::Level::kInfo, concat("saving step ", step));
  save_request_.clear();
  ctx_.arena->set_phase(MemoryPhase::kSave);
  checkpoints_->save(step, padding_, rejected_.count(), stopper_.state(), judges_before_update() ? window_.state() : std::vector<StepFigures>(),
                     privacy_ ? privacy_->history(step) : privacy::History());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  record("save", {{"step", step}, {"seconds", seconds}});
  if (save_interval_) save_interval_->saved(step, seconds);
}

void Run::report_memory() {
  const auto measured = memory_by_pipeline_rank(world_, trainer_->mesh().shape, measured_memory(*ctx_.arena));
  reporter_.memory(done_, memory_, measured);
  report_forecast(measured);
}

void Run::report_forecast(const std::vector<RankMemory>& measured) {
  const std::optional<double> measured_seconds = steady_.median();
  if (!forecast_ || !measured_seconds) return;
  const auto most = [](const std::vector<RankMemory>& ranks) {
    return static_cast<double>(std::ranges::max_element(ranks, {}, &RankMemory::peak_total)->peak_total);
  };
  reporter_.forecast(done_, forecast_->time.step_seconds, *measured_seconds, most(memory_), most(measured));
}

/// Records and prints at the end of a job which data ranks security.aggregation has suspected.
void Run::report_suspects() {
  if (!reports() || !is_robust(config_.security)) return;
  try {
    const report::RunRecord run = report::read_run(directory());
    const std::vector<report::Suspect> suspects = report::suspects_of(run);
    nlohmann::ordered_json ranks = nlohmann::ordered_json::object();
    for (const report::Suspect& one : suspects)
      ranks[std::to_string(one.rank)] = {{"steps", one.steps}, {"farthest", one.farthest}, {"left_out", one.left_out}};
    reporter_.event("suspects", done_, {{"steps", run.steps.size()}, {"ranks", ranks}},
                    suspects.empty() ? "" : "suspected: " + report::suspects_text(suspects, std::ssize(run.steps.step)));
  } catch (const std::exception& error) {
    reporter_.message(concat("warning: no suspects: ", printable(error)));
  }
}

/// Trains, and records the end of the job in the audit log, also if it fails.
ExitCode Run::loop() {
  try {
    const ExitCode code = train();
    record("end", {{"status", code == ExitCode::kRequeue ? "stopped" : "done"}});
    if (config_.security.audit.enabled) collectively(world_, [&] { end_audit(code == ExitCode::kRequeue ? "stopped" : "done"); });
    return code;
  } catch (const Error& error) {
    record("end", {{"status", "failed"}});
    try {
      end_audit("failed", error.what());
    } catch (const Error&) {  // the first error is the one to report
    }
    throw;
  }
}

ExitCode Run::train() {
  const int64_t last = last_step();
  if (finished() && !has_unsaved_state()) {
    const std::string early = done_ < last ? concat("; the run stopped early: ", stopper_.text()) : "";
    if (reports()) std::cerr << concat("nothing to do: ", done_, " of ", total_, " steps are done", early) << std::endl;
    if (coordinates()) coordinate();
    return ExitCode::kOk;
  }
  if (stop_agreed()) {
    reporter_.message("stopped on request before the first step; rerun the same command to resume");
    return ExitCode::kRequeue;
  }
  record("ready", {{"step", done_}, {"load_seconds", load_seconds_}});
  if (!evaluated_ && !evaluate(done_)) {
    reporter_.message(concat("stopped on request before the end of the evaluation of step ", done_, "; rerun the same command to resume"));
    return ExitCode::kRequeue;
  }
  last_report_ = std::chrono::steady_clock::now();
  figures_.emplace(*trainer_, progress_);
  return end_training(coordinates() ? coordinate() : train_steps());
}

/// Returns whether a stop was requested.
bool Run::train_steps() {
  const int64_t last = last_step();
  if (is_member()) join_federation();
  begin_intervals();
  log(RankRecord::Level::kInfo, concat("training from step ", done_ + 1, " to ", last));
  const bool one_host = options_.ranks_per_host.value_or(world_.size()) == world_.size();
  timeout_ = StepTimeout(hang_seconds(config_, ctx_.device == Device::kCuda, one_host), state_timeout(config_));
  bool stopped = false;
  for (int64_t step = done_ + 1; !stopped && !stopper_.reached(); ++step) {
    if (is_member() && rounds().ends_after(step - 1)) {
      const std::optional<int64_t> next = federate();
      if (!next) break;
      step = *next;
    } else if (step > last) {
      break;
    }
    announce_steps(step);
    start_step(step);
    end_if_anomalous(step);
    done_ = step;
    if (rebalancer_) rebalance(step);
    if (!rounds().ends_after(step)) continue;  // what follows concerns all islands, which exchange nothing within a round
    share_island_reports();
    report_staleness(step);
    report_interval(step);
    constexpr double kGather = 0.5, kSaveDue = 0.75, kSave = 1, kStop = 2, kSaveFailed = 3;  // the maximum takes precedence; requests remain set
    // Rank 0 decides on a requested save, because a launcher's signal may reach the ranks in different steps, and on checkpoint.every auto.
    const bool is_due = save_interval_ && save_interval_->due(step);
    const double mine = save_request_.requested() ? kSave : is_due ? kSaveDue : figures_->due() ? kGather : 0;
    const double request = stop_.requested() ? kStop : reports() ? mine : 0;
    const std::string& failure = checkpoints_->unshared_failure();
    if (!failure.empty()) log(RankRecord::Level::kError, concat("this rank's part of a checkpoint was not saved: ", failure));
    const double news = all_reduce_scalar(world_, failure.empty() ? request : kSaveFailed, ReduceOp::kMax);
    stopped = news == kStop;
    if (news == kGather) figures_->report(started_ ? step - 1 : step, reporter_);  // on a GPU this step is still running
    if (news == kSave) reporter_.message(concat("saving a checkpoint on request after step ", step));
    if (news == kSaveFailed) checkpoints_->share_failures();
    const int64_t interval = config_.checkpoint.every.value_or(0), check = config_.resilience.replica_check_every;
    // The last weights of a member are those that the coordinator sends it.
    const bool saves =
        step == last ? !is_member() : rounds().is_due(step, interval) || saves_anyway(step) || news == kStop || news == kSave || news == kSaveDue;
    const bool checks = rounds().is_due(step, check);
    const bool copies = copies_to_peers(step);
    if (checks || saves || copies || samples_at(step) || evaluates_at(step)) finish_step();
    end_if_diverged();
    if (step == last) end_if_untrained();
    if (checks && !saves) check_replicas(step);
    if (saves) save(step);
    if (copies) copy_to_peers(step);
    checkpoints_->poll();
    if (const SaveReport* const saved = checkpoints_->outcome(); saved != nullptr && save_interval_)
      save_interval_->written(saved->error ? std::nullopt : std::optional(saved->write_seconds));
    // Save first: an evaluation may fail, and a job that is killed in a long one keeps its last step.
    if (samples_at(step) && !stopped) sample(step);
    if (evaluates_at(step) && !evaluate(step)) stopped = true;
    if (stopper_.reached() && step < last) end_if_untrained();
    if (!saves && (stopped || stopper_.reached()) && (step < last || !is_member())) save(step);
    if (checks || saves || copies || samples_at(step) || evaluates_at(step)) continue_training();
    if (checks || saves || copies || samples_at(step)) set_timeout();
  }
  if (has_unsaved_state()) save(done_);  // the run had reached its end when it was copied, but was not saved
  if (!is_member()) return stopped;
  if (has_ended_) save(done_ = last);
  return !has_ended_;
}

/// Waits for the last checkpoint, and reports what concerns the whole job.
ExitCode Run::end_training(bool stopped) {
  const int64_t last = last_step();
  progress_.act("waiting for the last checkpoint");
  progress_.set_timeout(2 * state_timeout(config_));
  const auto begin = std::chrono::steady_clock::now();
  checkpoints_->finish();
  record("save_wait", {{"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()}});
  // The reduction is also a barrier: rank 0 may still be publishing what the others have written.
  const double lost = all_reduce_scalar(world_, checkpoints_->not_finite() ? 2 : checkpoints_->failed() ? 1 : 0, ReduceOp::kMax);
  if (lost > 1)
    throw AgreedError(
        ExitCode::kInternal,
        concat("training has diverged: the state after step ", done_, " is not finite, so no checkpoint of it was published; older ones ",
               "remain. Start another run with a lower training.optimizer.learning_rate or more training.schedule.warmup_steps"),
        reports());
  if (lost > 0) throw AgreedError(ExitCode::kIo, concat("the checkpoint of step ", done_, " could not be saved"), reports());
  checkpoints_->remove_old();
  end_peer_copies();
  collectively(world_, [&] {
    if (const std::string error = reporter_.write_error(); !error.empty()) throw IoError(error + "; its last lines are lost");
  });
  if (tracer_) {
    progress_.act("writing the trace");
    tracer_->finish(reporter_);
  }
  figures_->report(done_, reporter_);
  reporter_.finish();
  if (!coordinates()) report_memory();
  report_goodput();
  report_suspects();
  report_privacy();
  if (stopped && (done_ < last || !evaluated_ || is_member())) {  // else there is nothing to resume
    reporter_.message(concat("stopped on request after step ", done_, evaluated_ ? "" : " before the end of its evaluation",
                             is_member() ? "" : ", checkpoint saved", "; rerun the same command to resume"));
    return ExitCode::kRequeue;
  }
  if (most_rejected().count() > 0)
    reporter_.message(concat("warning: at the end of the run, ", most_rejected().text(), "; the weights are those from before ",
                             most_rejected().count() == 1 ? "this step" : "these steps"));
  reporter_.message(concat("done: ", done_, " of ", total_, " steps; run directory ", config_.run.directory));
  return ExitCode::kOk;
}

void check_trace_steps(const RunOptions& options, const Config& config, int64_t total_steps) {
  if (!options.trace_steps) return;
  if (is_asynchronous(config.training))
    throw ConfigError(concat(
        "--trace-steps=", to_string(*options.trace_steps),
        ": with training.asynchronous a rank computes or exchanges what is not in its list of actions; allowed with training.asynchronous.mode "
        "none"));
  if (!config.resilience.reroute.empty())
    throw ConfigError(concat("--trace-steps=", to_string(*options.trace_steps),
                             ": a traced step is explained by each pipeline on its own, which relieved ranks do not leave alone; allowed with "
                             "resilience.reroute []"));
  const int64_t last = std::min(total_steps, options.max_steps.value_or(total_steps));
  const std::string key = concat("--trace-steps=", to_string(*options.trace_steps));
  if (options.trace_steps->last > last) throw ConfigError(concat(key, ": the run ends after step ", last, "; allowed steps from 1 to ", last));
}

ExitCode run_training(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress) {
  ExchangeLog exchanges;
  CommunicationLog log;
  std::unique_ptr<Communicator> observing, measuring;
  Communicator* outermost = &world;
  if (config.observe.anomalies.policy == AnomalyPolicy::kRerun) outermost = (observing = observed(*outermost, exchanges.observer())).get();
  if (options.trace_steps) outermost = (measuring = timed(*outermost, log)).get();
  return Run(ctx, *outermost, config, options, progress, options.trace_steps ? &log : nullptr, exchanges).loop();
}

}  // namespace trireme
