// What a run does with a step whose loss or gradient norm is anomalous.
#include "trainer/loop/collectively.h"
#include "trainer/run/rank_results.h"
#include "trainer/run/rank_run.h"

namespace trireme {

using nlohmann::ordered_json;

/// Executes an anomalous step again. Collective.
RerunVerdict Run::repeat(int64_t step, const StepResult& result, const StepLimits& limits) {
  progress_.act(concat("repeating step ", step));
  progress_.set_timeout(state_timeout(config_));
  const RepeatableStep again{data_->train, step - 1, result.learning_rate, limits, finished_.loss_scale};
  RerunVerdict verdict = rerun(*trainer_, exchanges_, again, {result, std::move(finished_.exchanges)}, window_.z());
  set_timeout();
  continue_training();
  return verdict;
}

/// Reports and counts a finished step. The report of a repeated step has the results of its last execution. All ranks decide alike, because
/// Trainer::finish has compared their copies of the result, and everything else that decides follows from results. Collective.
void Run::report_step(int64_t step, StepResult result, double seconds) {
  const AnomalyPolicy policy = config_.observe.anomalies.policy.value();
  padding_ += result.padding;
  const StepLimits limits = judges_before_update() ? finished_.limits : window_.limits();
  const Anomaly anomaly = anomaly_in(result, limits);
  if (!anomaly) {
    reporter_.step(step, result, seconds, more_figures(step, result), padding_);
    return count_step(step, result);
  }
  std::vector<RankResult> ranks;  // with parameter servers no rank has a part of its own in an update
  if (!result.applied) ranks = gather_rank_results(*trainer_, result, finished_.limits);
  const std::string text = text_of(anomaly, result, limits) + outliers_text(ranks) + (anomaly.only_ranks() ? "" : highest_text(ranks));
  ordered_json fields = result.applied ? ordered_json::object() : to_json(ranks);
  const StepResult first = result;
  std::optional<RerunVerdict> verdict;
  if (policy == AnomalyPolicy::kRerun) {
    verdict = repeat(step, first, limits);
    result = verdict->result;
    fields.update({{"verdict", name_of(verdict->cause)}, {"ranks", verdict->ranks}, {"samples", verdict->samples}, {"accepted", result.accepted}});
  }
  reporter_.step(step, result, seconds, more_figures(step, result), padding_);
  const bool stops = policy == AnomalyPolicy::kStop && !first.accepted;
  const char* const action = verdict ? "rerun" : stops ? "stop" : first.accepted ? "warn" : "skip";
  const bool clean = verdict && !anomaly_in(result, limits);
  const char* const outcome = stops              ? "; the run ends, with the weights from before this step"
                              : !result.accepted ? "; the step was rejected on every rank, weights are unchanged"
                              : clean            ? "; a repetition without the anomaly was accepted"
                                                 : "; the step was accepted";
  // A gradient that is not finite has a line already, that of a rejected step.
  const bool has_line = !stops && !verdict && !result.accepted && !result.over_limit;
  reporter_.anomaly(step, first, limits, action, fields, has_line ? "" : concat(text, verdict ? "; " + verdict->text : "", outcome));
  if (stops) {
    stop_reason_ = text_of(anomaly, first, limits);
    padding_ -= first.padding;
    return;  // the checkpoint of the step before must not count this one
  }
  if (verdict && verdict->cause == RerunVerdict::Cause::kReplicas) check_replicas(step);
  count_step(step, result);
}

void Run::count_step(int64_t step, const StepResult& result) {
  rejected_.add(step, result);
  window_.add(result);
  if (trainer_->counts_loss() && trainer_->mesh().shape.data() > 1 && !result.applied) rank_window_.add(result);
  if (const Arrivals* const arrivals = result.arrivals())
    for (const int64_t staleness : arrivals->staleness) staleness_.add(staleness);
  if (result.targets > 0) trainer_->count_layer_gradients();
}

/// With the policy stop: saves the state before the anomalous `step` and ends the run. The step was rejected and has changed no weight, but it has
/// halved the loss scale if neither loss nor gradient is finite.
void Run::end_if_anomalous(int64_t step) {
  if (stop_reason_.empty()) return;
  if (scales_loss(config_.training)) trainer_->set_loss_scale(finished_.loss_scale);
  if (checkpoints_->last_saved() < step - 1) save(step - 1);
  progress_.act("waiting for the last checkpoint");
  progress_.set_timeout(2 * state_timeout(config_));
  checkpoints_->finish();
  reporter_.event("anomaly_stop", {}, {{"before_step", step}});
  throw AgreedError(ExitCode::kInternal,
                    concat("training has stopped at an anomaly: in step ", step, " ", stop_reason_, " (observe.anomalies.policy=stop)",
                           step > 1 ? concat(". The checkpoint of step ", step - 1, " has the state before it") : "",
                           "; to continue without this step, resume with observe.anomalies.policy=skip"),
                    reports());
}

}  // namespace trireme
