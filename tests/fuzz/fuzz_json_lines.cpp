// Readers of files with an object of JSON in each line: what a job that resumes reads of its metrics and of earlier jobs, and messages of connections.
#include "tests/fuzz/fuzz.h"
#include "trainer/files/json_lines.h"
#include "trainer/files/strict_json.h"
#include "trainer/report/slurm_tries.h"
#include "trainer/resilience/job_record.h"
#include "trainer/run/metrics_sink.h"

namespace trireme::fuzz {

/// True if every line is an object.
bool accepts(std::string_view input) {
  static const Scratch scratch;
  const std::filesystem::path path = scratch.put("metrics.jsonl", input);
  if (!taken([&] { JsonLines opened(path.string()); })) return false;  // a pointer of Git LFS in the file's place
  bool objects = true;
  size_t lines = 0;
  for (JsonLines file(path.string()); file.next(); ++lines) {
    require(file.value().is_object() || file.value().is_null(), "a line is an object or nothing");
    objects = objects && file.value().is_object();
    if (!file.value().is_object()) continue;
    const nlohmann::ordered_json copy = file.value();
    const std::string text = copy.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    require(json_line<nlohmann::ordered_json>(text).is_object(), "written text can be read back");
  }
  taken([&] { parse_value(input, "input"); });
  taken([&] { parse_object(input, "input"); });

  constexpr int64_t kStep = 2;
  MetricsSink::history(path);
  MetricsSink::lines_after(path, kStep);
  const LoggedSplits splits = MetricsSink::splits_after(path, kStep);
  for (const auto& [after, counts] : splits.after_step) require(after > kStep, "splits are those of later steps");
  for (const auto& [step, workers] : MetricsSink::order_after(path, kStep)) require(step > kStep, "arrivals are those of later steps");
  MetricsSink::truncate_after(path, kStep);
  for (JsonLines file(path.string()); file.next();) require(file.value().is_object() && file.is_whole(), "what is kept are objects");

  scratch.put(kJobsName, input);
  failures_of(read_job_records(scratch.path()));
  std::filesystem::create_directory(scratch.path() / "slurm");
  scratch.put("slurm/jobs.jsonl", input);
  taken([&] { report::slurm_tries(scratch.path()); });
  return objects && lines > 0;
}

}  // namespace trireme::fuzz
