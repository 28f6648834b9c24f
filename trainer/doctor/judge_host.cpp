// Cores, memory and GPUs of a host.
#include <algorithm>
#include <set>

#include "kernels/core/counted.h"
#include "kernels/core/gpu.h"
#include "kernels/core/isa.h"
#include "trainer/bench/foreign_load.h"
#include "trainer/doctor/judge.h"
#include "trainer/files/table.h"
#include "trainer/plan/text.h"

namespace trireme::doctor {
namespace {

/// Cores that this rank's host gives the ranks of the job together: those that any of them may use, or the CPU time of its cgroup if that is less.
double cores_of_host(const JobFacts& job, const RankFacts& rank) {
  std::set<int> cores;
  for (const RankFacts& other : job.ranks)
    if (other.host == rank.host) cores.insert(other.cpu.cores.begin(), other.cpu.cores.end());
  const auto count = static_cast<double>(cores.size());
  return rank.cpu.quota == kNone ? count : std::min(count, rank.cpu.quota);
}

std::string version_of(int cuda) { return concat(cuda / 1000, ".", cuda % 1000 / 10); }

std::string gpus_text(const DeviceFacts& devices) {
  const GpuFacts& first = devices.gpus.front();
  const bool alike = std::ranges::all_of(devices.gpus, [&](const GpuFacts& gpu) { return gpu.name == first.name; });
  const std::string versions = concat("driver for CUDA ", version_of(first.driver), ", runtime ", version_of(first.runtime));
  return concat(devices.gpus.size(), " x ", first.name, alike ? "" : " and others", ", ", binary_bytes_text(first.memory), " each, ",
                devices.libraries.empty() ? versions : devices.libraries);
}

}  // namespace

Finding judge_cores(const JobFacts& job, const RankFacts& rank) {
  const CpuFacts& cpu = rank.cpu;
  const double cores = cores_of_host(job, rank);
  const int ranks = rank.local_size, own = static_cast<int>(cpu.cores.size());
  Finding finding;
  finding.text = concat(own, " of ", counted(static_cast<int>(cpu.online), "core"), cpu.quota == kNone ? "" : concat(", CPU time for ", cpu.quota),
                        "; ", counted(ranks, "rank"), " with ", counted(cpu.threads, "thread"), " each");
  if (ranks > cores && !on_gpus(job)) {
    finding.grade = Grade::kWeak;
    finding.text += ": ranks share cores, so every step takes longer";
    finding.remedy = concat("a layout of ", counted(std::max(1, static_cast<int>(cores)), "rank"), " on this host, or more hosts");
  } else if (cpu.threads > own || ranks * cpu.threads > cores) {
    finding.grade = Grade::kWeak;
    finding.text += ": threads wait for each other";
    finding.remedy = concat("export OMP_NUM_THREADS=", std::max(1, std::min(own, static_cast<int>(cores / ranks))));
  }
  return finding;
}

Finding judge_instructions(const JobFacts& job, const RankFacts& rank) {
  const Isa isa = parse_isa(rank.cpu.isa).value_or(Isa::kPortable);
  Finding finding{.text = concat(rank.cpu.isa, " on ", rank.cpu.model)};
  const std::string wanted = job.needs ? job.needs->isa : "auto";
  if (wanted != "auto" && parse_isa(wanted).value_or(Isa::kPortable) > isa) {
    finding.grade = Grade::kBad;
    finding.text += concat(", and kernels.cpu_isa is ", wanted);
    finding.remedy = "kernels.cpu_isa: auto";
  } else if (on_gpus(job)) {
    return finding;
  } else if (isa == Isa::kPortable) {
    finding.grade = Grade::kWeak;
    finding.text += ": without AVX2 every kernel is several times slower";
    finding.remedy = "run on a CPU with AVX2; in a virtual machine, pass the host's CPU through";
  } else if (job.needs && job.needs->precision == Arithmetic::kBf16 && isa < Isa::kAvx512Bf16) {
    finding.grade = Grade::kWeak;
    finding.text += ": bf16 is converted to fp32 for every product";
    finding.remedy = "training.precision: fp32";
  }
  return finding;
}

Finding judge_load(const JobFacts&, const RankFacts& rank) {
  const double share = rank.cpu.foreign;
  Finding finding{.text = concat("other processes use ", percent_text(share), " of the cores"), .group = "load", .severity = share};
  if (share <= bench::kBusyMachine) return finding;
  finding.grade = Grade::kWeak;
  finding.remedy = "stop the other processes (top -o %CPU), or ask for a whole node (srun --exclusive)";
  return finding;
}

Finding judge_memory(const JobFacts& job, const RankFacts& rank) {
  const MemoryFacts& memory = rank.memory;
  Finding finding{.text = concat(binary_bytes_text(memory.total), ", ", binary_bytes_text(memory.available), " available"),
                  .group = "memory",
                  .severity = -memory.available};
  double needed = 0, present = 0;
  bool known = !on_gpus(job);
  for (const RankFacts& other : job.ranks) {
    if (other.host != rank.host) continue;
    known = known && other.memory.needed != kNone;
    needed += other.memory.needed;
    present += 1;
  }
  needed *= rank.local_size / present;  // before the ranks are started, rank 0 stands for all
  if (!known) return finding;
  finding.group = "needed memory";
  finding.severity = needed / (needed > memory.total ? memory.total : memory.available);
  finding.text += concat("; the ranks of a host need ", binary_bytes_text(needed));
  const std::string remedy = "a higher parallel.zero_stage, training.recompute: full, or more hosts; trireme plan CONFIG --cluster cpu --search";
  if (needed > memory.total) {
    finding.grade = Grade::kBad;
    finding.remedy = remedy;
  } else if (needed > memory.available) {
    finding.grade = Grade::kWeak;
    finding.group = "memory of others";
    finding.text += ", and other processes hold the rest";
    finding.remedy = "stop the processes with the most memory (top -o %MEM)";
  } else if (needed > 0.9 * memory.total) {
    finding.grade = Grade::kWeak;
    finding.group = "page cache";
    finding.text += ", which leaves no room for the page cache";
    finding.remedy = remedy;
  }
  return finding;
}

Finding judge_gpus(const JobFacts& job, const RankFacts& rank) {
  const DeviceFacts& devices = rank.devices;
  const bool required = job.needs && job.needs->gpu, wanted = !job.needs || job.needs->may_use_gpu;
  if (devices.gpus.empty()) {
    if (required) return {.grade = Grade::kBad, .text = "none: " + devices.missing, .remedy = "run.device: cpu, or repair the driver (nvidia-smi)"};
    if (!devices.files) return {.text = "none: " + devices.missing};
    const bool refused = job.needs && wanted;  // run.device: auto does not fall back to CPUs beside GPUs
    const Grade grade = refused ? Grade::kBad : wanted ? Grade::kWeak : Grade::kGood;
    return {.grade = grade,
            .text = "this host has GPUs, but none can be used: " + devices.missing,
            .remedy = grade == Grade::kGood ? "" : "nvidia-smi shows whether the driver works; run.device: cpu trains without GPUs"};
  }
  Finding finding{.text = gpus_text(devices)};
  const auto old = std::ranges::find_if(devices.gpus, [](const GpuFacts& gpu) { return gpu.capability < cuda::Gpu::kMinComputeCapability; });
  const int ranks = rank.local_size, on_one = job.needs ? job.needs->ranks_per_gpu : 1;
  const auto room = static_cast<int>(devices.gpus.size()) * on_one;
  if (old != devices.gpus.end() && wanted) {
    finding.grade = required ? Grade::kBad : Grade::kWeak;
    finding.text += concat("; ", old->name, " has compute capability ", old->capability / 10, ".", old->capability % 10, ", below 8.0");
    finding.remedy = "CUDA_VISIBLE_DEVICES with newer GPUs only, or run.device: cpu";
  } else if (!devices.opening.empty() && wanted) {
    finding.grade = required ? Grade::kBad : Grade::kWeak;
    finding.text += concat("; the GPU of this rank cannot be used: ", devices.opening);
    finding.remedy = "do what the message says; nvidia-smi lists the processes that hold memory; run.device: cpu trains without GPUs";
  } else if (job.needs && wanted && devices.gpus.size() > 1 && ranks > room) {
    finding.grade = Grade::kBad;
    finding.text += concat("; ", counted(ranks, "rank"), " on this host need more");
    finding.remedy = concat("at most ", counted(room, "rank"), " per host (srun --ntasks-per-node=", room, ")");
  } else if (on_gpus(job) && job.needs && rank.memory.needed > devices.gpus.front().memory) {
    finding.grade = Grade::kBad;
    finding.text += concat("; a rank needs ", binary_bytes_text(rank.memory.needed));
    finding.remedy = "a higher parallel.zero_stage, or training.recompute: full; trireme plan CONFIG --search";
  } else if (on_gpus(job) && job.needs && devices.free != kNone && rank.memory.needed > devices.free) {
    finding.grade = Grade::kBad;
    finding.text += concat("; a rank needs ", binary_bytes_text(rank.memory.needed), ", and ", binary_bytes_text(devices.free), " are free");
    finding.remedy = "end the processes that hold memory of the GPU (nvidia-smi)";
  }
  return finding;
}

Finding judge_nccl(const JobFacts& job, const RankFacts& rank) {
  if (rank.devices.gpus.empty() || !on_gpus(job)) return {.text = "not needed without GPUs"};
  if (rank.devices.nccl_missing.empty()) return {.text = "can be used"};
  const bool several = rank.local_size > 1 || hosts_of(job) > 1;
  if (!several) return {.text = "not needed by one rank"};
  return {.grade = Grade::kWeak,
          .text = "ranks would communicate through host memory, which is slow: " + rank.devices.nccl_missing,
          .remedy = "install NCCL 2.26 or newer (apt install libnccl2, or pip install nvidia-nccl-cu13)"};
}

}  // namespace trireme::doctor
