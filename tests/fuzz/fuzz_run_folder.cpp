// Everything that reads the directory of a run that has ended: the report, the table, the comparison and the goodput. The input is files, each behind a line
// "@ NAME".
#include <algorithm>
#include <array>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "trainer/report/comparison.h"
#include "trainer/report/csv.h"
#include "trainer/report/goodput_report.h"
#include "trainer/report/page.h"
#include "trainer/report/run_record.h"

namespace trireme::fuzz {
namespace {

constexpr std::array kNames{"metrics.jsonl", "config.yaml", "jobs.jsonl", "environment.json", "slurm/jobs.jsonl"};

void put_files(const Scratch& scratch, std::string_view input) {
  for (const char* name : kNames) std::filesystem::remove(scratch.path() / name);
  while (!input.empty()) {
    const size_t line = std::min(input.find('\n'), input.size());
    const std::string_view head = input.substr(0, line);
    input.remove_prefix(std::min(line + 1, input.size()));
    const size_t next = input.starts_with("@ ") ? 0 : std::min(input.find("\n@ "), input.size() - 1) + (input.empty() ? 0 : 1);
    for (const char* name : kNames)
      if (head == std::string("@ ") + name) scratch.put(name, input.substr(0, next));
    input.remove_prefix(std::min(next, input.size()));
  }
}

}  // namespace

/// True if there is a run, and nothing of it is missing or damaged.
bool accepts(std::string_view input) {
  static const Scratch scratch;
  std::filesystem::create_directory(scratch.path() / "slurm");
  put_files(scratch, input);
  std::vector<report::RunRecord> runs;
  if (!taken([&] { runs.push_back(report::read_run(scratch.path())); })) return false;
  const std::vector<report::RunView> views{report::RunView(runs.front(), "run")};
  const std::string page = report::page_html(views, "version");
  require(page.find('\x1b') == page.npos, "a page has no control characters");
  report::csv_of(views);
  const report::Comparison same = report::compare(runs.front(), runs.front(), {});
  require(same.equal(), "a run is equal to itself");
  report::comparison_text(same);
  if (const auto goodput = report::goodput_of(runs.front())) report::goodput_report_text(runs.front(), *goodput);
  return runs.front().problems.empty();
}

}  // namespace trireme::fuzz
