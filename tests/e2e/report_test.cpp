// `trireme report` on a run that was trained, as HTML, SVG and CSV.
#include <cstdio>

#include "kernels/core/check.h"
#include "tests/e2e/fingerprint.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace trireme::test {
namespace {

/// Base64 of hexadecimal digits.
std::string base64(const std::string& hexadecimal) {
  constexpr const char* kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  for (const char digit : hexadecimal) {
    bits = bits << 4 | static_cast<uint32_t>(std::stoi(std::string(1, digit), nullptr, 16));
    for (count += 4; count >= 6; count -= 6) text += kLetters[bits >> (count - 6) & 63];
  }
  if (count > 0) text += kLetters[bits << (6 - count) & 63];
  return text + std::string((4 - text.size() % 4) % 4, '=');
}

}  // namespace

TEST_CASE("report: a trained run with a restart becomes a page, drawings and a table") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + layout(1, 2, 1, 0) + in("run") + Arguments{"--max-steps", "4", "--trace-steps", "3"});
  must(directory, kTrain + layout(1, 2, 1, 0) + in("run"));
  must(directory, kTrain + in("other") + sets({"run.seed=5", "run.name=other"}));

  const Outcome written = must(directory, {"report", "run"});
  CHECK(written.out == "report.html\n");
  const std::string page = read_file(directory / "report.html");
  for (const char* heading : {"Training", "Time line", "Memory", "Step time by cause, mean over ranks", "Ranks", "Configuration", "Environment"})
    CHECK(count(page, concat("<h2>", heading, "</h2>")) == 1);
  CHECK(count(page, "Peak memory of pipeline rank 1") >= 1);
  CHECK(count(page, "class=\"mark") >= 3);  // the restart, over steps, tokens and time
  CHECK(count(page, "2 jobs") == 1);
  CHECK(count(page, ">pipeline bubble<") == 1);
  CHECK(count(page, "<p class=\"note\">2 ranks, ") == 1);
  CHECK(count(page, " measurements; the imbalance") == 1);  // two: one for each job; more if the jobs take longer than a second
  // The page's own script, and no other, is allowed to run.
  const size_t begin = page.rfind("<script>") + 8, end = page.rfind("</script>");
  CHECK(count(page, "script-src 'sha256-" + base64(sha256(page.substr(begin, end - begin))) + "'") == 1);

  must(directory, {"report", "run", "other", "--output", "both.html"});
  const std::string both = read_file(directory / "both.html");
  CHECK(count(both, "<h2>What differs in the configuration</h2>") == 1);
  CHECK(count(both, "<h2>Results</h2>") == 1);

  CHECK(must(directory, {"report", "run", "--svg"}).out.starts_with("report-svg: "));
  const std::set<std::string> names = names_in(directory / "report-svg");
  for (const char* name : {"loss-steps.svg", "loss-tokens.svg", "loss-time.svg", "learning-rate.svg", "gradient-norm.svg", "throughput.svg",
                           "time-line.svg", "memory-1.svg", "memory-2.svg", "causes.svg"}) {
    CAPTURE(name);
    CHECK(names.contains(name));
  }
  must(directory, {"report", "run", "--svg"});  // overwrites its own files
  must(directory, {"report", "run", "other", "--svg", "--output", "all.svg"});
  CHECK(count(read_file(directory / "all.svg"), "<svg") == 1);

  must(directory, {"report", "run", "--csv", "--output", "run.csv"});
  std::istringstream csv(read_file(directory / "run.csv"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(csv, line);) lines.push_back(line);
  REQUIRE(lines.size() == 7);
  const std::vector<double> expected = losses(directory / "run", 6);
  for (size_t step = 1; step <= 6; ++step) {
    std::istringstream cells(lines[step]);
    std::string cell;
    for (int column = 0; column < 5; ++column) std::getline(cells, cell, ',');
    CHECK(std::stod(cell) == expected[step - 1]);
  }
}

TEST_CASE("report: what is not a run, and an output that cannot be written, are refused with one message") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainOnly + in("run") + Arguments{"--max-steps", "1"});
  check(run(directory, {"report", "nothing"}), 66, "nothing: does not exist; expected a run directory");
  check(run(directory, {"report", "train"}), 65, "train: not a run");
  check(run(directory, {"report", "run", "run.yaml"}), 65, "run.yaml: not a run");
  check(run(directory, {"report"}), 64, "RUN is required");
  check(run(directory, {"report", "run", "--svg", "--csv"}), 64, "--svg excludes --csv");
  check(run(directory, {"report", "run", "--output", "absent/report.html"}), 74, "absent");
  check(run(directory, {"report", "run", "--output", "train"}), 74, "train");
  check(run(directory, {"report", "run", "--svg", "--output", "run.yaml"}), 74, "cannot create run.yaml: Not a directory");
  CHECK_FALSE(fs::exists(directory / "report.html"));

  write_file(directory / "run/metrics.jsonl", read_file(directory / "run/metrics.jsonl") + "{\"step\": 2, \"lo");
  const Outcome cut = must(directory, {"report", "run"});
  CHECK(cut.err == "warning: run: metrics.jsonl: 1 line cut or damaged, skipped\n");
}

}  // namespace trireme::test
