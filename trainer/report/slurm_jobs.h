#pragma once
// The tries of a run's Slurm jobs: what the run and its batch script have recorded, beside what Slurm says about them.
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/report/run_record.h"
#include "trainer/submit/accounts.h"

namespace trireme::report {

/// NaN, 0 and empty texts: not known.
struct SlurmJob {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::string job = {}, array = {};  ///< id; "JOB_NUMBER" of an element of a job array
  int64_t restart = 0;
  double begin = kUnknown;  ///< of the batch script, else of the first job of the run in it, in seconds since 1970
  std::string partition = {}, nodes = {};
  int64_t tasks = 0, cpus = 0, gpus = 0;
  double queued = kUnknown;    ///< seconds from submission or requeue to the start
  double elapsed = kUnknown;   ///< seconds
  std::string state = {};      ///< of Slurm
  std::string exit_code = {};  ///< of Slurm, "75:0"; else of the script, "75"
  std::string next = {};       ///< SlurmTry::next
  double max_rss = kUnknown;   ///< bytes of the task that had most
  double joules = kUnknown;
};

/// The ids of the Slurm jobs in which the run has trained, each once, in order.
std::vector<std::string> slurm_job_ids(const RunRecord& run);

/// One for each try, in the order of their begins. An account belongs to the try that it covers in time: another cluster may have used the same id.
std::vector<SlurmJob> slurm_jobs(const RunRecord& run, const std::vector<submit::JobAccount>& accounts);

/// Flat objects with the same keys; null: not known.
nlohmann::ordered_json slurm_jobs_json(const std::vector<SlurmJob>& jobs);
/// A table of what is known of any of them, and the note below; empty without jobs.
std::string slurm_jobs_text(const std::vector<SlurmJob>& jobs, const std::string& note);

/// A column of a table of these jobs.
struct SlurmColumn {
  const char* name = "";
  std::string (*text)(const SlurmJob& job) = nullptr;  ///< "–" if it is not known
};
/// Those in which at least one job has something.
std::vector<SlurmColumn> slurm_columns(const std::vector<SlurmJob>& jobs);

}  // namespace trireme::report
