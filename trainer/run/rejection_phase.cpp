#include "trainer/run/rejection_phase.h"

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/loop/state.h"
#include "trainer/machine/collectively.h"

namespace trireme {

void RejectionPhase::resume(const Resumed& resumed) {
  const bool islands = run_.islands_decide();
  const int64_t island = run_.trainer->mesh().at.island;
  rejected_ = RejectedSteps(run_.config.training.max_rejected_steps, resumed.rejected_steps, islands ? concat(" by island ", island) : "");
  if (islands && island > 0 && run_.trainer->mesh().step.rank() == 0) run_.reporter.keep_island_events();
}

void RejectionPhase::count(int64_t step, const StepResult& result) { rejected_.add(step, result); }

void RejectionPhase::add_state(int64_t, SavedState& state) const { state.rejected_steps = rejected_.count(); }

/// The newest checkpoint with different weights than the current ones, for which every gradient is non-finite; empty if there is none.
std::string RejectionPhase::checkpoint_before_rejections() const {
  try {
    for (const std::filesystem::path& checkpoint : checkpoints_of(run_.directory()))
      if (CheckpointReader(checkpoint).description().optimizer_steps < run_.trainer->scalars().accepted_steps()) return checkpoint.string();
  } catch (const Error&) {  // the path is only advice
  }
  return "";
}

void RejectionPhase::at_round_end(int64_t) {
  if (!run_.islands_decide()) return;
  const nlohmann::ordered_json own = {{"rejected", rejected_.state()}, {"events", run_.reporter.take_island_events()}};
  std::string bytes;
  nlohmann::ordered_json::to_msgpack(own, bytes);  // keeps numbers that are not finite
  most_rejected_.reset();
  int64_t island = 0;
  for (const std::string& of_island : by_island(*run_.trainer, bytes)) {
    const nlohmann::ordered_json report = nlohmann::ordered_json::from_msgpack(of_island);
    const RejectedSteps rejected(run_.config.training.max_rejected_steps, nlohmann::json(report["rejected"]));
    if (!most_rejected_ || rejected.count() > most_rejected_->count()) most_rejected_ = rejected;
    run_.reporter.report_island_events(island++, report["events"]);
  }
}

void RejectionPhase::end_if_diverged() {
  if (!has_diverged()) return;
  saves_.finish();
  run_.reporter.event("diverged", {}, {{"rejected_steps", most_rejected().count()}, {"limit", run_.config.training.max_rejected_steps}});
  const std::string before = run_.reports() ? checkpoint_before_rejections() : "";
  throw AgreedError(
      ExitCode::kInternal,
      concat("training has diverged: ", most_rejected().text(), " (training.max_rejected_steps=", run_.config.training.max_rejected_steps,
             "). Start another run with a lower training.optimizer.learning_rate, more training.schedule.warmup_steps or ",
             run_.config.training.gradient_clip > 0 ? "a smaller training.gradient_clip" : "training.gradient_clip=1",
             scales_loss(run_.config.training) ? ", or with a smaller training.loss_scale.minimum" : "",
             before.empty() ? "" : concat("; training.initial_weights=", before, " starts it from weights saved before the divergence")),
      run_.reports());
}

void RejectionPhase::end_if_untrained() {
  if (run_.is_member() || run_.coordinates()) return;
  if (all_reduce_scalar(run_.world, static_cast<double>(run_.trainer->scalars().accepted_steps()), ReduceOp::kMax) > 0) return;
  if (run_.done < run_.total && most_rejected().count() == 0) return;
  saves_.finish();
  throw AgreedError(
      ExitCode::kInternal,
      concat("nothing was trained: every step of this run up to step ", run_.done, " was rejected",
             most_rejected().count() == 0       ? "; the gradients overflowed at every loss scale from training.loss_scale.initial on"
             : most_rejected().reason().empty() ? ""
                                                : ", because " + most_rejected().reason(),
             ". The weights are those that the run began with, and no checkpoint of step ", run_.done, " was saved. Look at the data, or lower ",
             most_rejected().count() > 0 ? "training.optimizer.learning_rate" : "training.loss_scale.initial"),
      run_.reports());
}

void RejectionPhase::warn_at_end() {
  if (most_rejected().count() > 0)
    run_.reporter.message(concat("warning: at the end of the run, ", most_rejected().text(), "; the weights are those from before ",
                                 most_rejected().count() == 1 ? "this step" : "these steps"));
}

}  // namespace trireme
