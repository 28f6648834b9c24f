// Starting ranks, and what is between them.
#include <algorithm>
#include <cmath>

#include "kernels/core/counted.h"
#include "kernels/core/joined.h"
#include "trainer/doctor/judge.h"
#include "trainer/files/table.h"
#include "trainer/plan/text.h"

namespace trireme::doctor {
namespace {

const std::string& host_of(const JobFacts& job, int rank) { return job.ranks[static_cast<size_t>(rank)].host; }

std::string pair_text(const JobFacts& job, const Link& link) {
  if (link.one_host) return concat("ranks ", link.from, " and ", link.to);
  return concat("hosts ", host_of(job, link.from), " and ", host_of(job, link.to));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

bool starts_ranks(const JobFacts& job) { return job.needs && job.needs->ranks > 1; }

}  // namespace

Finding judge_ranks(const JobFacts& job, const RankFacts&) {
  if (!job.no_answer.empty())
    return {.grade = Grade::kBad,
            .text = job.no_answer,
            .remedy = "check that every host answers (ping, ssh), that no rank is stopped (ps), and that a firewall lets the hosts connect"};
  const int started = static_cast<int>(job.ranks.size()), wanted = job.needs ? job.needs->ranks : started;
  if (!job.not_started.empty())
    return {.grade = Grade::kBad,
            .text = concat("the ", counted(wanted, "rank"), " of the configuration were not started: ", job.not_started),
            .remedy = "do what the other lines say, and repeat"};
  if (wanted != started)
    return {.grade = Grade::kBad,
            .text = concat(counted(started, "rank"), " started, the layout has ", wanted),
            .remedy = concat("start ", counted(wanted, "rank"), " (srun --ntasks=", wanted, " or mpirun -n ", wanted, "), or parallel.data: auto")};
  return {.text = concat(counted(started, "rank"), " on ", counted(hosts_of(job), "host"))};
}

Finding judge_mpi(const JobFacts& job, const RankFacts& rank) {
  const MpiFacts& mpi = rank.mpi;
  if (!mpi.starter.empty()) return {.text = concat(mpi.library, "; ranks started by ", mpi.starter)};
  if (mpi.missing.empty()) return {.text = concat(mpi.library, ", ", mpi.mpirun)};
  return {.grade = starts_ranks(job) ? Grade::kBad : Grade::kWeak,
          .text = mpi.missing,
          .remedy = "apt install openmpi-bin libopenmpi-dev, or module load openmpi, or export PATH=DIR-OF-MPIRUN:$PATH"};
}

Finding judge_transports(const JobFacts& job, const RankFacts& rank) {
  const MpiFacts& mpi = rank.mpi;
  std::string text;
  if (!mpi.transports.empty()) text = concat("MPI uses ", joined(mpi.transports));
  std::vector<std::string> interfaces;
  for (const NetworkInterface& interface : mpi.interfaces)
    interfaces.push_back(concat(interface.name, interface.megabits > 0 ? concat(" (", interface.megabits / 1000, " Gbit/s)") : ""));
  if (!interfaces.empty()) text += concat(text.empty() ? "" : "; ", "interfaces ", joined(interfaces));
  if (!mpi.infiniband.empty()) text += concat(text.empty() ? "" : "; ", "RDMA devices ", joined(mpi.infiniband));
  if (text.empty()) text = "no network interface but loopback";
  const bool remote_dma = std::ranges::any_of(mpi.transports, [](const std::string& transport) {
    return transport.find("ucx") != transport.npos || transport.find("ofi") != transport.npos || transport.find("openib") != transport.npos ||
           transport.find("psm") != transport.npos;
  });
  if (hosts_of(job) > 1 && !mpi.infiniband.empty() && !mpi.transports.empty() && !remote_dma)
    return {.grade = Grade::kWeak,
            .text = text + "; MPI does not use the RDMA network",
            .remedy = "an MPI built with UCX (ompi_info | grep ucx), and export OMPI_MCA_pml=ucx"};
  return {.text = text};
}

Finding judge_network(const JobFacts& job, const RankFacts&) {
  if (!job.unreachable.empty()) {
    std::string pairs;
    for (const auto& [from, to] : job.unreachable) pairs += concat(pairs.empty() ? "" : ", ", host_of(job, from), " -> ", host_of(job, to));
    return {.grade = Grade::kBad,
            .text = concat("no TCP connection ", pairs),
            .remedy =
                "let the hosts of the job connect to each other on every port (firewall-cmd --zone=trusted --add-source=NETWORK), or choose the "
                "interface that they share: export OMPI_MCA_btl_tcp_if_include=INTERFACE"};
  }
  if (job.links.empty()) return {.text = job.ranks.size() == 1 && job.not_started.empty() ? "one rank" : "not measured: the ranks did not meet"};
  constexpr double kSlowWithin = 5e-3, kSlowBetween = 1e-3, kUseless = 0.1;   // seconds
  constexpr double kThinWithin = 200e6, kThinBetween = 100e6, kThread = 1e6;  // bytes/s
  constexpr double kOutlier = 3;                                              // times worse than the median of its kind
  std::string text, remedy;
  Grade grade = Grade::kGood;
  for (const bool one_host : {true, false}) {
    std::vector<double> latencies, bandwidths;
    std::vector<Link> links;
    for (const Link& link : job.links) {
      if (link.one_host != one_host) continue;
      links.push_back(link);
      latencies.push_back(link.latency);
      bandwidths.push_back(link.bandwidth);
    }
    if (links.empty()) continue;
    const double latency = median(latencies), bandwidth = median(bandwidths);
    text += concat(text.empty() ? "" : "; ", one_host ? "within a host " : "between hosts ", time_text(latency), ", ", binary_bytes_text(bandwidth),
                   "/s");
    const auto worse = [&](const Link& link) { return std::max(link.latency / latency, bandwidth / link.bandwidth); };
    const Link& worst = *std::ranges::max_element(links, {}, worse);
    const double slow = one_host ? kSlowWithin : kSlowBetween, thin = one_host ? kThinWithin : kThinBetween;
    const bool useless = worst.latency > kUseless || worst.bandwidth < kThread;
    const bool outlier = links.size() > 2 && worse(worst) > kOutlier && (worst.latency > slow || worst.bandwidth < thin || !one_host);
    if (!useless && !outlier && latency <= slow && bandwidth >= thin) continue;
    grade = std::max(grade, useless ? Grade::kBad : Grade::kWeak);
    text += concat(", worst ", pair_text(job, worst), " with ", time_text(worst.latency), ", ", binary_bytes_text(worst.bandwidth), "/s");
    if (!remedy.empty()) remedy += "; between hosts: ";
    remedy += one_host
                  ? concat("fewer ranks than cores, or export OMPI_MCA_btl=vader,", hosts_of(job) > 1 ? "tcp," : "", "self")
                  : "ethtool INTERFACE shows the link's speed; export OMPI_MCA_btl_tcp_if_include=INTERFACE chooses a faster one; keep tensor ranks "
                    "on one host and put parallel.pipeline between hosts";
  }
  if (static_cast<int64_t>(job.links.size()) < job.pairs) text += concat("; ", job.links.size(), " of ", job.pairs, " pairs");
  return {.grade = grade, .text = text, .remedy = remedy};
}

Finding judge_clocks(const JobFacts& job, const RankFacts& rank) {
  constexpr double kSkewed = 1, kWrong = 300;  // seconds; from five minutes on, file servers and Kerberos refuse a host
  if (hosts_of(job) == 1) return {.text = "one host"};
  const double measured = std::abs(rank.ahead), least = measured - rank.ahead_error, most = measured + rank.ahead_error;
  if (least <= kSkewed) return {.text = concat("within ", time_text(most), " of rank 0's"), .group = "clocks", .severity = most};
  Finding finding{
      .grade = least > kWrong ? Grade::kBad : Grade::kWeak, .group = rank.ahead > 0 ? "clocks ahead" : "clocks behind", .severity = measured};
  finding.text = concat(time_text(measured), rank.ahead > 0 ? " ahead of" : " behind", " rank 0's: times in logs do not compare");
  finding.remedy = "timedatectl set-ntp true, or chronyc makestep";
  return finding;
}

Finding judge_slurm(const JobFacts& job, const RankFacts& rank) {
  const SlurmFacts& slurm = job.slurm;
  if (slurm.job.empty()) return {.text = "not in an allocation"};
  Finding finding{.text = concat("job ", slurm.job, " on ", counted(slurm.nodes, "node"),
                                 slurm.step_tasks > 0 ? concat(", ", counted(slurm.step_tasks, "task")) : "")};
  const int started = static_cast<int>(job.ranks.size());
  if (slurm.step_tasks > 1 && rank.mpi.starter == "srun" && started != slurm.step_tasks) {
    finding.grade = Grade::kBad;
    finding.text += concat(", but MPI has a world of ", started);
    finding.remedy = "srun --mpi=pmix";
  } else if (const auto cores = static_cast<double>(rank.cpu.cores.size());
             cores < rank.cpu.online && rank.local_size * cores <= rank.cpu.online / 2) {
    const int each = std::max(1, static_cast<int>(rank.cpu.online) / rank.local_size);
    finding.grade = Grade::kWeak;
    finding.text += concat("; a task may use ", counted(rank.cpu.cores.size(), "core"), " of ", rank.cpu.online);
    finding.remedy = concat("srun --cpus-per-task=", each);
  }
  return finding;
}

Finding judge_encryption(const JobFacts& job, const RankFacts&) {
  if (job.needs && job.needs->encrypted) {
    if (hosts_of(job) == 1) return {.text = "security.encryption is required; all ranks are on one host, so no message leaves it"};
    // If any rank lacks NCCL, or several ranks share a GPU, messages of GPUs go through host memory, where they are encrypted.
    const bool nccl = std::ranges::all_of(job.ranks, [](const RankFacts& rank) { return rank.devices.nccl_missing.empty(); });
    if (on_gpus(job) && job.needs->ranks_per_gpu == 1 && nccl)
      return {.grade = Grade::kBad,
              .text = "security.encryption is required, and GPUs of several hosts communicate through NCCL, which encrypts nothing",
              .remedy = "set run.device: cpu or run.ranks_per_gpu from 2, or encrypt the network (wg-quick up) and set security.encryption: none"};
    return {.text = "messages between hosts are encrypted (security.encryption); mpirun's own channel, with command lines and output, is not"};
  }
  const char* const what = "no link is encrypted: MPI, NCCL and the detection of lost ranks send in clear text";
  if (hosts_of(job) == 1) return {.text = concat(what, "; all ranks are on one host")};
  return {.grade = Grade::kWeak,
          .text = what,
          .remedy = "set security.encryption: required for CPU ranks, use a network that only this job's hosts can reach, or a VPN (wg-quick up)"};
}

}  // namespace trireme::doctor
