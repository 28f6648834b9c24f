// The reports of `trireme doctor`, whole, for given facts.
#include <set>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/snapshot.h"
#include "trainer/doctor/judge.h"
#include "trainer/doctor/report.h"

namespace trireme::doctor {
namespace {

std::vector<int> cores_from(int first, int count) {
  std::vector<int> cores;
  for (int core = 0; core < count; ++core) cores.push_back(first + core);
  return cores;
}

/// Rank `local` of three on one of many hosts, each of which has figures of its own.
RankFacts rank_of(int host, int local) {
  const double h = host;
  RankFacts facts;
  facts.rank = 3 * host + local;
  facts.local_rank = local;
  facts.local_size = 3;
  facts.host = concat("node", host < 9 ? "0" : "", host + 1);
  facts.cpu = {.model = "a CPU", .isa = "avx512_bf16", .online = 12, .cores = cores_from(4 * local, 4), .threads = 4, .foreign = 0.011 + 0.005 * h};
  facts.memory = {.total = 64e9 + 1e9 * h, .available = 61e9 + 0.7e9 * h, .needed = 11e9 + 0.3e9 * local};
  facts.devices.missing = "no driver";
  facts.mpi = {.library = "Open MPI v4.1.4",
               .mpirun = "/usr/bin/mpirun",
               .starter = "mpirun",
               .transports = {"btl tcp", "btl vader", "pml ob1"},
               .interfaces = {{"eth0", 10000}, {"eth1", 2500}}};
  facts.run = {.path = "runs/a",
               .probed = "/shared/runs/a",
               .kind = "nfs",
               .network = true,
               .mode = 0750,
               .free = 9e11 - 1e10 * h,
               .files = 1e6,
               .write_rate = 400e6 - 11e6 * h,
               .sync_seconds = 2e-3 + 0.3e-3 * h};
  facts.data = {.identity = "17", .bytes = 3.5e9, .sequences = 1234567};
  facts.limits = {.open_files = 1 << 20, .locked = 8.0 * (1 << 30), .tasks = 8192, .shared = 32e9, .shared_free = 31e9};
  facts.ahead = 1e-3 * h * (host % 2 == 0 ? 1 : -1);
  facts.ahead_error = 0.2e-3 + 0.1e-3 * h;
  return facts;
}

JobFacts job_of_hosts(int hosts) {
  JobFacts job;
  for (int host = 0; host < hosts; ++host)
    for (int local = 0; local < 3; ++local) job.ranks.push_back(rank_of(host, local));
  Needs needs;
  needs.ranks = 3 * hosts;
  needs.precision = Arithmetic::kBf16;
  needs.checkpoint = 7e9;
  needs.storage = 28e9;
  job.needs = needs;
  for (int host = 0; host < hosts; ++host) {
    job.links.push_back({3 * host, 3 * host + 1, 0.9e-6 + 0.1e-6 * host, 5e9 - 1e8 * host, true});
    if (host > 0) job.links.push_back({0, 3 * host, 30e-6 + 1e-6 * host, 1.1e9 - 1e7 * host, false});
  }
  job.pairs = 3 * hosts * (3 * hosts - 1) / 2;
  return job;
}

RankFacts& at(JobFacts& job, int host, int local = 0) { return job.ranks[static_cast<size_t>(3 * host + local)]; }

template <class Change>
void on_host(JobFacts& job, int host, const Change& change) {
  for (int local = 0; local < 3; ++local) change(at(job, host, local));
}

std::string report_of(const JobFacts& job) { return report_text(job, diagnose(job)); }

/// A JSON report with a line for each finding, link and rank.
std::string lines_of(const nlohmann::ordered_json& report) {
  std::string text;
  for (const auto& [key, value] : report.items()) {
    if (!value.is_array()) text += concat(key, ": ", value.dump(), "\n");
    if (value.is_array())
      for (const auto& element : value) text += concat(key, ": ", element.dump(), "\n");
  }
  return text;
}

const GpuFacts kGpu{"NVIDIA H100 80GB HBM3", 85e9, 90, 13000, 12080};

}  // namespace

TEST_CASE("snapshot: doctor of one healthy host, with and without a configuration") {
  JobFacts job = job_of_hosts(1);
  std::string text = "### with a configuration\n" + report_of(job);
  job.needs.reset();
  for (RankFacts& rank : job.ranks) rank.memory.needed = kNone;
  text += "\n### without\n" + report_of(job);
  job.ranks.resize(1);
  job.ranks[0].local_size = 1;
  job.ranks[0].mpi.starter = "";
  job.links.clear();
  job.pairs = 0;
  test::check_snapshot("doctor/one_host.txt", concat(text, "\n### one rank\n", report_of(job)));
}

TEST_CASE("snapshot: doctor of twelve healthy hosts with figures of their own") {
  const JobFacts job = job_of_hosts(12);
  test::check_snapshot("doctor/twelve_hosts.txt", report_of(job));
  const JobFacts two = job_of_hosts(2);
  test::check_snapshot("doctor/two_hosts.json", lines_of(report_json(two, diagnose(two), 3.25)));
}

TEST_CASE("snapshot: doctor of twelve hosts that differ in what is wrong with them") {
  JobFacts job = job_of_hosts(12);
  job.slurm = {"4711", 12, 36};
  // Cores and memory.
  at(job, 1, 2).cpu.threads = 6;
  on_host(job, 2, [](RankFacts& rank) { rank.cpu.quota = 5; });
  on_host(job, 3, [](RankFacts& rank) { rank.cpu.quota = 2; });
  on_host(job, 4, [](RankFacts& rank) { rank.cpu.isa = "avx2", rank.cpu.model = "an older CPU"; });
  for (const int host : {5, 6, 10}) on_host(job, host, [&](RankFacts& rank) { rank.cpu.foreign = 0.1 + 0.04 * host; });
  on_host(job, 7, [](RankFacts& rank) { rank.memory.needed = 23e9; });
  on_host(job, 8, [](RankFacts& rank) { rank.memory.available = 30e9; });
  on_host(job, 9, [](RankFacts& rank) { rank.memory.needed = 26e9; });
  // The network: one pair of each kind is much slower than the others.
  job.links[8].latency = 2.5e-3;
  job.links[10].latency = 12e-3;
  job.links[13].latency = 6e-3;
  on_host(job, 3, [](RankFacts& rank) { rank.mpi.infiniband = {"mlx5_0", "mlx5_1"}; });
  on_host(job, 6, [](RankFacts& rank) { rank.mpi.interfaces = {{"ib0", 400000}, {"lost", kNone}}; });
  at(job, 8, 1).mpi.library = "Open MPI v5.0.2";
  // Clocks: within the error of their measurement, one with a larger offset and one that is hardly known, and beyond it on either side.
  on_host(job, 4, [](RankFacts& rank) { rank.ahead = 1.75, rank.ahead_error = 1.5; });
  on_host(job, 5, [](RankFacts& rank) { rank.ahead = -2.25, rank.ahead_error = 0.5; });
  on_host(job, 7, [](RankFacts& rank) { rank.ahead = 12.5, rank.ahead_error = 0.5; });
  on_host(job, 8, [](RankFacts& rank) { rank.ahead = 0.25, rank.ahead_error = 3.5; });
  on_host(job, 9, [](RankFacts& rank) { rank.ahead = -420, rank.ahead_error = 2; });
  // Disks.
  on_host(job, 1, [](RankFacts& rank) { rank.run.write_rate = 31e6; });
  on_host(job, 2, [](RankFacts& rank) { rank.run.write_rate = 22e6, rank.run.sync_seconds = 0.05; });
  on_host(job, 3, [](RankFacts& rank) { rank.run.sync_seconds = 0.75; });
  on_host(job, 5, [](RankFacts& rank) { rank.run.write_rate = 0.75e6; });
  on_host(job, 6, [](RankFacts& rank) { rank.run.stalled = true; });
  on_host(job, 7, [](RankFacts& rank) { rank.run.write_rate = kNone, rank.run.error = "Permission denied"; });
  at(job, 8, 1).run.error = "No space left on device";
  at(job, 10, 2).run.same_as_rank_0 = false;
  on_host(job, 11, [](RankFacts& rank) { rank.run.kind = "tmpfs"; });
  on_host(job, 2, [](RankFacts& rank) { rank.run.free = 29e9; });
  on_host(job, 4, [](RankFacts& rank) { rank.run.free = 12e9; });
  on_host(job, 5, [](RankFacts& rank) { rank.run.free = 5e9; });
  on_host(job, 1, [](RankFacts& rank) { rank.run.mode = 0775; });
  on_host(job, 3, [](RankFacts& rank) { rank.run.mode = 0777; });
  on_host(job, 5, [](RankFacts& rank) { rank.run.mode = 0755; });
  on_host(job, 9, [](RankFacts& rank) { rank.run.own = false; });
  for (RankFacts& rank : job.ranks) rank.keys = {{"security.privacy.key_file", ""}};
  at(job, 0).keys.push_back({"security.audit.signing_key_file", ""});
  for (const int host : {9, 11})
    on_host(job, host, [](RankFacts& rank) { rank.keys[0].error = "security.privacy.key_file: /secrets/privacy.key does not exist"; });
  // Data.
  at(job, 2, 1).data.error = "data/train: no such token directory";
  at(job, 6).data = {.identity = "18", .bytes = 2.25e9, .sequences = 8765};
  // Limits.
  on_host(job, 1, [](RankFacts& rank) { rank.limits.open_files = 512; });
  at(job, 2, 2).limits.open_files = 40;
  at(job, 3).limits.open_files = kNone;
  on_host(job, 3, [](RankFacts& rank) { rank.limits.locked = 64 << 20; });
  on_host(job, 0, [](RankFacts& rank) { rank.limits.tasks = 4e6; });
  on_host(job, 4, [](RankFacts& rank) { rank.limits.tasks = 100; });
  on_host(job, 5, [](RankFacts& rank) { rank.limits.tasks = 50; });
  on_host(job, 6, [](RankFacts& rank) { rank.limits.shared_free = 33 << 20; });
  on_host(job, 7, [](RankFacts& rank) { rank.limits.shared_free = 3 << 20, rank.limits.shared = 64 << 20; });
  test::check_snapshot("doctor/twelve_sick_hosts.txt", report_of(job));
}

TEST_CASE("snapshot: doctor of GPUs") {
  JobFacts job = job_of_hosts(7);
  job.needs->gpu = true;
  for (RankFacts& rank : job.ranks) {
    rank.devices = {.gpus = {kGpu, kGpu, kGpu, kGpu}, .free = 70e9};
    rank.memory.needed = 61e9 + 1e9 * rank.local_rank;
  }
  GpuFacts old = kGpu;
  old.name = "Tesla T4", old.capability = 75, old.memory = 16e9;
  on_host(job, 1, [](RankFacts& rank) { rank.devices.libraries = "cuBLAS 12.8, cuDNN 9.8, NCCL 2.26"; });
  on_host(job, 2, [&](RankFacts& rank) { rank.devices.gpus = {kGpu, old, kGpu}; });
  on_host(job, 3, [](RankFacts& rank) { rank.devices.gpus.resize(2); });
  at(job, 4, 1).devices.opening = "libcublasLt.so.13 was not found";
  at(job, 4, 2).devices.nccl_missing = "libnccl.so.2 was not found";
  at(job, 5, 1).devices.free = 33e9;
  at(job, 5, 2).memory.needed = 91e9;
  on_host(job, 6, [](RankFacts& rank) { rank.devices = {.missing = "the driver is too old", .files = rank.local_rank == 1}; });
  std::string text = report_of(job);
  job.needs->gpu = false;
  job.needs->ranks_per_gpu = 2;
  test::check_snapshot("doctor/gpus.txt", concat("### run.device: cuda\n", text, "\n### auto, two ranks on each\n", report_of(job)));
}

TEST_CASE("snapshot: doctor of jobs that do not start, do not answer, or do not meet") {
  std::string text;
  const auto add = [&](const std::string& what, const JobFacts& job, const std::set<std::string>& checks) {
    std::vector<Finding> findings = diagnose(job);
    std::erase_if(findings, [&](const Finding& finding) { return !checks.contains(finding.check); });
    text += concat("### ", what, "\n", report_text(job, findings), "\n");
  };
  JobFacts alone = job_of_hosts(1);
  alone.ranks.resize(1);
  alone.needs->ranks = 6;
  alone.not_started = "see mpi, processes";
  alone.ranks[0].mpi = {.missing = "mpirun was not found"};
  alone.links.clear();
  add("not started", alone, {"ranks", "mpi", "network", "memory", "encryption"});
  JobFacts silent = job_of_hosts(3);
  silent.no_answer = "no answer within 14 s; rank 0 waits for rank 5";
  silent.unreachable = {{0, 3}, {6, 3}};
  add("no answer", silent, {"ranks", "network"});
  JobFacts fewer = job_of_hosts(3);
  fewer.needs->ranks = 16;
  fewer.slurm = {"815", 3, 12};
  for (RankFacts& rank : fewer.ranks) rank.mpi.starter = "srun";
  fewer.needs->isa = "amx";
  fewer.needs->encrypted = true;
  fewer.links.clear();
  add("fewer ranks than tasks and than the layout has", fewer, {"ranks", "instructions", "mpi", "network", "slurm", "encryption"});
  JobFacts bound = job_of_hosts(2);
  bound.slurm = {"816", 2, 6};
  for (RankFacts& rank : bound.ranks) rank.mpi.starter = "srun", rank.cpu.cores = {rank.local_rank}, rank.cpu.threads = 1, rank.cpu.isa = "portable";
  for (Link& link : bound.links) link.latency = link.one_host ? 1.2e-6 : 0.3, link.bandwidth /= link.one_host ? 4 : 3;
  bound.needs.reset();
  for (RankFacts& rank : bound.ranks) rank.run.free = rank.rank < 3 ? 5e8 : kNone, rank.memory.needed = kNone;
  on_host(bound, 1, [](RankFacts& rank) { rank.memory.total = 32e9, rank.memory.available = 30e9; });
  add("one core for each task, slow links, little space; one host with less memory", bound,
      {"cores", "instructions", "memory", "data", "network", "space", "permissions", "slurm", "encryption"});
  JobFacts within = job_of_hosts(4);
  within.links[3].bandwidth = 150e6;
  within.needs->encrypted = true;
  for (RankFacts& rank : within.ranks) rank.devices = {.gpus = {kGpu, kGpu}};
  add("one pair within a host is slow; run.device: auto with GPUs, whose messages would not be encrypted", within, {"network", "encryption"});
  JobFacts full = job_of_hosts(7);
  on_host(full, 1, [](RankFacts& rank) { rank.run.files = 321; });
  on_host(full, 2, [](RankFacts& rank) { rank.run.files = 12; });
  on_host(full, 3, [](RankFacts& rank) { rank.memory.available = 66e9, rank.memory.needed = 21.25e9; });
  on_host(full, 4, [](RankFacts& rank) { rank.run.free = 5e8, rank.memory.available = 30e9; });
  on_host(full, 5, [](RankFacts& rank) { rank.run.free = 8e9, rank.run.files = 14, rank.memory.available = 26e9; });
  on_host(full, 6, [](RankFacts& rank) { rank.run.files = 3; });
  add("few inodes, little space, memory that others hold, and no room for the page cache", full, {"memory", "space"});
  test::check_snapshot("doctor/starts.txt", text);
}

}  // namespace trireme::doctor
