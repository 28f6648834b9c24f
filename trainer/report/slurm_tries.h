#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::report {

/// One start of a Slurm job for a run, as its batch script has recorded it.
struct SlurmTry {
  std::string job;    ///< job id
  std::string array;  ///< "JOB_NUMBER" of an element of a job array, else empty
  int64_t restart = 0;
  std::string begin;  ///< UTC
  std::string nodes, partition;
  int64_t tasks = 0;
  std::optional<int64_t> seconds = {};  ///< nullopt: no end was recorded, as where a node was lost
  std::optional<int64_t> code = {};     ///< exit code of srun
  std::string next;                     ///< "ends", "requeued" or "requeued-by-slurm"
};

/// Reads RUN/slurm/jobs.jsonl, in the order of the file; empty if there is none. Lines that cannot be read are skipped. Errors: IoError; DataError if
/// the file is over 16 MiB.
std::vector<SlurmTry> slurm_tries(const std::filesystem::path& run_directory);

}  // namespace trireme::report
