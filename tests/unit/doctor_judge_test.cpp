// What `trireme doctor` says about given facts.
#include <algorithm>

#include "tests/support/catch.h"
#include "trainer/doctor/judge.h"
#include "trainer/doctor/report.h"

namespace trireme::doctor {
namespace {

/// A host on which nothing is wrong.
RankFacts healthy(int rank = 0, const std::string& host = "a") {
  RankFacts facts;
  facts.rank = rank;
  facts.host = host;
  facts.cpu = {.model = "a CPU", .isa = "avx512_bf16", .online = 8, .cores = {0, 1, 2, 3, 4, 5, 6, 7}, .threads = 4};
  facts.memory = {.total = 64e9, .available = 60e9, .needed = 1e9};
  facts.devices.missing = "no driver";
  facts.mpi = {.library = "Open MPI v4.1.4", .mpirun = "/usr/bin/mpirun", .interfaces = {{"eth0", 10000}}};
  facts.run = {
      .path = "runs/a", .probed = "/runs/a", .kind = "ext4", .mode = 0755, .free = 1e12, .files = 1e6, .write_rate = 500e6, .sync_seconds = 2e-3};
  facts.data = {.identity = "17", .bytes = 1e6, .sequences = 1000};
  facts.limits = {.open_files = 1 << 20, .shared = 32e9, .shared_free = 32e9};
  return facts;
}

/// Two ranks on each of the hosts a, b, ...
JobFacts job_on(int hosts) {
  JobFacts job;
  for (int host = 0; host < hosts; ++host)
    for (int local = 0; local < 2; ++local) {
      RankFacts rank = healthy(2 * host + local, std::string(1, static_cast<char>('a' + host)));
      rank.local_rank = local;
      rank.local_size = 2;
      rank.mpi.starter = "mpirun";
      job.ranks.push_back(rank);
    }
  Needs needs;
  needs.ranks = 2 * hosts;
  needs.checkpoint = 1e9;
  needs.storage = 4e9;
  job.needs = needs;
  return job;
}

std::vector<Finding> lines_of(const std::vector<Finding>& all, const std::string& check) {
  std::vector<Finding> lines;
  for (const Finding& finding : all)
    if (finding.check == check) lines.push_back(finding);
  return lines;
}

/// The one line of a check.
Finding line_of(const JobFacts& job, const std::string& check) {
  const std::vector<Finding> lines = lines_of(diagnose(job), check);
  REQUIRE(lines.size() == 1);
  CHECK((lines[0].grade == Grade::kGood) == lines[0].remedy.empty());
  return lines[0];
}

/// The grade of a check after a change of the first rank of a job on one host; a remedy is given unless it is good.
template <class Change>
Grade grade_after(const std::string& check, const Change& change) {
  JobFacts job = job_on(1);
  job.ranks.pop_back();
  job.ranks[0].local_size = 1;
  job.needs->ranks = 1;
  change(job, job.ranks[0]);
  return line_of(job, check).grade;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("doctor: a healthy job has one good line for each check") {
  for (const int hosts : {1, 3}) {
    const std::vector<Finding> findings = diagnose(job_on(hosts));
    CHECK(findings.size() == checks().size());
    for (const Finding& finding : findings) {
      INFO(finding.check << ": " << finding.text);
      const bool clear = finding.check == "encryption" && hosts > 1;  // without security.encryption
      CHECK(finding.grade == (clear ? Grade::kWeak : Grade::kGood));
      CHECK(finding.ranks.size() == 2 * static_cast<size_t>(hosts));
      CHECK(finding.text != "");
    }
  }
}

TEST_CASE("doctor: required encryption is good between CPU ranks of several hosts and bad where NCCL would carry the messages") {
  for (const int hosts : {1, 3}) {
    JobFacts job = job_on(hosts);
    job.needs->encrypted = true;
    CHECK(line_of(job, "encryption").grade == Grade::kGood);
    CHECK(contains(line_of(job, "encryption").text, hosts == 1 ? "no message leaves it" : "messages between hosts are encrypted"));
    job.needs->gpu = true;
    CHECK(line_of(job, "encryption").grade == (hosts == 1 ? Grade::kGood : Grade::kBad));
    job.needs->ranks_per_gpu = 2;
    CHECK(line_of(job, "encryption").grade == Grade::kGood);
  }
}

TEST_CASE("doctor: required encryption is judged by the device that run.device auto becomes") {
  JobFacts job = job_on(2);
  job.needs->encrypted = true;
  for (RankFacts& rank : job.ranks) rank.devices.gpus = {{"NVIDIA H100", 80e9, 90, 13000, 13000}};
  CHECK(line_of(job, "encryption").grade == Grade::kBad);
  job.needs->ranks_per_gpu = 2;
  CHECK(line_of(job, "encryption").grade == Grade::kGood);
  job.needs->ranks_per_gpu = 1;
  job.needs->may_use_gpu = false;
  CHECK(line_of(job, "encryption").grade == Grade::kGood);
  job.needs->may_use_gpu = true;
  job.ranks[3].devices.nccl_missing = "libnccl.so.2 was not found";  // then all ranks communicate through host memory
  CHECK(line_of(job, "encryption").grade == Grade::kGood);
  job.ranks[3].devices = {.missing = "no driver"};
  CHECK(line_of(job, "encryption").grade == Grade::kGood);
}

TEST_CASE("doctor: a line names the ranks and hosts that differ") {
  JobFacts job = job_on(3);
  job.ranks[3].mpi.library = "another";
  job.ranks[4].limits.open_files = job.ranks[5].limits.open_files = 20;
  const std::vector<Finding> all = diagnose(job), files = lines_of(all, "open_files");
  REQUIRE(files.size() == 2);
  CHECK(files[0].ranks == std::vector<int>{0, 1, 2, 3});
  CHECK(files[1].ranks == std::vector<int>{4, 5});
  CHECK(files[1].grade == Grade::kBad);
  CHECK(worst_of(all) == Grade::kBad);
  const std::string text = report_text(job, all);
  CHECK(contains(text, "[ranks 0-3 on a, b]"));
  CHECK(contains(text, "[ranks 4-5 on c]"));
  CHECK(contains(text, "[rank 3 on b]"));
  CHECK(contains(text, "[ranks 0-2, 4-5 on a, b, c]"));
  CHECK(contains(text, "1 bad, 1 weak, "));
  const nlohmann::ordered_json json = report_json(job, all, 2.5);
  CHECK(json["grade"] == "bad");
  CHECK(json["ranks"] == 6);
  CHECK(json["hosts"] == std::vector<std::string>{"a", "b", "c"});
  CHECK(json["facts"].size() == 6);
  for (const auto& finding : json["findings"])
    if (finding["grade"] == "bad") CHECK(finding["hosts"] == std::vector<std::string>{"c"});
  JobFacts many = job_on(7);  // hosts beyond the fourth are counted, and not their ranks
  for (RankFacts& rank : many.ranks)
    if (rank.host != "g") rank.limits.open_files = 20;
  CHECK(contains(report_text(many, diagnose(many)), "[ranks 0-11 on a, b, c, d and 2 more]"));
  many.ranks[10].limits.open_files = many.ranks[11].limits.open_files = many.ranks[12].limits.open_files;
  CHECK(contains(report_text(many, diagnose(many)), "[ranks 0-9 on a, b, c, d and 1 more]"));
}

TEST_CASE("doctor: measured figures of many hosts form one line with the worst of them") {
  JobFacts job = job_on(3);
  for (RankFacts& rank : job.ranks) rank.run.write_rate = rank.host == "b" ? 100e6 : 400e6 + rank.rank;
  const std::vector<Finding> all = diagnose(job), speed = lines_of(all, "write_speed");
  REQUIRE(speed.size() == 1);
  CHECK(speed[0].worst_host == "b");
  CHECK(contains(speed[0].text, "95.37 MiB/s"));
  CHECK(contains(report_text(job, all), "[worst: b]"));
  for (RankFacts& rank : job.ranks)
    if (rank.host == "b") rank.run.write_rate = 10e6;
  CHECK(lines_of(diagnose(job), "write_speed").size() == 2);
}

TEST_CASE("doctor: the worst host is named in text and JSON, also of some hosts, and none where all are equal") {
  JobFacts job = job_on(4);
  for (RankFacts& rank : job.ranks)
    if (rank.host != "a") rank.run.write_rate = rank.host == "c" ? 20e6 : 30e6;
  const auto hosts_named = [](const JobFacts& of) {
    std::vector<std::string> names;
    const nlohmann::ordered_json report = report_json(of, diagnose(of), 1);
    for (const auto& finding : report["findings"])
      if (finding["check"] == "write_speed") names.push_back(finding.value("worst_host", "no such key"));
    return names;
  };
  CHECK(contains(report_text(job, diagnose(job)), "[ranks 2-7 on b, c, d; worst: c]"));
  CHECK(hosts_named(job) == std::vector<std::string>{"", "c"});
  CHECK_FALSE(contains(report_text(job_on(4), diagnose(job_on(4))), "worst"));
  CHECK(hosts_named(job_on(4)) == std::vector<std::string>{""});
}

TEST_CASE("doctor: cores, quotas and instructions") {
  CHECK(grade_after("cores", [](JobFacts&, RankFacts& rank) { rank.cpu.threads = 8; }) == Grade::kGood);
  CHECK(grade_after("cores", [](JobFacts&, RankFacts& rank) { rank.cpu.threads = 9; }) == Grade::kWeak);
  CHECK(grade_after("cores", [](JobFacts&, RankFacts& rank) { rank.cpu.quota = 2; }) == Grade::kWeak);
  CHECK(grade_after("cores", [](JobFacts&, RankFacts& rank) { rank.cpu.quota = 4; }) == Grade::kGood);
  JobFacts job = job_on(1);
  for (RankFacts& rank : job.ranks) rank.cpu.quota = 2;
  CHECK(contains(line_of(job, "cores").remedy, "OMP_NUM_THREADS=1"));
  for (RankFacts& rank : job.ranks) rank.cpu.quota = 1;
  CHECK(contains(line_of(job, "cores").text, "share cores"));
  job = job_on(1);  // bound to cores of their own, and to the same core
  job.ranks[0].cpu.cores = {0};
  job.ranks[1].cpu.cores = {1};
  for (RankFacts& rank : job.ranks) rank.cpu.threads = 1;
  CHECK(line_of(job, "cores").grade == Grade::kGood);
  job.ranks[1].cpu.cores = {0};
  CHECK(line_of(job, "cores").grade == Grade::kWeak);
  job.ranks[1].cpu.cores = {1};
  for (RankFacts& rank : job.ranks) rank.cpu.threads = 2;
  CHECK(contains(line_of(job, "cores").remedy, "OMP_NUM_THREADS=1"));
  job = job_on(2);  // whose hosts number their cores differently
  for (RankFacts& rank : job.ranks) {
    rank.cpu.threads = 5;
    rank.cpu.cores = rank.rank < 2 ? std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7} : std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15};
  }
  CHECK(line_of(job, "cores").grade == Grade::kWeak);
  CHECK(grade_after("instructions", [](JobFacts&, RankFacts& rank) { rank.cpu.isa = "portable"; }) == Grade::kWeak);
  CHECK(grade_after("instructions", [](JobFacts& all, RankFacts& rank) {
          rank.cpu.isa = "avx512";
          all.needs->precision = Arithmetic::kBf16;
        }) == Grade::kWeak);
  CHECK(grade_after("instructions", [](JobFacts& all, RankFacts& rank) {
          rank.cpu.isa = "avx512";
          all.needs->isa = "amx";
        }) == Grade::kBad);
  CHECK(grade_after("instructions", [](JobFacts& all, RankFacts&) { all.needs->isa = "avx2"; }) == Grade::kGood);
  CHECK(grade_after("load", [](JobFacts&, RankFacts& rank) { rank.cpu.foreign = 0.1; }) == Grade::kGood);
  CHECK(grade_after("load", [](JobFacts&, RankFacts& rank) { rank.cpu.foreign = 0.3; }) == Grade::kWeak);
}

TEST_CASE("doctor: memory of all ranks of a host against its own") {
  CHECK(grade_after("memory", [](JobFacts&, RankFacts& rank) { rank.memory.needed = 65e9; }) == Grade::kBad);
  CHECK(grade_after("memory", [](JobFacts&, RankFacts& rank) { rank.memory.needed = 62e9; }) == Grade::kWeak);
  CHECK(grade_after("memory", [](JobFacts&, RankFacts& rank) { rank.memory.available = 0.5e9; }) == Grade::kWeak);
  CHECK(grade_after("memory", [](JobFacts& job, RankFacts&) { job.needs.reset(); }) == Grade::kGood);
  JobFacts job = job_on(2);
  for (RankFacts& rank : job.ranks) rank.memory.needed = 40e9;
  CHECK(line_of(job, "memory").grade == Grade::kBad);
  JobFacts apart = job_on(2);  // only the ranks of host b need too much
  apart.ranks[2].memory.needed = apart.ranks[3].memory.needed = 40e9;
  const std::vector<Finding> lines = lines_of(diagnose(apart), "memory");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].grade == Grade::kGood);
  CHECK(lines[1].grade == Grade::kBad);
  CHECK(lines[1].ranks == std::vector<int>{2, 3});
  job.ranks.resize(1);  // not started: rank 0 stands for both ranks of its host
  CHECK(line_of(job, "memory").grade == Grade::kBad);
  for (const bool first : {false, true}) {
    JobFacts unequal = job_on(1);
    unequal.ranks[first ? 0 : 1].memory.needed = 35e9;
    unequal.ranks[first ? 1 : 0].memory.needed = 20e9;
    CHECK(line_of(unequal, "memory").grade == Grade::kGood);
    CHECK(contains(line_of(unequal, "memory").text, "; the ranks of a host need 51.22 GiB"));
  }
}

TEST_CASE("doctor: the host with the least memory is named where nothing is needed of it") {
  for (const bool gpus : {false, true}) {
    JobFacts job = job_on(3);
    if (!gpus) job.needs.reset();
    for (RankFacts& rank : job.ranks) {
      rank.memory.needed = gpus ? 1e9 : kNone;
      if (gpus) rank.devices.gpus = {{"NVIDIA H100", 80e9, 90, 13000, 13000}};
    }
    CHECK(line_of(job, "memory").worst_host.empty());
    for (RankFacts& rank : job.ranks)
      if (rank.host == "b") rank.memory = {.total = 32e9, .available = 31e9, .needed = rank.memory.needed};
    CHECK(line_of(job, "memory").worst_host == "b");
    CHECK(contains(line_of(job, "memory").text, "29.8 GiB"));
  }
  JobFacts needing = job_on(3);  // and where something is, the one with the least room beside it
  for (RankFacts& rank : needing.ranks) rank.memory.available = rank.host == "c" ? 10e9 : 60e9;
  CHECK(line_of(needing, "memory").worst_host == "c");
}

TEST_CASE("doctor: findings with remedies of their own keep them beside each other") {
  JobFacts full = job_on(5);
  const auto on = [](JobFacts& job, const std::string& host, const auto& change) {
    for (RankFacts& rank : job.ranks)
      if (rank.host == host) change(rank);
  };
  const auto holds = [](const std::vector<Finding>& lines, Grade grade, const std::vector<int>& ranks, const std::string& text,
                        const std::string& remedy) {
    return std::ranges::any_of(lines, [&](const Finding& line) {
      return line.grade == grade && line.ranks == ranks && contains(line.text, text) && contains(line.remedy, remedy);
    });
  };
  on(full, "a", [](RankFacts& rank) { rank.run.free = kNone; });
  on(full, "b", [](RankFacts& rank) { rank.run.free = 0.5e9; });
  on(full, "c", [](RankFacts& rank) { rank.run.files = 12; });
  on(full, "d", [](RankFacts& rank) { rank.run.files = 7; });
  on(full, "e", [](RankFacts& rank) { rank.run.files = 14, rank.run.free = 2e9; });
  std::vector<Finding> lines = lines_of(diagnose(full), "space");
  CHECK(lines.size() == 4);
  CHECK(holds(lines, Grade::kGood, {0, 1}, "unknown", ""));
  CHECK(holds(lines, Grade::kBad, {2, 3}, "not even one fits", "df -h"));
  CHECK(holds(lines, Grade::kBad, {4, 5, 6, 7}, "7 more files can be created", "df -i"));
  CHECK(holds(lines, Grade::kBad, {8, 9}, "they do not all fit; 14 more files", "df -h"));
  CHECK(holds(lines, Grade::kBad, {8, 9}, "they do not all fit; 14 more files", "df -i"));
  JobFacts busy = job_on(3);
  on(busy, "b", [](RankFacts& rank) { rank.memory = {.total = 64e9, .available = 63e9, .needed = 30e9}; });
  on(busy, "c", [](RankFacts& rank) { rank.memory = {.total = 64e9, .available = 1e9, .needed = 2e9}; });
  lines = lines_of(diagnose(busy), "memory");
  CHECK(lines.size() == 3);
  CHECK(holds(lines, Grade::kWeak, {2, 3}, "page cache", "parallel.zero_stage"));
  CHECK(holds(lines, Grade::kWeak, {4, 5}, "other processes", "top -o %MEM"));
}

TEST_CASE("doctor: counts are whole numbers, however large") {
  JobFacts job = job_on(1);
  for (RankFacts& rank : job.ranks) rank.limits.tasks = 4e6, rank.data.sequences = 1234567;
  CHECK(line_of(job, "open_files").text == "at most 1048576 open files per process (ulimit -Hn)");
  CHECK(line_of(job, "processes").text == "at most 4000000 processes and threads");
  CHECK(contains(line_of(job, "data").text, "1234567 training sequences"));
  job.ranks[1].data.identity = "18";
  CHECK(contains(lines_of(diagnose(job), "data")[1].text, "1234567 sequences in "));
}

TEST_CASE("doctor: GPUs that are missing, too few, too old or too small") {
  const GpuFacts gpu{"NVIDIA H100 80GB HBM3", 80e9, 90, 13000, 13000};
  const auto with = [&](const auto& change) {
    return grade_after("gpus", [&](JobFacts& job, RankFacts& rank) {
      job.needs->gpu = true;
      rank.devices.gpus = {gpu, gpu};
      rank.devices.missing.clear();
      change(job, rank);
    });
  };
  CHECK(with([](JobFacts&, RankFacts&) {}) == Grade::kGood);
  CHECK(with([](JobFacts&, RankFacts& rank) { rank.devices.gpus.clear(); }) == Grade::kBad);
  CHECK(with([](JobFacts&, RankFacts& rank) { rank.devices.gpus[1].capability = 75; }) == Grade::kBad);
  CHECK(with([](JobFacts&, RankFacts& rank) { rank.local_size = 3; }) == Grade::kBad);
  CHECK(with([](JobFacts& job, RankFacts& rank) {
          rank.local_size = 3;
          job.needs->ranks_per_gpu = 2;
        }) == Grade::kGood);
  JobFacts crowded = job_on(1);
  crowded.needs->gpu = true;
  crowded.needs->ranks_per_gpu = 2;
  for (RankFacts& rank : crowded.ranks) {
    rank.devices.gpus = {gpu, gpu};
    rank.devices.missing.clear();
    rank.local_size = 5;
  }
  CHECK(contains(line_of(crowded, "gpus").remedy, "at most 4 ranks per host (srun --ntasks-per-node=4)"));
  CHECK(with([](JobFacts&, RankFacts& rank) { rank.memory.needed = 81e9; }) == Grade::kBad);
  CHECK(with([](JobFacts&, RankFacts& rank) { rank.devices.opening = "libcublasLt.so.13 was not found"; }) == Grade::kBad);
  CHECK(with([](JobFacts&, RankFacts& rank) { rank.devices.free = 0.5e9; }) == Grade::kBad);
  CHECK(with([](JobFacts&, RankFacts& rank) { rank.devices.free = 2e9; }) == Grade::kGood);
  const auto idle = [&](bool may) {  // GPUs on the host that this process cannot use
    return grade_after("gpus", [&](JobFacts& job, RankFacts& rank) {
      rank.devices.files = true;
      job.needs->may_use_gpu = may;
    });
  };
  CHECK(idle(true) == Grade::kBad);
  CHECK(idle(false) == Grade::kGood);
  CHECK(grade_after("nccl", [&](JobFacts& job, RankFacts& rank) {
          job.needs->gpu = true;
          rank.devices.gpus = {gpu, gpu};
          rank.devices.nccl_missing = "not found";
          rank.local_size = 2;
        }) == Grade::kWeak);
}

TEST_CASE("doctor: limits of files, processes, locked and shared memory") {
  CHECK(grade_after("open_files", [](JobFacts&, RankFacts& rank) { rank.limits.open_files = 69; }) == Grade::kBad);
  CHECK(grade_after("open_files", [](JobFacts&, RankFacts& rank) { rank.limits.open_files = 70; }) == Grade::kWeak);
  CHECK(grade_after("open_files", [](JobFacts&, RankFacts& rank) { rank.limits.open_files = 1024; }) == Grade::kGood);
  CHECK(grade_after("processes", [](JobFacts&, RankFacts& rank) { rank.limits.tasks = 20; }) == Grade::kBad);
  CHECK(grade_after("processes", [](JobFacts&, RankFacts& rank) { rank.limits.tasks = 40; }) == Grade::kWeak);
  CHECK(grade_after("processes", [](JobFacts&, RankFacts& rank) { rank.limits.tasks = 100; }) == Grade::kGood);
  const auto shared = [](double bytes, int ranks) {
    return grade_after("shared_memory", [&](JobFacts&, RankFacts& rank) {
      rank.limits.shared_free = bytes;
      rank.local_size = ranks;
    });
  };
  CHECK(shared(1 << 20, 1) == Grade::kGood);
  CHECK(shared(1 << 20, 2) == Grade::kBad);
  CHECK(shared(5 << 20, 2) == Grade::kWeak);
  CHECK(shared(40 << 20, 2) == Grade::kGood);
  CHECK(shared(40 << 20, 8) == Grade::kWeak);
  for (const auto& [ranks, size] : {std::pair{200, "size=1g"}, {400, "size=2g"}}) {
    JobFacts job = job_on(1);
    for (RankFacts& rank : job.ranks) {
      rank.limits.shared_free = 40 << 20;
      rank.local_size = ranks;
    }
    CHECK(contains(line_of(job, "shared_memory").remedy, size));
  }
  const auto locked = [](const std::string& second_host) {
    JobFacts job = job_on(2);
    for (RankFacts& rank : job.ranks) {
      if (rank.host == "b") rank.host = second_host;
      rank.limits.locked = 8 << 20;
      rank.mpi.infiniband = {"mlx5_0"};
    }
    return line_of(job, "locked_memory").grade;
  };
  CHECK(locked("a") == Grade::kGood);
  CHECK(locked("b") == Grade::kWeak);
}

TEST_CASE("doctor: a run directory that is full, slow, private to a host or open to others") {
  const auto error = [](const std::string& text) {
    JobFacts job = job_on(1);
    for (RankFacts& rank : job.ranks) rank.run.error = text;
    return line_of(job, "run_directory");
  };
  CHECK(error("No space left on device").grade == Grade::kBad);
  CHECK(contains(error("No space left on device").remedy, "free space"));
  CHECK(contains(error("Permission denied").remedy, "chown"));
  JobFacts apart = job_on(2);
  apart.ranks[2].run.same_as_rank_0 = apart.ranks[3].run.same_as_rank_0 = false;
  const std::vector<Finding> lines = lines_of(diagnose(apart), "run_directory");
  REQUIRE(lines.size() == 2);
  CHECK(lines[1].grade == Grade::kBad);
  CHECK(lines[1].ranks == std::vector<int>{2, 3});
  CHECK(grade_after("run_directory", [](JobFacts&, RankFacts& rank) { rank.run.kind = "tmpfs"; }) == Grade::kWeak);

  const auto speed = [](double rate, double sync) {
    return grade_after("write_speed", [&](JobFacts&, RankFacts& rank) {
      rank.run.write_rate = rate;
      rank.run.sync_seconds = sync;
    });
  };
  CHECK(speed(60e6, 0.09) == Grade::kGood);
  CHECK(speed(40e6, 0.01) == Grade::kWeak);
  CHECK(speed(60e6, 0.2) == Grade::kWeak);
  CHECK(speed(0.5e6, 0.01) == Grade::kBad);
  CHECK(speed(60e6, 6) == Grade::kBad);
  // If several disks sync slowly, the one that takes longest is shown, also if it writes a little faster.
  JobFacts slow = job_on(2);
  for (RankFacts& rank : slow.ranks) {
    rank.run.write_rate = rank.rank < 2 ? 40e6 : 45e6;
    rank.run.sync_seconds = rank.rank < 2 ? 0.2 : 3;
  }
  CHECK(contains(line_of(slow, "write_speed").text, "a small fsync 3 s"));
  CHECK(grade_after("write_speed", [](JobFacts& job, RankFacts&) { job.needs->checkpoint = 61 * 500e6; }) == Grade::kWeak);
  // Hosts write their parts of a checkpoint at the same time.
  for (const auto& [hosts, takes] : {std::pair(1, "takes 40 s"), {2, "takes 20 s"}, {5, "takes 8 s"}}) {
    JobFacts shared = job_on(hosts);
    shared.needs->checkpoint = 40 * 500e6;
    CHECK_THAT(line_of(shared, "write_speed").text, Catch::Matchers::EndsWith(takes));
  }
  CHECK(grade_after("write_speed", [](JobFacts&, RankFacts& rank) { rank.run.stalled = true; }) == Grade::kBad);

  const auto space = [](double free, double files) {
    return grade_after("space", [&](JobFacts&, RankFacts& rank) {
      rank.run.free = free;
      rank.run.files = files;
    });
  };
  CHECK(space(4.1e9, 1e6) == Grade::kGood);
  CHECK(space(3.9e9, 1e6) == Grade::kWeak);
  CHECK(space(0.9e9, 1e6) == Grade::kBad);
  CHECK(space(kNone, kNone) == Grade::kGood);
  CHECK(space(1e12, 500) == Grade::kWeak);
  CHECK(space(1e12, 3) == Grade::kBad);

  const auto mode = [](int bits) { return grade_after("permissions", [&](JobFacts&, RankFacts& rank) { rank.run.mode = bits; }); };
  CHECK(mode(0700) == Grade::kGood);
  CHECK(mode(0755) == Grade::kGood);
  CHECK(mode(0775) == Grade::kWeak);
  CHECK(mode(0777) == Grade::kBad);
  CHECK(mode(01777) == Grade::kGood);
  CHECK(grade_after("permissions", [](JobFacts&, RankFacts& rank) { rank.run.own = false; }) == Grade::kWeak);
}

TEST_CASE("doctor: key files that the run opens, and those that it will refuse") {
  JobFacts job = job_on(2);
  CHECK(contains(line_of(job, "permissions").text, "no key file is read here"));
  for (RankFacts& rank : job.ranks) rank.keys = {{.key = "security.key_file"}, {.key = "security.privacy.key_file"}};
  CHECK(line_of(job, "permissions").grade == Grade::kGood);
  CHECK(contains(line_of(job, "permissions").text, "; no other user can read security.key_file, security.privacy.key_file"));
  for (RankFacts& rank : job.ranks)
    if (rank.host == "b") rank.keys[0].error = "security.key_file: /k has mode 0644", rank.run.mode = 0775;
  const std::vector<Finding> lines = lines_of(diagnose(job), "permissions");
  REQUIRE(lines.size() == 2);
  CHECK(lines[1].grade == Grade::kBad);
  CHECK(lines[1].ranks == std::vector<int>{2, 3});
  CHECK(contains(lines[1].text,
                 "its group can replace checkpoints; security.key_file: /k has mode 0644; no other user can read security.privacy.key_file"));
  CHECK(contains(lines[1].remedy, "chmod go-w /runs/a; "));
  CHECK(contains(lines[1].remedy, "chmod 600"));
  job.needs.reset();  // nothing is known of keys without a configuration
  for (RankFacts& rank : job.ranks) rank.keys.clear();
  CHECK_FALSE(contains(lines_of(diagnose(job), "permissions")[0].text, "key"));
}

TEST_CASE("doctor: data that cannot be opened, or that differ between ranks") {
  CHECK(grade_after("data", [](JobFacts&, RankFacts& rank) { rank.data.error = "data/train: no such token directory"; }) == Grade::kBad);
  CHECK(grade_after("data", [](JobFacts& job, RankFacts&) { job.needs.reset(); }) == Grade::kGood);
  JobFacts job = job_on(2);
  job.ranks[3].data.identity = "18";
  const std::vector<Finding> lines = lines_of(diagnose(job), "data");
  REQUIRE(lines.size() == 2);
  CHECK(lines[1].grade == Grade::kBad);
  CHECK(lines[1].ranks == std::vector<int>{3});
}

TEST_CASE("doctor: starting ranks") {
  const auto mpi = [](int ranks, const std::string& starter) {
    return grade_after("mpi", [&](JobFacts& job, RankFacts& rank) {
      job.needs->ranks = ranks;
      rank.mpi.missing = "mpirun was not found";
      rank.mpi.starter = starter;
    });
  };
  CHECK(mpi(2, "") == Grade::kBad);
  CHECK(mpi(1, "") == Grade::kWeak);
  CHECK(mpi(2, "srun") == Grade::kGood);
  JobFacts job = job_on(2);
  job.needs->ranks = 8;
  CHECK(line_of(job, "ranks").grade == Grade::kBad);
  CHECK(contains(line_of(job, "ranks").remedy, "srun --ntasks=8"));
  job = job_on(2);
  job.not_started = "see mpi";
  CHECK(line_of(job, "ranks").grade == Grade::kBad);
  job = job_on(2);
  job.no_answer = "rank 0 waits for rank 3";
  CHECK(line_of(job, "ranks").grade == Grade::kBad);
  job = job_on(2);
  for (RankFacts& rank : job.ranks) {
    rank.mpi.infiniband = {"mlx5_0"};
    rank.mpi.transports = {"btl tcp", "pml ob1"};
  }
  CHECK(line_of(job, "transports").grade == Grade::kWeak);
  for (RankFacts& rank : job.ranks) rank.mpi.transports.emplace_back("pml ucx");
  CHECK(line_of(job, "transports").grade == Grade::kGood);
}

TEST_CASE("doctor: Slurm's tasks and cores") {
  const auto slurm = [](const auto& change) {
    JobFacts job = job_on(1);
    job.slurm = {"17", 1, 2};
    for (RankFacts& rank : job.ranks) rank.mpi.starter = "srun";
    change(job);
    return line_of(job, "slurm");
  };
  CHECK(slurm([](JobFacts&) {}).grade == Grade::kGood);
  const Finding apart = slurm([](JobFacts& job) { job.slurm.step_tasks = 8; });
  CHECK(apart.grade == Grade::kBad);
  CHECK(contains(apart.remedy, "--mpi=pmix"));
  const Finding bound = slurm([](JobFacts& job) { job.ranks[0].cpu.cores = {3}; });
  CHECK(bound.grade == Grade::kWeak);
  CHECK(contains(bound.remedy, "--cpus-per-task=4"));
}

TEST_CASE("doctor: links that are slow, much slower than others, or closed") {
  const auto network = [](std::vector<Link> links) {
    JobFacts job = job_on(3);
    job.links = std::move(links);
    job.pairs = static_cast<int64_t>(job.links.size());
    return line_of(job, "network");
  };
  const Link within{0, 1, 1e-6, 5e9, true}, between{0, 2, 50e-6, 1.2e9, false};
  CHECK(network({within, between}).grade == Grade::kGood);
  CHECK(network({within, {0, 2, 2e-3, 1.2e9, false}}).grade == Grade::kWeak);
  CHECK(network({within, {0, 2, 50e-6, 12e6, false}}).grade == Grade::kWeak);
  CHECK(network({within, {0, 2, 0.2, 1.2e9, false}}).grade == Grade::kBad);
  CHECK(network({within, {0, 2, 50e-6, 0.9e6, false}}).grade == Grade::kBad);
  CHECK(network({{0, 1, 10e-3, 5e9, true}}).grade == Grade::kWeak);
  CHECK(network({{0, 1, 0.2, 5e9, true}, {0, 2, 2e-3, 1.2e9, false}}).grade == Grade::kBad);  // the worse of both kinds
  const Finding outlier = network({between, {0, 4, 60e-6, 1.1e9, false}, {2, 4, 50e-6, 0.3e9, false}});
  CHECK(outlier.grade == Grade::kWeak);
  CHECK(contains(outlier.text, "worst hosts b and c"));
  const Finding both = network({{0, 1, 10e-3, 5e9, true}, {0, 2, 2e-3, 1.2e9, false}});
  CHECK(contains(both.remedy, "fewer ranks than cores"));
  CHECK(contains(both.remedy, "OMPI_MCA_btl=vader,tcp,self; between hosts: ethtool"));  // without tcp, hosts could not communicate
  JobFacts alone = job_on(1);
  alone.links = {{0, 1, 10e-3, 5e9, true}};
  CHECK(contains(line_of(alone, "network").remedy, "OMPI_MCA_btl=vader,self"));
  JobFacts job = job_on(3);
  job.unreachable = {{0, 4}};
  CHECK(line_of(job, "network").grade == Grade::kBad);
  CHECK(contains(line_of(job, "network").text, "a -> c"));
  job = job_on(3);
  job.links = {between};
  job.pairs = 3;
  CHECK(contains(line_of(job, "network").text, "1 of 3 pairs"));
}

TEST_CASE("doctor: clocks beyond the error of their measurement") {
  const auto clocks = [](double ahead, double error) {
    JobFacts job = job_on(2);
    for (RankFacts& rank : job.ranks)
      if (rank.host == "b") {
        rank.ahead = ahead;
        rank.ahead_error = error;
      }
    return worst_of(lines_of(diagnose(job), "clocks"));
  };
  CHECK(clocks(0.9, 0) == Grade::kGood);
  CHECK(clocks(1.5, 1) == Grade::kGood);
  CHECK(clocks(-1.5, 0.1) == Grade::kWeak);
  CHECK(clocks(400, 0.1) == Grade::kBad);
}

TEST_CASE("doctor: the clock that may be farthest off is the one that is shown") {
  JobFacts job = job_on(4);
  const auto set = [&](const std::string& host, double ahead, double error) {
    for (RankFacts& rank : job.ranks)
      if (rank.host == host) rank.ahead = ahead, rank.ahead_error = error;
  };
  set("b", 2e-3, 1e-3);
  set("c", 0, 0.5);  // hardly known
  set("d", -0.1, 0.2);
  Finding line = line_of(job, "clocks");
  CHECK(line.text == "within 500 ms of rank 0's");
  CHECK(line.worst_host == "c");
  set("d", -0.4, 0.2);
  line = line_of(job, "clocks");
  CHECK(line.text == "within 600 ms of rank 0's");
  CHECK(line.worst_host == "d");
}

TEST_CASE("doctor: facts survive the way to rank 0") {
  RankFacts facts = healthy(3, "b");
  facts.devices.gpus = {{"NVIDIA H100", 80e9, 90, 13000, 12080}};
  facts.run.stalled = true;
  facts.keys = {{"security.key_file", "too short"}};
  const nlohmann::json sent = facts;
  CHECK(nlohmann::json(nlohmann::json::parse(sent.dump()).get<RankFacts>()) == sent);
  CHECK(sent["cpu"]["isa"] == "avx512_bf16");
  CHECK(sent["limits"]["locked"] == -1);
}

}  // namespace trireme::doctor
