#include "trainer/run/job_reports.h"

#include <cmath>
#include <set>
#include <utility>

#include "kernels/core/counted.h"
#include "trainer/config/fields.h"
#include "trainer/files/printable.h"
#include "trainer/report/goodput.h"
#include "trainer/report/suspects.h"
#include "trainer/submit/accounts.h"

namespace trireme {

/// The keys that decide how, not what, is trained and are not at their defaults: a run may change them from job to job, and `trireme compare` asks.
static nlohmann::ordered_json keys_of_job(const Config& config) {
  nlohmann::ordered_json keys = nlohmann::ordered_json::object();
  for (const FieldDifference& one : differing_fields(Config{}, config))
    if (one.after.field.decides == Aspect::kLayout || one.after.field.decides == Aspect::kExecution) keys[one.after.path] = one.to;
  return keys;
}

void JobReports::record(const char* event, const nlohmann::ordered_json& fields) {
  if (!is_recorded_) return;
  try {
    append_job_record(run_.directory(), event, fields);
  } catch (const Error& error) {
    if (!std::exchange(record_failed_, true)) run_.reporter.message(concat("warning: ", error.what(), "; trireme goodput will lack it"));
  }
}

void JobReports::start(const Resumed& resumed, const MetricsSink::Discarded& discarded) {
  const LaunchEnvironment& launch = run_.options.environment;
  nlohmann::ordered_json fields = {{"step", run_.done},
                                   {"world_size", run_.world.size()},
                                   {"threads", run_.ctx.threads},
                                   {"hosts", std::set<std::string>(run_.hosts.begin(), run_.hosts.end())},
                                   {"keys", keys_of_job(run_.config)},
                                   {"launcher", utc_text(launch.times.launcher)},
                                   {"launched", utc_text(launch.times.job)},
                                   {"joined", utc_text(joined_)}};
  if (launch.slurm_job) fields.update({{"slurm_job", *launch.slurm_job}, {"slurm_restarts", launch.slurm_restarts}});
  const bool begins = run_.options.resume == "never" && resumed.checkpoint.empty();
  if (!discarded.until.empty() && !begins) fields["discarded"] = {{"steps", discarded.steps}, {"until", discarded.until}};
  is_recorded_ = true;
  try {
    if (begins) set_job_records_aside(run_.directory());
  } catch (const Error& error) {
    run_.reporter.message(concat("warning: ", error.what()));
  }
  record("start", fields);
  record_slurm_start();
}

/// Slurm forgets most of this where it has no accounting.
void JobReports::record_slurm_start() {
  const LaunchEnvironment& launch = run_.options.environment;
  if (!launch.slurm_job || !is_recorded_) return;
  for (const submit::JobAccount& account : submit::ask_queue(*launch.slurm_job)) {
    if (account.job != *launch.slurm_job) continue;
    nlohmann::ordered_json fields = {{"partition", account.partition}, {"nodes", account.nodes}, {"cpus", account.cpus}, {"gpus", account.gpus}};
    for (const auto& [name, seconds] : {std::pair("submitted", account.submitted), std::pair("started", account.started)})
      if (std::isfinite(seconds)) fields[name] = utc_text(WallClock::time_point(std::chrono::seconds(std::llround(seconds))));
    record("slurm", fields);
  }
}

void JobReports::report_goodput() {
  if (!run_.reports()) return;
  try {
    const std::optional<report::Goodput> goodput = report::goodput_of(report::read_run(run_.directory()));
    if (!goodput) return;
    nlohmann::ordered_json useful, lost;
    for (size_t i = 0; i < report::kTimeCauses.size(); ++i) (i < report::kUsefulCauses ? useful : lost)[report::kTimeCauses[i]] = goodput->seconds[i];
    run_.reporter.event("goodput", run_.done,
                        {{"share", goodput->share()},
                         {"wall_seconds", goodput->wall_seconds},
                         {"median_step_seconds", goodput->median_step_seconds},
                         {"steps", goodput->steps},
                         {"replayed_steps", goodput->replayed_steps},
                         {"useful_seconds", useful},
                         {"lost_seconds", lost}},
                        "goodput: " + report::goodput_text(*goodput));
  } catch (const std::exception& error) {
    run_.reporter.message(concat("warning: no goodput: ", printable(error)));
  }
}

void JobReports::report_suspects() {
  if (!run_.reports() || !is_robust(run_.config.security)) return;
  try {
    const report::RunRecord run = report::read_run(run_.directory());
    const std::vector<report::Suspect> suspects = report::suspects_of(run);
    nlohmann::ordered_json ranks = nlohmann::ordered_json::object();
    for (const report::Suspect& one : suspects)
      ranks[std::to_string(one.rank)] = {{"steps", one.steps}, {"farthest", one.farthest}, {"left_out", one.left_out}};
    run_.reporter.event("suspects", run_.done, {{"steps", run.steps.size()}, {"ranks", ranks}},
                        suspects.empty() ? "" : "suspected: " + report::suspects_text(suspects, std::ssize(run.steps.step)));
  } catch (const std::exception& error) {
    run_.reporter.message(concat("warning: no suspects: ", printable(error)));
  }
}

}  // namespace trireme
