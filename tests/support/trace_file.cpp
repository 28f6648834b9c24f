#include "tests/support/trace_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "kernels/core/check.h"

namespace trireme::test {
namespace {

using Row = std::pair<int, int>;

struct Arrow {
  std::optional<double> leaves, arrives;
  int from = -1, to = -1;
  Row row;  ///< in which it arrives
};

std::string problem_of_row(std::vector<std::pair<double, double>> events, const std::string& name) {
  std::ranges::sort(events);
  for (size_t i = 1; i < events.size(); ++i)
    if (events[i].first < events[i - 1].second - 1e-4) return concat("in row ", name, " events overlap at ", events[i].first, " us");
  return "";
}

/// A time is in an event from its begin (inclusive) to its end (exclusive), as in a trace viewer.
bool lies_in_one(const std::vector<std::pair<double, double>>& events, double time) {
  return std::ranges::any_of(events, [&](const auto& event) { return time == event.first || (event.first < time && time < event.second - 1e-4); });
}

}  // namespace

TraceFile read_trace(const std::string& text) {
  TraceFile file;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("traceEvents")) {
    file.problem = "not a JSON object with traceEvents";
    return file;
  }
  std::map<Row, std::string> rows;
  std::map<Row, std::vector<std::pair<double, double>>> events;
  std::map<int64_t, Arrow> arrows;
  for (const nlohmann::json& event : json["traceEvents"]) {
    const std::string kind = event.at("ph"), name = event.at("name");
    const int pid = event.at("pid"), tid = event.value("tid", -1);
    if (name == "process_name") file.processes[pid] = event.at("args").at("name");
    if (name == "thread_name") rows[{pid, tid}] = event.at("args").at("name");
    if (kind == "X") events[{pid, tid}].emplace_back(event.at("ts"), event.at("ts").get<double>() + event.at("dur").get<double>());
    if (kind == "s" || kind == "f") {
      Arrow& arrow = arrows[event.at("id")];
      std::optional<double>& end = kind == "s" ? arrow.leaves : arrow.arrives;
      if (end) file.problem = concat("two ends of kind ", kind, " of transfer ", event.at("id").get<int64_t>());
      end = event.at("ts").get<double>();
      (kind == "s" ? arrow.from : arrow.to) = pid;
      if (kind == "f") arrow.row = {pid, tid};
    }
  }
  for (const auto& [row, of] : events) {
    if (!rows.contains(row) || !file.processes.contains(row.first)) file.problem = concat("a row of process ", row.first, " has no name");
    const std::pair<int, std::string> key{row.first, rows[row]};
    file.events[key] += static_cast<int64_t>(of.size());
    for (const auto& [begin, end] : of) file.busy[key] += end - begin;
    if (const std::string problem = problem_of_row(of, rows[row]); !problem.empty()) file.problem = problem;
  }
  for (const auto& [id, arrow] : arrows) {
    if (!arrow.leaves || !arrow.arrives || arrow.from == arrow.to) {
      file.problem = concat("transfer ", id, " has one end");
    } else if (*arrow.arrives < *arrow.leaves - 1e-4) {
      file.problem = concat("transfer ", id, " arrives before it leaves");
    } else if (!lies_in_one(events[arrow.row], *arrow.arrives)) {
      file.problem = concat("transfer ", id, " arrives in no event");
    } else {
      ++file.arrows;
    }
  }
  return file;
}

}  // namespace trireme::test
