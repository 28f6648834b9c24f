#include "trainer/run/run.h"

#include <chrono>
#include <iostream>

#include "trainer/layout/resolve.h"
#include "trainer/machine/collectively.h"
#include "trainer/run/job_audit.h"
#include "trainer/run/rank_run.h"

namespace trireme {

/// Trains, and records the end of the job in the audit log, also if it fails.
ExitCode Run::loop() {
  try {
    const ExitCode code = train();
    jobs_.record("end", {{"status", code == ExitCode::kRequeue ? "stopped" : "done"}});
    if (run_.config.security.audit.enabled) collectively(run_.world, [&] { end_audit(run_, code == ExitCode::kRequeue ? "stopped" : "done"); });
    return code;
  } catch (const Error& error) {
    jobs_.record("end", {{"status", "failed"}});
    try {
      end_audit(run_, "failed", error.what());
    } catch (const Error&) {  // the first error is the one to report
    }
    throw;
  }
}

ExitCode Run::train() {
  const int64_t last = run_.last_step();
  if (has_nothing_to_do()) {
    const std::string early = run_.done < last ? concat("; the run stopped early: ", evaluation_.stopper().text()) : "";
    if (run_.reports()) std::cerr << concat("nothing to do: ", run_.done, " of ", run_.total, " steps are done", early) << std::endl;
    if (run_.coordinates()) coordinate();
    return ExitCode::kOk;
  }
  if (run_.stop_agreed()) {
    run_.reporter.message("stopped on request before the first step; rerun the same command to resume");
    return ExitCode::kRequeue;
  }
  jobs_.record_ready();
  if (!evaluation_.is_complete() && !evaluation_.evaluate(run_.done)) {
    run_.reporter.message(concat("stopped on request before the end of the evaluation of step ", run_.done, "; rerun the same command to resume"));
    return ExitCode::kRequeue;
  }
  run_.clock.last_report = std::chrono::steady_clock::now();
  run_.clock.figures.emplace(*run_.trainer, run_.progress);
  return end_training(run_.coordinates() ? coordinate() : train_steps());
}

/// Returns whether a stop was requested.
bool Run::train_steps() {
  const int64_t last = run_.last_step();
  if (run_.is_member()) member_.join();
  saves_.begin_intervals();
  run_.log(RankRecord::Level::kInfo, concat("training from step ", run_.done + 1, " to ", last));
  const bool one_host = run_.options.ranks_per_host.value_or(run_.world.size()) == run_.world.size();
  run_.clock.timeout = StepTimeout(hang_seconds(run_.config, run_.ctx.device == Device::kCuda, one_host), state_timeout(run_.config));
  bool stopped = false;
  for (int64_t step = run_.done + 1; !stopped && !evaluation_.stopper().reached(); ++step) {
    if (run_.is_member() && run_.rounds().ends_after(step - 1)) {
      steps_.finish();
      const std::optional<int64_t> next = member_.next_round();
      if (!next) break;
      step = *next;
    } else if (step > last) {
      break;
    }
    take_step(step);
    if (run_.rounds().ends_after(step)) stopped = end_round(step);
  }
  if (peers_.has_unsaved_state()) saves_.save(run_.done);  // the run had reached its end when it was copied, but was not saved
  if (!run_.is_member()) return stopped;
  if (member_.has_ended()) saves_.save(run_.done = last);
  return !member_.has_ended();
}

void Run::take_step(int64_t step) {
  for (RunPhase* const phase : run_.phases) phase->before_step(step);
  steps_.start(step);
  anomalies_.end_if_anomalous(step);
  run_.done = step;
  for (RunPhase* const phase : run_.phases) phase->after_step(step);
}

/// Rank 0 decides on a requested save, because a launcher's signal may reach the ranks in different steps, and on checkpoint.every auto.
Run::Request Run::agreed_request(int64_t step) {
  const Request due = saves_.is_due(step) ? Request::kSaveDue : run_.clock.figures->due() ? Request::kGather : Request::kNone;
  const Request of_rank_0 = saves_.is_requested() ? Request::kSave : due;
  const Request request = run_.stop.requested() ? Request::kStop : run_.reports() ? of_rank_0 : Request::kNone;
  const std::string& failure = run_.checkpoints->unshared_failure();
  if (!failure.empty()) run_.log(RankRecord::Level::kError, concat("this rank's part of a checkpoint was not saved: ", failure));
  const Request own = failure.empty() ? request : Request::kSaveFailed;
  return static_cast<Request>(static_cast<int>(all_reduce_scalar(run_.world, static_cast<double>(own), ReduceOp::kMax)));
}

/// Does what concerns all islands, which exchange nothing within a round. Returns whether training is to stop.
bool Run::end_round(int64_t step) {
  if (run_.islands_decide()) steps_.finish();
  for (RunPhase* const phase : run_.phases) phase->at_round_end(step);
  const Request news = agreed_request(step);
  bool stopped = news == Request::kStop;
  if (news == Request::kGather) run_.clock.figures->report(steps_.is_behind() ? step - 1 : step, run_.reporter);
  if (news == Request::kSave) run_.reporter.message(concat("saving a checkpoint on request after step ", step));
  if (news == Request::kSaveFailed) run_.checkpoints->share_failures();
  const int64_t last = run_.last_step(), interval = run_.config.checkpoint.every.value_or(0);
  const bool asked = news == Request::kStop || news == Request::kSave || news == Request::kSaveDue;
  // The last weights of a member are those that the coordinator sends it.
  const bool saves = step == last ? !run_.is_member() : run_.rounds().is_due(step, interval) || saves_.saves_anyway(step) || asked;
  const bool checks = run_.rounds().is_due(step, run_.config.resilience.replica_check_every);
  const bool copies = peers_.is_due(step), samples = samples_.is_due(step), evaluates = run_.evaluates_at(step);
  if (checks || saves || copies || samples || evaluates) steps_.finish();
  if (rejections_.has_diverged()) steps_.finish();  // a GPU is a step ahead
  rejections_.end_if_diverged();
  if (step == last) rejections_.end_if_untrained();
  if (checks && !saves) run_.check_replicas(step);
  if (saves) saves_.save(step);
  if (copies) peers_.copy(step);
  saves_.poll();
  // Save first: an evaluation may fail, and a job that is killed in a long one keeps its last step.
  if (samples && !stopped) samples_.write(step);
  if (evaluates && !evaluation_.evaluate(step)) stopped = true;
  const bool early = evaluation_.stopper().reached();
  if (early && step < last) rejections_.end_if_untrained();
  if (!saves && (stopped || early) && (step < last || !run_.is_member())) saves_.save(step);
  if (checks || saves || copies || samples || evaluates) run_.clock.interrupt();
  if (checks || saves || copies || samples) run_.set_timeout();
  return stopped;
}

/// Waits for the last checkpoint. Collective. Errors, on all ranks: AgreedError if it was lost.
void Run::end_saves() {
  const auto begin = std::chrono::steady_clock::now();
  saves_.finish();
  jobs_.record("save_wait", {{"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()}});
  // The reduction is also a barrier: rank 0 may still be publishing what the others have written.
  const double lost = all_reduce_scalar(run_.world, run_.checkpoints->not_finite() ? 2 : run_.checkpoints->failed() ? 1 : 0, ReduceOp::kMax);
  if (lost > 1)
    throw AgreedError(
        ExitCode::kInternal,
        concat("training has diverged: the state after step ", run_.done, " is not finite, so no checkpoint of it was published; older ones ",
               "remain. Start another run with a lower training.optimizer.learning_rate or more training.schedule.warmup_steps"),
        run_.reports());
  if (lost > 0) throw AgreedError(ExitCode::kIo, concat("the checkpoint of step ", run_.done, " could not be saved"), run_.reports());
  run_.checkpoints->remove_old();
}

/// Reports what concerns the whole job.
ExitCode Run::end_training(bool stopped) {
  const int64_t last = run_.last_step();
  end_saves();
  peers_.end();
  collectively(run_.world, [&] {
    if (const std::string error = run_.reporter.write_error(); !error.empty()) throw IoError(error + "; its last lines are lost");
  });
  steps_.finish_trace();
  run_.clock.figures->report(run_.done, run_.reporter);
  run_.reporter.finish();
  if (!run_.coordinates()) forecast_.compare();
  jobs_.report_goodput();
  jobs_.report_suspects();
  privacy_.end();
  const bool evaluated = evaluation_.is_complete();
  if (stopped && (run_.done < last || !evaluated || run_.is_member())) {  // else there is nothing to resume
    run_.reporter.message(concat("stopped on request after step ", run_.done, evaluated ? "" : " before the end of its evaluation",
                                 run_.is_member() ? "" : ", checkpoint saved", "; rerun the same command to resume"));
    return ExitCode::kRequeue;
  }
  rejections_.warn_at_end();
  run_.reporter.message(concat("done: ", run_.done, " of ", run_.total, " steps; run directory ", run_.config.run.directory));
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
