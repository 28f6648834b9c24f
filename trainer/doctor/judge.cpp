#include "trainer/doctor/judge.h"

#include <algorithm>
#include <array>
#include <set>

#include "kernels/core/check.h"

namespace trireme::doctor {
namespace {

constexpr std::array<Check, 22> kChecks{{
    {"ranks", Check::Of::kJob, judge_ranks},
    {"cores", Check::Of::kRank, judge_cores},
    {"instructions", Check::Of::kHost, judge_instructions},
    {"load", Check::Of::kHost, judge_load},
    {"memory", Check::Of::kHost, judge_memory},
    {"gpus", Check::Of::kRank, judge_gpus},
    {"nccl", Check::Of::kRank, judge_nccl},
    {"mpi", Check::Of::kRank, judge_mpi},
    {"transports", Check::Of::kHost, judge_transports},
    {"network", Check::Of::kJob, judge_network},
    {"clocks", Check::Of::kHost, judge_clocks},
    {"run_directory", Check::Of::kRank, judge_run_directory},
    {"write_speed", Check::Of::kHost, judge_write_speed},
    {"space", Check::Of::kHost, judge_space},
    {"data", Check::Of::kRank, judge_data},
    {"open_files", Check::Of::kRank, judge_open_files},
    {"locked_memory", Check::Of::kRank, judge_locked_memory},
    {"processes", Check::Of::kRank, judge_processes},
    {"shared_memory", Check::Of::kHost, judge_shared_memory},
    {"slurm", Check::Of::kJob, judge_slurm},
    {"permissions", Check::Of::kHost, judge_permissions},
    {"encryption", Check::Of::kJob, judge_encryption},
}};

/// Findings that say the same.
struct Line {
  Finding worst;
  double mildest = 0;  ///< severity of the mildest one
};

/// Adds a finding to the line that says the same, or as a line of its own.
void merge(std::vector<Line>& lines, Finding finding, const std::string& host) {
  const auto same = std::ranges::find_if(lines, [&](const Line& line) {
    const Finding& worst = line.worst;
    if (worst.grade != finding.grade || worst.group != finding.group) return false;
    return !worst.group.empty() || (worst.text == finding.text && worst.remedy == finding.remedy);
  });
  finding.worst_host = host;
  if (same == lines.end()) {
    lines.push_back({finding, finding.severity});
    return;
  }
  same->mildest = std::min(same->mildest, finding.severity);
  std::vector<int> ranks = same->worst.ranks;
  ranks.insert(ranks.end(), finding.ranks.begin(), finding.ranks.end());
  if (finding.severity > same->worst.severity) same->worst = std::move(finding);
  std::ranges::sort(ranks);
  same->worst.ranks = std::move(ranks);
}

std::vector<int> ranks_on(const JobFacts& job, const std::string& host) {
  std::vector<int> ranks;
  for (const RankFacts& rank : job.ranks)
    if (rank.host == host) ranks.push_back(rank.rank);
  return ranks;
}

std::vector<int> all_ranks(const JobFacts& job) {
  std::vector<int> ranks;
  for (const RankFacts& rank : job.ranks) ranks.push_back(rank.rank);
  return ranks;
}

}  // namespace

const char* name_of(Grade grade) {
  constexpr std::array kNames{"good", "weak", "bad"};
  return kNames[static_cast<size_t>(grade)];
}

std::span<const Check> checks() { return kChecks; }

std::vector<Finding> diagnose(const JobFacts& job) {
  TRIREME_CHECK(!job.ranks.empty(), "a diagnosis needs the facts of a rank");
  std::vector<Finding> all;
  for (const Check& check : kChecks) {
    std::vector<Line> lines;
    std::set<std::string> hosts;
    for (const RankFacts& rank : job.ranks) {
      const bool first_of_host = hosts.insert(rank.host).second;
      if ((check.of == Check::Of::kHost && !first_of_host) || (check.of == Check::Of::kJob && rank.rank != job.ranks.front().rank)) continue;
      Finding finding = check.judge(job, rank);
      finding.check = check.name;
      finding.ranks = check.of == Check::Of::kJob    ? all_ranks(job)
                      : check.of == Check::Of::kHost ? ranks_on(job, rank.host)
                                                     : std::vector<int>{rank.rank};
      merge(lines, std::move(finding), rank.host);
    }
    for (Line& line : lines) {
      if (line.mildest == line.worst.severity) line.worst.worst_host.clear();
      all.push_back(std::move(line.worst));
    }
  }
  return all;
}

Grade worst_of(const std::vector<Finding>& findings) {
  Grade worst = Grade::kGood;
  for (const Finding& finding : findings) worst = std::max(worst, finding.grade);
  return worst;
}

int hosts_of(const JobFacts& job) {
  std::set<std::string> hosts;
  for (const RankFacts& rank : job.ranks) hosts.insert(rank.host);
  return static_cast<int>(hosts.size());
}

bool on_gpus(const JobFacts& job) {
  if (job.needs && !job.needs->may_use_gpu) return false;
  if (job.needs && job.needs->gpu) return true;
  return std::ranges::all_of(job.ranks, [](const RankFacts& rank) { return !rank.devices.gpus.empty(); });
}

}  // namespace trireme::doctor
