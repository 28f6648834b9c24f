// Limits of processes, and of /dev/shm.
#include <algorithm>
#include <cmath>

#include "kernels/core/counted.h"
#include "trainer/doctor/judge.h"
#include "trainer/files/table.h"
#include "trainer/job/launch_limits.h"

namespace trireme::doctor {

Finding judge_open_files(const JobFacts&, const RankFacts& rank) {
  const double limit = rank.limits.open_files;
  if (limit == kNone) return {.text = "no limit"};
  Finding finding{.text = concat("at most ", counted(std::llround(limit), "open file"), " per process (ulimit -Hn)")};
  const auto needed = static_cast<double>(files_of_launch(rank.local_size));
  constexpr double kRoomy = 1024;  // data sets of many files, and checkpoints of many ranks that are read at once
  if (limit >= std::max(needed, kRoomy)) return finding;
  finding.grade = limit < needed ? Grade::kBad : Grade::kWeak;
  finding.text += concat(limit < needed ? concat("; starting ", counted(rank.local_size, "rank"), " needs ", needed)
                                        : "; data sets of many files, and checkpoints of many ranks, need more");
  finding.remedy = "ulimit -Hn 65536 as root, LimitNOFILE=65536 of a service, or docker run --ulimit nofile=65536";
  return finding;
}

Finding judge_locked_memory(const JobFacts& job, const RankFacts& rank) {
  const double limit = rank.limits.locked;
  if (limit == kNone) return {.text = "no limit"};
  Finding finding{.text = binary_bytes_text(limit) + " can be locked (ulimit -l)"};
  constexpr double kRegistered = 256 << 20;  // buffers that an RDMA network registers
  const bool registers = !rank.mpi.infiniband.empty() && hosts_of(job) > 1;
  if (!registers || limit >= kRegistered) return finding;
  finding.grade = Grade::kWeak;
  finding.text += "; the InfiniBand network needs to lock its buffers";
  finding.remedy = "ulimit -l unlimited (limits.conf: * - memlock unlimited; docker run --ulimit memlock=-1)";
  return finding;
}

Finding judge_processes(const JobFacts&, const RankFacts& rank) {
  const double limit = rank.limits.tasks;
  if (limit == kNone) return {.text = "no limit"};
  Finding finding{.text = concat("at most ", counted(std::llround(limit), "process or thread", "processes and threads"))};
  // A rank has its own threads and those of MPI, the monitor and the writer of checkpoints; mpirun has some too.
  constexpr int kOfRank = 12, kOfLauncher = 16;
  const int needed = rank.local_size * (rank.cpu.threads + kOfRank) + kOfLauncher;
  if (limit >= 2 * needed) return finding;
  finding.grade = limit < needed ? Grade::kBad : Grade::kWeak;
  finding.text += concat("; the ranks of this host have about ", needed);
  finding.remedy = "ulimit -u 4096 (limits.conf: * - nproc 4096; docker run --pids-limit=4096)";
  return finding;
}

Finding judge_shared_memory(const JobFacts&, const RankFacts& rank) {
  const LimitFacts& limits = rank.limits;
  const int ranks = rank.local_size;
  Finding finding{.text = concat("/dev/shm has ", binary_bytes_text(limits.shared), ", ", binary_bytes_text(limits.shared_free), " free")};
  if (ranks < 2) return finding;
  // Open MPI 4.1 makes a segment of 4 MiB for each rank, and does not start where it finds 4.1 MiB free; with 5 MiB it does. Pages are taken when they
  // are first used, and a rank that finds none then dies.
  constexpr double kSegment = 4 << 20, kStarts = 5 << 20, kSession = 32 << 20;
  const double roomy = ranks * kSegment + kSession;
  if (limits.shared_free >= roomy) return finding;
  finding.grade = limits.shared_free < kStarts ? Grade::kBad : Grade::kWeak;
  finding.text += limits.shared_free < kStarts ? concat("; MPI does not start ranks below ", binary_bytes_text(kStarts))
                                               : concat("; ", counted(ranks, "rank"), " may use ", binary_bytes_text(roomy));
  const int64_t gigabytes = 1 + (static_cast<int64_t>(roomy) >> 30);
  finding.remedy = concat("mount -o remount,size=", gigabytes, "g /dev/shm (docker run --shm-size=", gigabytes, "g)");
  return finding;
}

}  // namespace trireme::doctor
