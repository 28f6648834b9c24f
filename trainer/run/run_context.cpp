#include "trainer/run/run_context.h"

#include <utility>

#include "trainer/loop/learning_rate.h"
#include "trainer/machine/collectively.h"
#include "trainer/resilience/replica_check.h"
#include "trainer/run/run_phase.h"

namespace trireme {

double StepClock::finish(int64_t step, const StepResult& result, bool traced) {
  const auto now = std::chrono::steady_clock::now();
  double seconds = std::chrono::duration<double>(now - std::exchange(last_report, now)).count();
  if (result.applied) seconds = result.applied->seconds;  // this rank may have computed for several updates, or for none
  timeout.finish(step, seconds);
  if (!traced) steady.add(seconds);
  figures->add_step(seconds);
  return seconds;
}

void StepClock::interrupt() {
  last_report = std::chrono::steady_clock::now();
  steady.interrupt();
  figures->interrupt();
}

bool RunContext::evaluates_at(int64_t step) const {
  const int64_t every = config.training.evaluate.every;
  return !data->validation.empty() && !is_member() && step > 0 && ((every > 0 && step % every == 0) || step == total);
}

double RunContext::learning_rate_of(int64_t step) const {
  return learning_rate(config.training.schedule, config.training.optimizer, config.training.global_batch_size, step, total);
}

void RunContext::log(RankRecord::Level level, const std::string& text) const {
  if (options.record != nullptr) options.record->write(level, text);
}

bool RunContext::stop_agreed() const { return all_reduce_scalar(world, stop.requested() ? 1 : 0, ReduceOp::kMax) > 0; }

SavedState RunContext::state(int64_t step) const {
  SavedState state{.padding = padding};
  for (const RunPhase* const phase : phases) phase->add_state(step, state);
  return state;
}

void RunContext::check_replicas(int64_t step) {
  progress.act("comparing replicas");
  progress.set_timeout(state_timeout(config));
  ctx.arena->set_phase(MemoryPhase::kSave);
  const std::string differences = replica_differences(*trainer);
  if (!differences.empty())
    throw AgreedError(
        ExitCode::kInternal,
        concat("after step ", step, " replicated state differs between ranks; possible causes: a memory or link fault, or different processors:\n",
               differences),
        reports());
}

}  // namespace trireme
