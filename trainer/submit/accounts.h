#pragma once
// What Slurm itself says about jobs: its accounting, where the cluster has one, else its queue.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace trireme::submit {

/// One try of a job, from its submission or requeue to its end. Times are seconds since 1970. NaN, 0 and empty texts: not known.
struct JobAccount {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::string job = {};  ///< id; elements of arrays have ids of their own
  std::string partition = {}, nodes = {};
  std::string state = {};      ///< "COMPLETED", "CANCELLED by 1000"
  std::string exit_code = {};  ///< of the batch script, and the signal that ended it: "75:0"
  double submitted = kUnknown, started = kUnknown, ended = kUnknown;
  int64_t cpus = 0, gpus = 0;
  double max_rss = kUnknown;  ///< bytes of the task that had most
  double joules = kUnknown;
};

struct Accounts {
  std::vector<JobAccount> jobs = {};
  std::string note = {};  ///< a sentence about what is not known, and why; empty if the accounting has answered
};

/// From `sacct --parsable2 --noheader --duplicates --format=kAccountFormat`. The rows of steps add memory and energy to the job above them. Rows that cannot be
/// read are skipped.
inline constexpr const char* kAccountFormat =
    "JobIDRaw,Partition,NodeList,State,ExitCode,Submit,Start,End,AllocCPUS,AllocTRES,MaxRSS,ConsumedEnergyRaw";
std::vector<JobAccount> accounts_in_sacct(const std::string& text);

/// From `squeue --noheader --Format=kQueueFormat`, whose columns have these widths.
inline constexpr const char* kQueueFormat =
    "JobID:20,Partition:100,State:40,SubmitTime:40,StartTime:40,EndTime:40,NumCPUs:20,tres-alloc:400,NodeList:4000";
std::vector<JobAccount> accounts_in_squeue(const std::string& text);

/// Asks sacct about these jobs, and squeue if that fails. Texts that are not job ids are left out, and only the last 1000 are asked for. Never throws because of
/// Slurm.
Accounts ask_accounts(const std::vector<std::string>& jobs);

/// Asks squeue about one job, for at most some seconds. Empty if it does not answer.
std::vector<JobAccount> ask_queue(const std::string& job);

}  // namespace trireme::submit
