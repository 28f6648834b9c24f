// What a run does with a step whose loss or gradient norm is anomalous.
#include <bit>
#include <cmath>
#include <sstream>

#include "trainer/loop/collectively.h"
#include "trainer/loop/environment.h"
#include "trainer/run/rank_run.h"

namespace trireme {

using nlohmann::ordered_json;

namespace {

/// What one rank contributes to the loss and the gradient norm of a step.
struct RankResult {
  int rank = 0;  ///< in the world
  std::string host;
  std::optional<double> loss;  ///< mean over the rank's samples, nats; none without the last stage
  double loss_limit = 0;       ///< above which the rank stands out; infinity: none
  double grad_norm = 0;        ///< of the gradients that the rank owns, to which all data ranks have contributed
  bool stands_out = false;
};

/// The results of every rank of this rank's island, on all of them. Collective.
std::vector<RankResult> gather_rank_results(Trainer& trainer, const StepResult& result, const StepLimits& limits) {
  const auto bits = [](double value) { return std::to_string(std::bit_cast<uint64_t>(value)); };
  const bool has_loss = trainer.counts_loss() && result.local_targets > 0;
  const double loss = result.local_loss / static_cast<double>(std::max<int64_t>(result.local_targets, 1));
  const double norm = std::sqrt(result.local_squares) / static_cast<double>(result.loss_scale.value_or(1));
  std::vector<RankResult> all;
  const int first = trainer.mesh().world.rank() - trainer.mesh().step.rank();
  for (const std::string& text : all_gather_strings(trainer.mesh().step, concat(has_loss, " ", bits(loss), " ", bits(norm), " ",
                                                                                bits(limits.rank_loss), " ", result.stands_out, " ", host_name()))) {
    std::istringstream words(text);
    bool known = false;
    uint64_t loss_bits = 0, norm_bits = 0, limit_bits = 0;
    RankResult& one = all.emplace_back();
    one.rank = first + static_cast<int>(all.size()) - 1;
    words >> known >> loss_bits >> norm_bits >> limit_bits >> one.stands_out >> one.host;
    if (known) one.loss = std::bit_cast<double>(loss_bits);
    one.grad_norm = std::bit_cast<double>(norm_bits);
    one.loss_limit = std::bit_cast<double>(limit_bits);
  }
  return all;
}

/// Orders values; one that is not finite is larger than every other.
bool larger(double a, double b) { return !std::isfinite(a) ? std::isfinite(b) : a > b; }

/// ": rank 3 on host a with a loss of 9.25, above 4.5"; of at most four ranks.
std::string outliers_text(const std::vector<RankResult>& ranks) {
  constexpr int kMost = 4;
  int count = 0;
  std::string text;
  for (const RankResult& rank : ranks) {
    if (!rank.stands_out || ++count > kMost) continue;
    text += concat(text.empty() ? ": rank " : ", rank ", rank.rank, " on ", rank.host, " with a loss of ", rank.loss.value_or(0), ", above ",
                   rank.loss_limit);
  }
  return text;
}

/// "; rank 3 on host a has the highest loss, 9.25, and rank 1 on host b the highest gradient norm, 17"; empty for one rank or none.
std::string highest(const std::vector<RankResult>& ranks) {
  if (ranks.size() <= 1) return "";
  size_t norm = 0;
  std::optional<size_t> loss;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (larger(ranks[rank].grad_norm, ranks[norm].grad_norm)) norm = rank;
    if (ranks[rank].loss && (!loss || larger(*ranks[rank].loss, *ranks[*loss].loss))) loss = rank;
  }
  const auto name = [&](size_t rank) { return concat("rank ", ranks[rank].rank, " on ", ranks[rank].host); };
  return concat("; ", loss ? concat(name(*loss), " has the highest loss, ", *ranks[*loss].loss, ", and ") : "", name(norm),
                loss ? " the highest gradient norm, " : " has the highest gradient norm, ", ranks[norm].grad_norm);
}

ordered_json to_json(const std::vector<RankResult>& ranks) {
  ordered_json losses = ordered_json::array(), norms = losses, limits = losses, outliers = losses;
  for (const RankResult& rank : ranks) {
    losses.push_back(rank.loss ? ordered_json(*rank.loss) : ordered_json());
    norms.push_back(rank.grad_norm);
    limits.push_back(std::isfinite(rank.loss_limit) ? ordered_json(rank.loss_limit) : ordered_json());
    if (rank.stands_out) outliers.push_back(rank.rank);
  }
  return {{"rank_loss", losses}, {"rank_loss_limit", limits}, {"rank_grad_norm", norms}, {"outliers", outliers}};
}

}  // namespace

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
  const std::string text = text_of(anomaly, result, limits) + outliers_text(ranks) + (anomaly.only_ranks() ? "" : highest(ranks));
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
