#pragma once
// Judges facts. The functions are pure: they look at nothing but their argument.
#include <span>

#include "trainer/doctor/facts.h"
#include "trainer/doctor/finding.h"

namespace trireme::doctor {

/// One row of the doctor's table. A check of ranks judges each rank, a check of hosts the first rank of each host, a check of the job all together.
struct Check {
  enum class Of : uint8_t { kRank, kHost, kJob };
  const char* name;  ///< stable: a key of the JSON report
  Of of;
  Finding (*judge)(const JobFacts& job, const RankFacts& rank);  ///< kJob: `rank` is the first one
};

/// All checks, in the order of the report.
std::span<const Check> checks();

/// Runs all checks. Findings of several ranks that say the same form one.
std::vector<Finding> diagnose(const JobFacts& job);
Grade worst_of(const std::vector<Finding>& findings);

/// The number of hosts.
int hosts_of(const JobFacts& job);
/// True if the ranks compute on GPUs.
bool on_gpus(const JobFacts& job);
// The judgements, by source file.
// judge_host.cpp
Finding judge_cores(const JobFacts& job, const RankFacts& rank);
Finding judge_instructions(const JobFacts& job, const RankFacts& rank);
Finding judge_load(const JobFacts& job, const RankFacts& rank);
Finding judge_memory(const JobFacts& job, const RankFacts& rank);
Finding judge_gpus(const JobFacts& job, const RankFacts& rank);
Finding judge_nccl(const JobFacts& job, const RankFacts& rank);
// judge_limits.cpp
Finding judge_open_files(const JobFacts& job, const RankFacts& rank);
Finding judge_locked_memory(const JobFacts& job, const RankFacts& rank);
Finding judge_processes(const JobFacts& job, const RankFacts& rank);
Finding judge_shared_memory(const JobFacts& job, const RankFacts& rank);
// judge_storage.cpp
Finding judge_run_directory(const JobFacts& job, const RankFacts& rank);
Finding judge_write_speed(const JobFacts& job, const RankFacts& rank);
Finding judge_space(const JobFacts& job, const RankFacts& rank);
Finding judge_data(const JobFacts& job, const RankFacts& rank);
Finding judge_permissions(const JobFacts& job, const RankFacts& rank);
// judge_job.cpp
Finding judge_ranks(const JobFacts& job, const RankFacts& rank);
Finding judge_mpi(const JobFacts& job, const RankFacts& rank);
Finding judge_transports(const JobFacts& job, const RankFacts& rank);
Finding judge_network(const JobFacts& job, const RankFacts& rank);
Finding judge_clocks(const JobFacts& job, const RankFacts& rank);
Finding judge_slurm(const JobFacts& job, const RankFacts& rank);
Finding judge_encryption(const JobFacts& job, const RankFacts& rank);

}  // namespace trireme::doctor
