#include "trainer/run/save_phase.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "kernels/core/counted.h"
#include "trainer/plan/text.h"

namespace trireme {

void SavePhase::begin_intervals() {
  if (run_.config.checkpoint.every || !run_.reports()) return;
  SaveInterval::Start start{.mtbf = run_.config.resilience.mean_time_between_failures, .step = run_.done, .last_step = run_.last_step()};
  try {
    const std::vector<JobRecord> jobs = read_job_records(run_.directory());
    const FailureHistory history = failures_of(jobs);
    start.failures = history.failures;
    start.trained_seconds = history.seconds;
    for (const JobRecord& job : jobs)
      if (job.interval) start.save_seconds = job.interval->save_seconds, start.step_seconds = job.interval->step_seconds;
  } catch (const Error& error) {
    run_.reporter.message(concat("warning: ", error.what(), "; checkpoint.every auto begins without what earlier jobs have measured"));
  }
  interval_.emplace(start);
}

void SavePhase::at_round_end(int64_t step) {
  const std::optional<SaveInterval::Choice> choice = interval_ ? interval_->take_choice() : std::nullopt;
  if (!choice) return;
  const nlohmann::ordered_json fields = {{"steps", choice->steps},
                                         {"save_seconds", choice->save_seconds},
                                         {"step_seconds", choice->step_seconds},
                                         {"mean_time_between_failures", choice->mtbf},
                                         {"failures", choice->failures}};
  nlohmann::ordered_json kept = {{"step", step}};
  kept.update(fields);
  jobs_.record("interval", kept);
  constexpr double kNews = 0.2;
  const auto before = static_cast<double>(reported_interval_);
  const bool is_news = std::abs(static_cast<double>(choice->steps) - before) > kNews * before;
  if (is_news) reported_interval_ = choice->steps;
  const std::string source = run_.config.resilience.mean_time_between_failures ? "as given"
                             : choice->failures > 0                            ? counted(choice->failures, "failure") + " so far"
                                                                               : "no failure yet";
  const std::string text =
      concat("checkpoint.every: auto is ", counted(choice->steps, "step"), ", as a save costs ", time_text(choice->save_seconds), ", a step takes ",
             time_text(choice->step_seconds), " and a failure is expected every ", time_text(choice->mtbf), " (", source, ")");
  run_.reporter.event("checkpoint_interval", step, fields, is_news ? text : "");
}

bool SavePhase::saves_anyway(int64_t step) const {
  const CheckpointConfig& keys = run_.config.checkpoint;
  if (keys.every) return false;
  return run_.rounds().is_due(step, keys.keep_every.value_or(0)) || (keys.keep_best > 0 && run_.evaluates_at(step));
}

void SavePhase::save(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  if (run_.config.resilience.replica_check_every > 0) run_.check_replicas(step);
  run_.log(RankRecord::Level::kInfo, concat("saving step ", step));
  request_.clear();
  run_.ctx.arena->set_phase(MemoryPhase::kSave);
  run_.checkpoints->save(step, run_.state(step));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  jobs_.record("save", {{"step", step}, {"seconds", seconds}});
  if (interval_) interval_->saved(step, seconds);
}

void SavePhase::poll() {
  run_.checkpoints->poll();
  if (const SaveReport* const saved = run_.checkpoints->outcome(); saved != nullptr && interval_)
    interval_->written(saved->error ? std::nullopt : std::optional(saved->write_seconds));
}

void SavePhase::finish() {
  run_.progress.act("waiting for the last checkpoint");
  run_.progress.set_timeout(2 * state_timeout(run_.config));
  run_.checkpoints->finish();
}

void SavePhase::add_seconds(double seconds) {
  if (interval_) interval_->add_step(seconds);
}

}  // namespace trireme
