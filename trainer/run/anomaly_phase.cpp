#include "trainer/run/anomaly_phase.h"

#include <utility>

#include "trainer/machine/collectively.h"
#include "trainer/run/rank_results.h"

namespace trireme {

using nlohmann::ordered_json;

void AnomalyPhase::resume(const Resumed& resumed) {
  window_ = AnomalyWindow(run_.config.observe.anomalies, resumed.anomaly_window);
  rank_window_ = RankWindow(run_.config.observe.anomalies);
}

void AnomalyPhase::add_state(int64_t, SavedState& state) const {
  if (judges_before_update()) state.anomaly_window = window_.state();
}

StepLimits AnomalyPhase::limits() const { return rank_window_.add_to(judges_before_update() ? window_.limits() : StepLimits()); }

/// Executes an anomalous step again. Collective.
RerunVerdict AnomalyPhase::repeat(int64_t step, const StepResult& result, const StepLimits& limits) {
  run_.progress.act(concat("repeating step ", step));
  run_.progress.set_timeout(state_timeout(run_.config));
  const RepeatableStep again{run_.data->train, step - 1, result.learning_rate, limits, finished_.loss_scale};
  RerunVerdict verdict = rerun(*run_.trainer, exchanges_, again, {result, std::move(finished_.exchanges)}, window_.z());
  run_.set_timeout();
  run_.clock.interrupt();
  return verdict;
}

std::optional<StepResult> AnomalyPhase::report(StartedStep finished, StepResult result, double seconds, const MoreFigures& more) {
  finished_ = std::move(finished);
  const int64_t step = finished_.step;
  const AnomalyPolicy policy = run_.config.observe.anomalies.policy.value();
  run_.padding += result.padding;
  const StepLimits limits = judges_before_update() ? finished_.limits : window_.limits();
  const Anomaly anomaly = anomaly_in(result, limits);
  if (!anomaly) {
    run_.reporter.step(step, result, seconds, more(result), run_.padding);
    return result;
  }
  std::vector<RankResult> ranks;  // with parameter servers no rank has a part of its own in an update
  if (!result.applied) ranks = gather_rank_results(*run_.trainer, result, finished_.limits);
  const std::string text = text_of(anomaly, result, limits) + outliers_text(ranks) + (anomaly.only_ranks() ? "" : highest_text(ranks));
  ordered_json fields = result.applied ? ordered_json::object() : to_json(ranks);
  const StepResult first = result;
  std::optional<RerunVerdict> verdict;
  if (policy == AnomalyPolicy::kRerun) {
    verdict = repeat(step, first, limits);
    result = verdict->result;
    fields.update({{"verdict", name_of(verdict->cause)}, {"ranks", verdict->ranks}, {"samples", verdict->samples}, {"accepted", result.accepted}});
  }
  run_.reporter.step(step, result, seconds, more(result), run_.padding);
  const bool stops = policy == AnomalyPolicy::kStop && !first.accepted;
  const char* const action = verdict ? "rerun" : stops ? "stop" : first.accepted ? "warn" : "skip";
  const bool clean = verdict && !anomaly_in(result, limits);
  const char* const outcome = stops              ? "; the run ends, with the weights from before this step"
                              : !result.accepted ? "; the step was rejected on every rank, weights are unchanged"
                              : clean            ? "; a repetition without the anomaly was accepted"
                                                 : "; the step was accepted";
  // A gradient that is not finite has a line already, that of a rejected step.
  const bool has_line = !stops && !verdict && !result.accepted && !result.over_limit;
  run_.reporter.anomaly(step, first, limits, action, fields, has_line ? "" : concat(text, verdict ? "; " + verdict->text : "", outcome));
  if (stops) {
    stop_reason_ = text_of(anomaly, first, limits);
    run_.padding -= first.padding;
    return std::nullopt;  // the checkpoint of the step before must not count this one
  }
  if (verdict && verdict->cause == RerunVerdict::Cause::kReplicas) run_.check_replicas(step);
  return result;
}

void AnomalyPhase::count(int64_t, const StepResult& result) {
  window_.add(result);
  if (run_.trainer->counts_loss() && run_.trainer->mesh().shape.data() > 1 && !result.applied) rank_window_.add(result);
}

void AnomalyPhase::end_if_anomalous(int64_t step) {
  if (stop_reason_.empty()) return;
  if (scales_loss(run_.config.training)) run_.trainer->scalars().set_loss_scale(finished_.loss_scale);
  if (run_.checkpoints->last_saved() < step - 1) saves_.save(step - 1);
  saves_.finish();
  run_.reporter.event("anomaly_stop", {}, {{"before_step", step}});
  throw AgreedError(ExitCode::kInternal,
                    concat("training has stopped at an anomaly: in step ", step, " ", stop_reason_, " (observe.anomalies.policy=stop)",
                           step > 1 ? concat(". The checkpoint of step ", step - 1, " has the state before it") : "",
                           "; to continue without this step, resume with observe.anomalies.policy=skip"),
                    run_.reports());
}

}  // namespace trireme
