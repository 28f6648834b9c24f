#include "trainer/doctor/report.h"

#include <algorithm>

#include "kernels/core/counted.h"
#include "trainer/doctor/judge.h"

namespace trireme::doctor {
namespace {

/// Names of the hosts of `ranks`, each once, by rank.
std::vector<std::string> hosts_of_ranks(const JobFacts& job, const std::vector<int>& ranks) {
  std::vector<std::string> hosts;
  for (const RankFacts& rank : job.ranks)
    if (std::ranges::binary_search(ranks, rank.rank) && std::ranges::find(hosts, rank.host) == hosts.end()) hosts.push_back(rank.host);
  return hosts;
}

/// Where a finding holds, unless on all ranks, and the worst host.
std::string where(const JobFacts& job, const Finding& finding) {
  constexpr size_t kNamed = 4;
  const std::vector<std::string> hosts = hosts_of_ranks(job, finding.ranks);
  const std::string worst = finding.worst_host.empty() ? "" : "worst: " + finding.worst_host;
  if (finding.ranks.size() == job.ranks.size()) return worst.empty() ? "" : concat(" [", worst, "]");
  std::string names;
  for (size_t i = 0; i < std::min(hosts.size(), kNamed); ++i) names += (names.empty() ? "" : ", ") + hosts[i];
  if (hosts.size() > kNamed) names += concat(" and ", hosts.size() - kNamed, " more");
  return concat(" [", finding.ranks.size() == 1 ? "rank " : "ranks ", ranges_of(finding.ranks), " on ", names, worst.empty() ? "" : "; ", worst, "]");
}

}  // namespace

std::string ranges_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t begin = 0, end; begin < ranks.size(); begin = end) {
    for (end = begin + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    text += concat(text.empty() ? "" : ", ", ranks[begin]);
    if (end - begin > 1) text += concat("-", ranks[end - 1]);
  }
  return text;
}

std::string report_text(const JobFacts& job, const std::vector<Finding>& findings) {
  constexpr size_t kColumn = 15;  // the longest name of a check, and two spaces
  std::string text;
  for (const Finding& finding : findings) {
    const std::string grade = name_of(finding.grade);
    text += grade + std::string(6 - grade.size(), ' ') + finding.check + std::string(kColumn - finding.check.size(), ' ') + finding.text +
            where(job, finding) + "\n";
    if (!finding.remedy.empty()) text += std::string(6 + kColumn, ' ') + "-> " + finding.remedy + "\n";
  }
  const auto number = [&](Grade grade) { return std::ranges::count(findings, grade, &Finding::grade); };
  return text + concat(number(Grade::kBad), " bad, ", number(Grade::kWeak), " weak, ", number(Grade::kGood), " good; ",
                       counted(job.ranks.size(), "rank"), " on ", counted(hosts_of(job), "host"), "\n");
}

nlohmann::ordered_json report_json(const JobFacts& job, const std::vector<Finding>& findings, double seconds) {
  nlohmann::ordered_json json = {{"grade", name_of(worst_of(findings))}, {"seconds", seconds}, {"ranks", job.ranks.size()}};
  std::vector<int> all;
  for (const RankFacts& rank : job.ranks) all.push_back(rank.rank);
  json["hosts"] = hosts_of_ranks(job, all);
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings)
    json["findings"].push_back({{"check", finding.check},
                                {"grade", name_of(finding.grade)},
                                {"text", finding.text},
                                {"remedy", finding.remedy},
                                {"ranks", finding.ranks},
                                {"hosts", hosts_of_ranks(job, finding.ranks)},
                                {"worst_host", finding.worst_host}});
  json["links"] = nlohmann::json(job.links);
  json["unreachable"] = nlohmann::json(job.unreachable);
  json["facts"] = nlohmann::json(job.ranks);
  return json;
}

}  // namespace trireme::doctor
