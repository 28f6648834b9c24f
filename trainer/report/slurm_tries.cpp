#include "trainer/report/slurm_tries.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"

namespace trireme::report {
namespace {

std::string text_in(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<int64_t> integer_in(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number_integer() ? std::optional(found->get<int64_t>()) : std::nullopt;
}

}  // namespace

std::vector<SlurmTry> slurm_tries(const std::filesystem::path& run_directory) {
  constexpr int64_t kMostBytes = 16 << 20;
  const std::filesystem::path path = run_directory / "slurm" / "jobs.jsonl";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  std::vector<SlurmTry> tries;
  std::istringstream lines(read_text(path, kMostBytes));
  for (std::string text; std::getline(lines, text);) {
    const nlohmann::json line = json_line(text);
    if (!line.is_object() || text_in(line, "job").empty()) continue;
    const std::string job = text_in(line, "job"), event = text_in(line, "event");
    const int64_t restart = integer_in(line, "restart").value_or(0);
    if (event == "start") {
      tries.push_back({.job = job,
                       .array = text_in(line, "array"),
                       .restart = restart,
                       .begin = text_in(line, "time"),
                       .nodes = text_in(line, "nodes"),
                       .partition = text_in(line, "partition"),
                       .tasks = integer_in(line, "tasks").value_or(0),
                       .next = ""});
    } else if (event == "end") {
      const auto begun = std::find_if(tries.rbegin(), tries.rend(), [&](const SlurmTry& one) { return one.job == job && one.restart == restart; });
      if (begun == tries.rend()) continue;
      begun->seconds = integer_in(line, "seconds");
      begun->code = integer_in(line, "code");
      begun->next = text_in(line, "next");
    }
  }
  return tries;
}

}  // namespace trireme::report
