// What a run records of its jobs, the interval between checkpoints that it chooses, and its goodput.
#include <cmath>
#include <set>
#include <utility>

#include "kernels/core/counted.h"
#include "trainer/config/fields.h"
#include "trainer/files/printable.h"
#include "trainer/plan/text.h"
#include "trainer/report/goodput.h"
#include "trainer/run/rank_run.h"
#include "trainer/submit/accounts.h"

namespace trireme {

/// The keys that decide how, not what, is trained and are not at their defaults: a run may change them from job to job, and `trireme compare` asks.
static nlohmann::ordered_json keys_of_job(const Config& config) {
  nlohmann::ordered_json keys = nlohmann::ordered_json::object();
  for (const FieldDifference& one : differing_fields(Config{}, config))
    if (one.after.field.decides == Aspect::kLayout || one.after.field.decides == Aspect::kExecution) keys[one.after.path] = one.to;
  return keys;
}

/// Adds a record to jobs.jsonl. The training is worth more than its bookkeeping.
void Run::record(const char* event, const nlohmann::ordered_json& fields) {
  if (!is_recorded_) return;
  try {
    append_job_record(directory(), event, fields);
  } catch (const Error& error) {
    if (!std::exchange(record_failed_, true)) reporter_.message(concat("warning: ", error.what(), "; trireme goodput will lack it"));
  }
}

/// `discarded`: lines of metrics.jsonl about steps that this job makes again. With --resume never a new history begins.
void Run::record_start(const Resumed& resumed, const MetricsSink::Discarded& discarded) {
  const LaunchEnvironment& launch = options_.environment;
  nlohmann::ordered_json fields = {{"step", done_},
                                   {"world_size", world_.size()},
                                   {"threads", ctx_.threads},
                                   {"hosts", std::set<std::string>(hosts_.begin(), hosts_.end())},
                                   {"keys", keys_of_job(config_)},
                                   {"launcher", utc_text(launch.times.launcher)},
                                   {"launched", utc_text(launch.times.job)},
                                   {"joined", utc_text(joined_)}};
  if (launch.slurm_job) fields.update({{"slurm_job", *launch.slurm_job}, {"slurm_restarts", launch.slurm_restarts}});
  const bool begins = options_.resume == "never" && resumed.checkpoint.empty();
  if (!discarded.until.empty() && !begins) fields["discarded"] = {{"steps", discarded.steps}, {"until", discarded.until}};
  is_recorded_ = true;
  try {
    if (begins) set_job_records_aside(directory());
  } catch (const Error& error) {
    reporter_.message(concat("warning: ", error.what()));
  }
  record("start", fields);
  record_slurm_start();
}

/// Slurm forgets most of this where it has no accounting.
void Run::record_slurm_start() {
  const LaunchEnvironment& launch = options_.environment;
  if (!launch.slurm_job || !is_recorded_) return;
  for (const submit::JobAccount& account : submit::ask_queue(*launch.slurm_job)) {
    if (account.job != *launch.slurm_job) continue;
    nlohmann::ordered_json fields = {{"partition", account.partition}, {"nodes", account.nodes}, {"cpus", account.cpus}, {"gpus", account.gpus}};
    for (const auto& [name, seconds] : {std::pair("submitted", account.submitted), std::pair("started", account.started)})
      if (std::isfinite(seconds)) fields[name] = utc_text(WallClock::time_point(std::chrono::seconds(std::llround(seconds))));
    record("slurm", fields);
  }
}

/// With checkpoint.every auto rank 0 continues with the interval that an earlier job has chosen.
void Run::begin_intervals() {
  if (config_.checkpoint.every || !reports()) return;
  SaveInterval::Start start{.mtbf = config_.resilience.mean_time_between_failures, .step = done_, .last_step = last_step()};
  try {
    const std::vector<JobRecord> jobs = read_job_records(directory());
    const FailureHistory history = failures_of(jobs);
    start.failures = history.failures;
    start.trained_seconds = history.seconds;
    for (const JobRecord& job : jobs)
      if (job.interval) start.save_seconds = job.interval->save_seconds, start.step_seconds = job.interval->step_seconds;
  } catch (const Error& error) {
    reporter_.message(concat("warning: ", error.what(), "; checkpoint.every auto begins without what earlier jobs have measured"));
  }
  save_interval_.emplace(start);
}

/// Records what the last save has made of checkpoint.every auto, and says so if it has changed by more than a fifth.
void Run::report_interval(int64_t step) {
  const std::optional<SaveInterval::Choice> choice = save_interval_ ? save_interval_->take_choice() : std::nullopt;
  if (!choice) return;
  const nlohmann::ordered_json fields = {{"steps", choice->steps},
                                         {"save_seconds", choice->save_seconds},
                                         {"step_seconds", choice->step_seconds},
                                         {"mean_time_between_failures", choice->mtbf},
                                         {"failures", choice->failures}};
  nlohmann::ordered_json kept = {{"step", step}};
  kept.update(fields);
  record("interval", kept);
  constexpr double kNews = 0.2;
  const auto before = static_cast<double>(reported_interval_);
  const bool is_news = std::abs(static_cast<double>(choice->steps) - before) > kNews * before;
  if (is_news) reported_interval_ = choice->steps;
  const std::string source = config_.resilience.mean_time_between_failures ? "as given"
                             : choice->failures > 0                        ? counted(choice->failures, "failure") + " so far"
                                                                           : "no failure yet";
  const std::string text =
      concat("checkpoint.every: auto is ", counted(choice->steps, "step"), ", as a save costs ", time_text(choice->save_seconds), ", a step takes ",
             time_text(choice->step_seconds), " and a failure is expected every ", time_text(choice->mtbf), " (", source, ")");
  reporter_.event("checkpoint_interval", step, fields, is_news ? text : "");
}

/// With checkpoint.every auto: the steps whose checkpoints checkpoint.keep_every and checkpoint.keep_best are about.
bool Run::saves_anyway(int64_t step) const {
  const CheckpointConfig& keys = config_.checkpoint;
  if (keys.every) return false;
  return rounds().is_due(step, keys.keep_every.value_or(0)) || (keys.keep_best > 0 && evaluates_at(step));
}

/// Reports the goodput of all jobs of the run, from what jobs.jsonl and metrics.jsonl have of them. It is not worth ending a job.
void Run::report_goodput() {
  if (!reports()) return;
  try {
    const std::optional<report::Goodput> goodput = report::goodput_of(report::read_run(directory()));
    if (!goodput) return;
    nlohmann::ordered_json useful, lost;
    for (size_t i = 0; i < report::kTimeCauses.size(); ++i) (i < report::kUsefulCauses ? useful : lost)[report::kTimeCauses[i]] = goodput->seconds[i];
    reporter_.event("goodput", done_,
                    {{"share", goodput->share()},
                     {"wall_seconds", goodput->wall_seconds},
                     {"median_step_seconds", goodput->median_step_seconds},
                     {"steps", goodput->steps},
                     {"replayed_steps", goodput->replayed_steps},
                     {"useful_seconds", useful},
                     {"lost_seconds", lost}},
                    "goodput: " + report::goodput_text(*goodput));
  } catch (const std::exception& error) {
    reporter_.message(concat("warning: no goodput: ", printable(error)));
  }
}

}  // namespace trireme
