#pragma once
// RUN/jobs.jsonl: what a run keeps of each of its jobs. metrics.jsonl is cut back to the checkpoint at a resume; nothing is ever removed from this file.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme {

inline constexpr const char* kJobsName = "jobs.jsonl";

/// Appends {"event": event, ...fields, "time": UTC} as a line of its own, behind what other processes append, and behind a line that was cut by a crash.
/// Creates the file. Errors: IoError.
void append_job_record(const std::filesystem::path& run_directory, const std::string& event, const nlohmann::ordered_json& fields);

/// Renames the file to the first free name of jobs-1.jsonl, jobs-2.jsonl, ..., if it exists. Errors: IoError.
void set_job_records_aside(const std::filesystem::path& run_directory);

/// Seconds since 1970.
struct TimeSpan {
  double begin = 0, end = 0;
};

/// An interval that checkpoint.every auto has chosen.
struct ChosenInterval {
  int64_t steps = 0;        ///< between checkpoints
  double save_seconds = 0;  ///< cost of a save
  double step_seconds = 0;  ///< of a step without one
  double mtbf = 0;          ///< mean time between failures, seconds
};

/// What Slurm has said about the allocation when the job had started in it. Times are seconds since 1970; NaN: not recorded.
struct SlurmStart {
  std::string partition = {}, nodes = {};
  double submitted = std::numeric_limits<double>::quiet_NaN();  ///< or requeued
  double started = std::numeric_limits<double>::quiet_NaN();
  int64_t cpus = 0, gpus = 0;
};

/// One job of a run. Times are seconds since 1970; NaN: not recorded.
struct JobRecord {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double launcher = kUnknown;   ///< its launcher began, and may have had earlier jobs
  double launched = kUnknown;   ///< its launcher began this job
  double joined = kUnknown;     ///< its ranks had started and met
  double started = kUnknown;    ///< it had loaded its state and owned the run directory
  double ready = kUnknown;      ///< its first step was about to begin
  double load_seconds = 0;      ///< before that, for the state
  double ended = kUnknown;      ///< it said so itself, with `status`
  double failed = kUnknown;     ///< the failure, as far as the launcher's hub can tell
  double exited = kUnknown;     ///< the launcher saw the end of its last rank
  std::string status = {};      ///< "done", "stopped" (saved on request), "failed" (with a message); empty: it could not say, or is still running
  int64_t step = 0;             ///< it began after this step
  int64_t discarded_steps = 0;  ///< steps of earlier jobs that it makes again
  double discarded_until = kUnknown;  ///< the last line about them
  /// What it ran on and in which layout: world_size, threads (of a rank), hosts, and the keys that decide how, not what, is trained and are not at
  /// their defaults. Jobs of older versions have recorded less.
  std::map<std::string, std::string> facts = {};
  bool has_keys = false;       ///< its keys are recorded: one that is missing is at its default
  std::string slurm_job = {};  ///< id of the allocation
  int64_t slurm_restarts = 0;  ///< how often Slurm had requeued it
  SlurmStart slurm = {};
  int64_t save_count = 0;
  std::vector<TimeSpan> saves = {};             ///< training stood still for a save or a peer copy
  std::vector<TimeSpan> waits = {};             ///< for nodes
  std::optional<ChosenInterval> interval = {};  ///< the last one

  bool ended_as_planned() const { return status == "done" || status == "stopped"; }
  /// When it last trained, if it has begun to: at its failure or end; else the last time that is known of it. NaN: it never trained.
  double last_training(const JobRecord* next) const;
};

/// The jobs of a run in order; none without the file. Lines that cannot be read are skipped. Errors: those of read_text.
std::vector<JobRecord> read_job_records(const std::filesystem::path& run_directory);

/// Failures of a run and the time in which they occurred, from the first step of each job on.
struct FailureHistory {
  int64_t failures = 0;
  double seconds = 0;
};
/// Counts the failures of jobs that began to train. One that ended without saying so failed; the last one may be running and does not count as failed unless it exited.
FailureHistory failures_of(std::span<const JobRecord> jobs);

}  // namespace trireme
