#include "trainer/resilience/job_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/descriptor.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/json_lines.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

[[noreturn]] void fail_to_record(const std::filesystem::path& path) {
  throw IoError(concat("cannot write ", path.string(), ": ", std::strerror(errno)));
}

/// True if the file ends in the middle of a line.
bool is_cut(int file) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(file, &last, 1, size - 1) == 1 && last != '\n';
}

double time_in(const ordered_json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_string()) return JobRecord::kUnknown;
  const auto time = time_of_utc(found->get_ref<const std::string&>());
  return time ? seconds_since_1970(*time) : JobRecord::kUnknown;
}

/// A finite number from 0; else 0.
double amount_in(const ordered_json& line, const char* key) {
  const auto found = line.find(key);
  const double value = found != line.end() && found->is_number() ? found->get<double>() : 0;
  return std::isfinite(value) && value > 0 ? value : 0;
}

int64_t count_in(const ordered_json& line, const char* key) {
  constexpr double kMost = 1e15;
  return static_cast<int64_t>(std::min(amount_in(line, key), kMost));
}

std::string text_in(const ordered_json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

JobRecord started_job(const ordered_json& line, double time) {
  JobRecord job{.launcher = time_in(line, "launcher"), .launched = time_in(line, "launched"), .joined = time_in(line, "joined"), .started = time};
  job.step = count_in(line, "step");
  job.slurm_job = text_in(line, "slurm_job");
  const auto add_fact = [&](const std::string& name, const ordered_json& value) {
    std::string text = value.is_string() ? value.get<std::string>() : value.is_array() ? "" : value.dump();
    if (value.is_array())
      for (const ordered_json& item : value) text += (text.empty() ? "" : ", ") + (item.is_string() ? item.get<std::string>() : item.dump());
    job.facts[name] = text;
  };
  for (const char* name : {"world_size", "threads", "hosts"})
    if (const auto value = line.find(name); value != line.end()) add_fact(name, *value);
  if (const auto keys = line.find("keys"); keys != line.end() && keys->is_object()) {
    job.has_keys = true;
    for (const auto& [key, value] : keys->items()) add_fact(key, value);
  }
  job.slurm_restarts = count_in(line, "slurm_restarts");
  if (const auto discarded = line.find("discarded"); discarded != line.end() && discarded->is_object()) {
    job.discarded_steps = count_in(*discarded, "steps");
    job.discarded_until = time_in(*discarded, "until");
  }
  return job;
}

SlurmStart slurm_start_in(const ordered_json& line) {
  return {.partition = text_in(line, "partition"),
          .nodes = text_in(line, "nodes"),
          .submitted = time_in(line, "submitted"),
          .started = time_in(line, "started"),
          .cpus = count_in(line, "cpus"),
          .gpus = count_in(line, "gpus")};
}

bool is_running(const JobRecord& job) { return std::isfinite(job.started) && !std::isfinite(job.ended) && !std::isfinite(job.exited); }

/// The job that a launcher has seen end. If it has never started it comes before the job that owns the run directory.
JobRecord& exited_job(std::vector<JobRecord>& jobs, const ordered_json& line) {
  const double launched = time_in(line, "launched");
  const auto same = std::find_if(jobs.rbegin(), jobs.rend(), [&](const JobRecord& job) { return job.launched == launched; });
  if (same != jobs.rend()) return *same;
  const auto place = !jobs.empty() && is_running(jobs.back()) ? jobs.end() - 1 : jobs.end();
  return *jobs.insert(place, {.launcher = time_in(line, "launcher"), .launched = launched});
}

void add_record(std::vector<JobRecord>& jobs, const ordered_json& line) {
  const std::string event = text_in(line, "event");
  const double time = time_in(line, "time");
  if (!std::isfinite(time)) return;
  if (event == "start") return jobs.push_back(started_job(line, time));
  if (event == "exit") {
    JobRecord& job = exited_job(jobs, line);
    job.exited = time;
    job.failed = time_in(line, "failed");
    return;
  }
  const auto owner = std::find_if(jobs.rbegin(), jobs.rend(), [](const JobRecord& job) { return std::isfinite(job.started); });
  if (event == "wait" && !jobs.empty()) jobs.back().waits.push_back({time - amount_in(line, "seconds"), time});
  if (owner == jobs.rend()) return;
  JobRecord& job = *owner;
  if (event == "slurm") job.slurm = slurm_start_in(line);
  const TimeSpan span{time - amount_in(line, "seconds"), time};
  if (event == "ready") {
    job.ready = time;
    job.load_seconds = amount_in(line, "load_seconds");
  } else if (event == "save" || event == "save_wait" || event == "peer_copy") {
    job.saves.push_back(span);
    job.save_count += event == "save" ? 1 : 0;
  } else if (event == "interval") {
    job.interval = ChosenInterval{count_in(line, "steps"), amount_in(line, "save_seconds"), amount_in(line, "step_seconds"),
                                  amount_in(line, "mean_time_between_failures")};
  } else if (event == "end") {
    job.ended = time;
    job.status = text_in(line, "status");
  }
}

}  // namespace

void append_job_record(const std::filesystem::path& run_directory, const std::string& event, const ordered_json& fields) {
  const std::filesystem::path path = run_directory / kJobsName;
  const Descriptor file(open_writable(path, Existing::kAppended));
  ordered_json line = {{"event", event}};
  line.update(fields);
  line["time"] = utc_text(WallClock::now());
  const std::string text = (is_cut(file) ? "\n" : "") + line.dump() + "\n";
  ssize_t count = 0;
  do {
    count = ::write(file, text.data(), text.size());
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(text.size())) return;
  if (count >= 0) errno = ENOSPC;
  fail_to_record(path);
}

void set_job_records_aside(const std::filesystem::path& run_directory) {
  const std::filesystem::path path = run_directory / kJobsName;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  std::filesystem::path free;
  for (int n = 1; free.empty() || std::filesystem::exists(std::filesystem::symlink_status(free)); ++n)
    free = run_directory / concat("jobs-", n, ".jsonl");
  rename_durably(path, free);
}

double JobRecord::last_training(const JobRecord* next) const {
  if (!std::isfinite(ready)) return kUnknown;
  for (const double known : {failed, ended, exited})
    if (std::isfinite(known)) return std::max(known, ready);
  double last = ready;
  if (!saves.empty()) last = std::max(last, saves.back().end);
  if (next != nullptr && std::isfinite(next->discarded_until)) last = std::max(last, next->discarded_until);
  return last;
}

std::vector<JobRecord> read_job_records(const std::filesystem::path& run_directory) {
  std::vector<JobRecord> jobs;
  const std::filesystem::path path = run_directory / kJobsName;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return jobs;
  for (JsonLines lines(path.string()); lines.next();)
    if (lines.value().is_object()) add_record(jobs, lines.value());
  return jobs;
}

FailureHistory failures_of(std::span<const JobRecord> jobs) {
  FailureHistory history;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const JobRecord& job = jobs[i];
    if (!std::isfinite(job.ready)) continue;
    const bool is_last = i + 1 == jobs.size();
    history.seconds += job.last_training(is_last ? nullptr : &jobs[i + 1]) - job.ready;
    if (!job.ended_as_planned() && (!is_last || std::isfinite(job.exited) || std::isfinite(job.ended))) ++history.failures;
  }
  return history;
}

}  // namespace trireme
