#include "trainer/report/slurm_jobs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/table.h"
#include "trainer/report/axis.h"

namespace trireme::report {
namespace {

using nlohmann::ordered_json;
using submit::JobAccount;

constexpr const char* kUnknownText = "–";

/// The scripts of jobs write whole seconds.
double seconds_of_utc(const std::string& text) {
  for (const std::string& whole : {text, text.substr(0, text.find('Z')) + ".000Z"})
    if (const auto time = time_of_utc(whole)) return seconds_since_1970(*time);
  return SlurmJob::kUnknown;
}

/// nullptr if it is not among them.
SlurmJob* find_try(std::vector<SlurmJob>& jobs, const std::string& job, int64_t restart) {
  const auto found = std::ranges::find_if(jobs, [&](const SlurmJob& one) { return one.job == job && one.restart == restart; });
  return found == jobs.end() ? nullptr : &*found;
}

SlurmJob of_script(const SlurmTry& one) {
  SlurmJob job{.job = one.job, .array = one.array, .restart = one.restart, .begin = seconds_of_utc(one.begin), .partition = one.partition};
  job.nodes = one.nodes;
  job.tasks = one.tasks;
  if (one.seconds) job.elapsed = static_cast<double>(*one.seconds);
  if (one.code) job.exit_code = std::to_string(*one.code);
  job.next = one.next;
  return job;
}

void add_start(SlurmJob& job, const SlurmStart& start) {
  if (job.partition.empty()) job.partition = start.partition;
  if (job.nodes.empty()) job.nodes = start.nodes;
  job.cpus = start.cpus;
  job.gpus = start.gpus;
  job.queued = start.started - start.submitted;
}

/// The account of a try that Slurm says it has started at `started`, if that is known, and that has begun at `begin`. nullptr if there is none.
const JobAccount* account_of(const SlurmJob& job, double started, const std::vector<JobAccount>& accounts) {
  constexpr double kClocks = 60;  // seconds by which the clocks of two hosts may differ
  const JobAccount* best = nullptr;
  for (const JobAccount& one : accounts) {
    if (one.job != job.job || !std::isfinite(one.started)) continue;
    if (std::isfinite(started) ? one.started != started : !(one.started <= job.begin + kClocks && !(one.ended + kClocks < job.begin))) continue;
    if (best == nullptr || std::abs(one.started - job.begin) < std::abs(best->started - job.begin)) best = &one;
  }
  return best;
}

void add_account(SlurmJob& job, const JobAccount& account) {
  if (!account.partition.empty()) job.partition = account.partition;
  if (!account.nodes.empty()) job.nodes = account.nodes;
  if (account.cpus > 0) job.cpus = account.cpus;
  if (account.gpus > 0) job.gpus = account.gpus;
  if (std::isfinite(account.started - account.submitted)) job.queued = account.started - account.submitted;
  if (std::isfinite(account.ended)) job.elapsed = account.ended - account.started;
  job.state = account.state;
  // Slurm has 0:0 for tries that were requeued, whatever their script has returned.
  if (std::isfinite(account.ended) && (job.exit_code.empty() || account.exit_code != "0:0")) job.exit_code = account.exit_code;
  job.max_rss = account.max_rss;
  job.joules = account.joules;
}

ordered_json json_of_known(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }
ordered_json json_of_known(const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); }
ordered_json json_of_known(int64_t count) { return count > 0 ? ordered_json(count) : ordered_json(); }

std::string cell_of(double value, Quantity quantity) { return std::isfinite(value) ? value_text(value, quantity) : kUnknownText; }
std::string cell_of(const std::string& text) { return text.empty() ? kUnknownText : text; }
std::string cell_of(int64_t count) { return count > 0 ? std::to_string(count) : kUnknownText; }

std::string energy_text(double joules) {
  constexpr double kJoulesOfKilowattHour = 3.6e6;
  return std::isfinite(joules) ? value_text(joules / kJoulesOfKilowattHour, Quantity::kNumber) + " kWh" : kUnknownText;
}

std::string next_text(const SlurmJob& one) {
  if (one.next.starts_with("requeued")) return "requeued";
  if (one.exit_code.empty() && one.state.empty()) return "no end recorded";  // it runs, or was killed with its node or by Slurm
  return one.next.empty() ? kUnknownText : "ended";
}

}  // namespace

std::vector<std::string> slurm_job_ids(const RunRecord& run) {
  std::vector<std::string> ids;
  const auto add = [&](const std::string& job) {
    if (!job.empty() && std::ranges::find(ids, job) == ids.end()) ids.push_back(job);
  };
  for (const SlurmTry& one : run.slurm) add(one.job);
  for (const JobRecord& one : run.jobs) add(one.slurm_job);
  return ids;
}

std::vector<SlurmJob> slurm_jobs(const RunRecord& run, const std::vector<JobAccount>& accounts) {
  std::vector<SlurmJob> jobs;
  for (const SlurmTry& one : run.slurm) jobs.push_back(of_script(one));
  std::vector<double> started(jobs.size(), SlurmJob::kUnknown);
  for (const JobRecord& one : run.jobs) {
    if (one.slurm_job.empty()) continue;
    SlurmJob* job = find_try(jobs, one.slurm_job, one.slurm_restarts);
    if (job == nullptr) {
      jobs.push_back({.job = one.slurm_job, .array = "", .restart = one.slurm_restarts, .begin = one.started});
      started.push_back(SlurmJob::kUnknown);
      job = &jobs.back();
    }
    if (!std::isfinite(one.slurm.started)) continue;
    add_start(*job, one.slurm);
    started[static_cast<size_t>(job - jobs.data())] = one.slurm.started;
  }
  for (size_t i = 0; i < jobs.size(); ++i)
    if (const JobAccount* const account = account_of(jobs[i], started[i], accounts)) add_account(jobs[i], *account);
  // Those whose time is unknown come last: a NaN is not below any time.
  std::ranges::stable_sort(jobs, {}, [](const SlurmJob& job) { return std::isnan(job.begin) ? std::numeric_limits<double>::infinity() : job.begin; });
  return jobs;
}

ordered_json slurm_jobs_json(const std::vector<SlurmJob>& jobs) {
  ordered_json rows = ordered_json::array();
  for (const SlurmJob& one : jobs)
    rows.push_back({{"job", one.job},
                    {"array", json_of_known(one.array)},
                    {"restart", one.restart},
                    {"partition", json_of_known(one.partition)},
                    {"nodes", json_of_known(one.nodes)},
                    {"state", json_of_known(one.state)},
                    {"exit_code", json_of_known(one.exit_code)},
                    {"queued_seconds", json_of_known(one.queued)},
                    {"elapsed_seconds", json_of_known(one.elapsed)},
                    {"cpus", json_of_known(one.cpus)},
                    {"gpus", json_of_known(one.gpus)},
                    {"max_rss_bytes", json_of_known(one.max_rss)},
                    {"energy_joules", json_of_known(one.joules)}});
  return rows;
}

std::vector<SlurmColumn> slurm_columns(const std::vector<SlurmJob>& jobs) {
  const std::array<SlurmColumn, 15> all{{
      {"job", [](const SlurmJob& one) { return one.array.empty() ? one.job : concat(one.array, " (", one.job, ")"); }},
      {"restart", [](const SlurmJob& one) { return std::to_string(one.restart); }},
      {"start", [](const SlurmJob& one) { return cell_of(one.begin, Quantity::kClock); }},
      {"partition", [](const SlurmJob& one) { return cell_of(one.partition); }},
      {"nodes", [](const SlurmJob& one) { return cell_of(one.nodes); }},
      {"tasks", [](const SlurmJob& one) { return cell_of(one.tasks); }},
      {"CPUs", [](const SlurmJob& one) { return cell_of(one.cpus); }},
      {"GPUs", [](const SlurmJob& one) { return cell_of(one.gpus); }},
      {"queued", [](const SlurmJob& one) { return cell_of(one.queued, Quantity::kDuration); }},
      {"elapsed", [](const SlurmJob& one) { return cell_of(one.elapsed, Quantity::kDuration); }},
      {"state", [](const SlurmJob& one) { return cell_of(one.state); }},
      {"exit code", [](const SlurmJob& one) { return cell_of(one.exit_code); }},
      {"then", next_text},
      {"memory of a task", [](const SlurmJob& one) { return cell_of(one.max_rss, Quantity::kBytes); }},
      {"energy", [](const SlurmJob& one) { return energy_text(one.joules); }},
  }};
  std::vector<SlurmColumn> columns;
  for (const SlurmColumn& column : all)
    if (std::ranges::any_of(jobs, [&](const SlurmJob& one) { return column.text(one) != kUnknownText; })) columns.push_back(column);
  return columns;
}

std::string slurm_jobs_text(const std::vector<SlurmJob>& jobs, const std::string& note) {
  if (jobs.empty()) return "";
  ordered_json rows = ordered_json::array();
  const std::vector<SlurmColumn> columns = slurm_columns(jobs);
  for (const SlurmJob& one : jobs) {
    ordered_json& row = rows.emplace_back();
    for (const SlurmColumn& column : columns) {
      const std::string text = column.text(one);
      row[column.name] = text == kUnknownText ? ordered_json() : ordered_json(text);
    }
  }
  return concat("\nSlurm jobs\n", table_of(rows), note.empty() ? "" : concat("note: ", note, "\n"));
}

}  // namespace trireme::report
