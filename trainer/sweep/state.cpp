#include "trainer/sweep/state.h"

#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/config/derived_sizes.h"
#include "trainer/config/load.h"
#include "trainer/config/write.h"
#include "trainer/files/append_file.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/json_lines.h"
#include "trainer/files/strict_json.h"
#include "trainer/plan/text.h"

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace trireme::sweep {
namespace {

constexpr int64_t kVersion = 1;

/// Appends a line. A line that an interrupted write has cut is ended first, so that it does not damage this one.
void append_line(const fs::path& path, ordered_json line) {
  line["time"] = utc_text(WallClock::now());
  std::error_code missing;
  const bool cut = fs::exists(path, missing) && fs::file_size(path) > 0 && !read_text(path).ends_with('\n');
  AppendFile file(path);
  file.append(concat(cut ? "\n" : "", line.dump(-1, ' ', false, ordered_json::error_handler_t::replace), "\n"));
  file.sync_all();
}

/// The whole lines of a file, which need not exist; damaged ones are left out.
std::vector<ordered_json> lines_of(const fs::path& path) {
  std::vector<ordered_json> lines;
  std::error_code error;
  if (!fs::exists(path, error)) return lines;
  for (JsonLines file(path.string()); file.next();) {
    ordered_json& value = file.value();
    if (value.is_object() && value.contains("event") && value["event"].is_string()) lines.push_back(std::move(value));
  }
  return lines;
}

int64_t integer_in(const ordered_json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string text_in(const ordered_json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

double seconds_in(const ordered_json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : 0;
}

fs::path events_of(const std::string& directory, size_t index) { return job_directory(directory, index) / "events.jsonl"; }

ordered_json settings_json(const Point& point) {
  ordered_json settings = ordered_json::object();
  for (const Setting& one : point.settings) settings[one.key] = one.value;
  return settings;
}

/// The configuration of a point without the names that the sweep gives it.
std::string unnamed_yaml(const PointRun& run) {
  return to_yaml(run.config, [](const std::string& key) { return key != "run.name" && key != "run.directory"; });
}

/// What decides how far points train, beside the points themselves.
ordered_json halving_json(const SweepConfig& config) {
  if (!config.halving.first_steps) return nullptr;
  return {{"first_steps", *config.halving.first_steps},
          {"eta", config.halving.eta},
          {"metric", config.objective.metric.text()},
          {"take", config.objective.take.text()},
          {"average", config.objective.average}};
}

ordered_json points_json(const SweepFile& file, const std::vector<PointRun>& runs) {
  ordered_json points = ordered_json::array();
  for (const PointRun& run : runs) points.push_back(settings_json(run.point));
  return {{"version", kVersion}, {"halving", halving_json(file.config)}, {"first_config", unnamed_yaml(runs.front())}, {"points", points}};
}

std::string shown(const ordered_json& value) { return value.is_null() ? "none" : value.is_string() ? value.get<std::string>() : value.dump(); }

/// Lines "point 3: training.steps: 10 -> 20".
std::string point_differences(const ordered_json& before, const ordered_json& now) {
  std::string text;
  if (now.size() < before.size()) text += concat("points: ", before.size(), " -> ", now.size(), "\n");
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if (before[i] == now[i]) continue;
    for (const auto& [key, value] : before[i].items())
      if (!now[i].contains(key) || now[i].at(key) != value)
        text += concat("point ", i, ": ", key, ": ", shown(value), " -> ", now[i].contains(key) ? shown(now[i].at(key)) : "not an axis", "\n");
    for (const auto& [key, value] : now[i].items())
      if (!before[i].contains(key)) text += concat("point ", i, ": ", key, ": not an axis -> ", shown(value), "\n");
    if (before[i].dump() != now[i].dump() && text.empty()) text += concat("point ", i, ": the order of its axes\n");
    return text;  // the points behind it differ as well
  }
  return text;
}

std::string differences(const ordered_json& before, const ordered_json& now) {
  std::string text;
  if (before.at("halving") != now.at("halving")) text += concat("halving: ", shown(before.at("halving")), " -> ", shown(now.at("halving")), "\n");
  const std::string points = point_differences(before.at("points"), now.at("points"));
  if (points.empty() && before.at("first_config") != now.at("first_config"))
    // What an older version wrote lacks the keys that are new since then.
    text += config_diff(with_derived_sizes(parse_config(before.at("first_config").get<std::string>(), "points.json").config),
                        with_derived_sizes(parse_config(now.at("first_config").get<std::string>(), "points.json").config));
  return text + points;
}

ordered_json read_points(const fs::path& path) {
  const nlohmann::json value = parse_object(read_text(path), path.string());
  require_known_keys(value, {"version", "halving", "first_config", "points"}, path.string());
  if (integer_member(value, "version", path.string()) != kVersion) throw DataError(concat(path.string(), ": written by another version of trireme"));
  string_member(value, "first_config", path.string());
  array_member(value, "points", path.string());
  member(value, "halving", path.string());
  return parse_value<ordered_json>(read_text(path), path.string());  // in the order of the file
}

}  // namespace

fs::path job_directory(const std::string& sweep_directory, size_t index) { return fs::path(sweep_directory) / "jobs" / print("%03zu", index); }

PointHistory history_of(const std::string& sweep_directory, const PointRun& run) {
  PointHistory history;
  std::error_code error;
  history.has_run = fs::exists(fs::path(run.config.run.directory) / "metrics.jsonl", error);
  for (const ordered_json& line : lines_of(events_of(sweep_directory, run.point.index))) {
    const std::string event = line.at("event").get<std::string>();
    if (event == "start") ++history.starts;
    if (event == "start" || event == "retry") history.failure.reset();
    if (event != "end") continue;
    ++history.ends;
    history.seconds += seconds_in(line, "seconds");
    const auto code = static_cast<int>(integer_in(line, "code"));
    if (code == static_cast<int>(ExitCode::kOk) && history.has_run) history.done_until = std::max(history.done_until, integer_in(line, "until"));
    history.failure.reset();
    if (code != static_cast<int>(ExitCode::kOk) && code != static_cast<int>(ExitCode::kRequeue))
      history.failure = Failure{code, text_in(line, "message")};
  }
  return history;
}

void record_start(const std::string& sweep_directory, size_t index, int64_t until, int process) {
  append_line(events_of(sweep_directory, index), {{"event", "start"}, {"until", until}, {"process", process}});
}

void record_end(const std::string& sweep_directory, size_t index, int64_t until, int code, double seconds, const std::string& message) {
  ordered_json line = {{"event", "end"}, {"until", until}, {"code", code}, {"seconds", seconds}};
  if (!message.empty()) line["message"] = message;
  append_line(events_of(sweep_directory, index), line);
}

void record_retry(const std::string& sweep_directory, size_t index) { append_line(events_of(sweep_directory, index), {{"event", "retry"}}); }

bool compare_with_begun(const SweepFile& file, const std::vector<PointRun>& runs, bool must_exist) {
  const fs::path path = fs::path(file.directory) / "points.json";
  std::error_code error;
  if (!fs::exists(path, error)) {
    if (must_exist) throw ConfigError(concat("--point: ", path.string(), " does not exist; start the sweep first: trireme sweep ", file.path));
    return true;
  }
  const auto before = read_points(path);
  const std::string changed = differences(before, points_json(file, runs));
  if (changed.empty() && file.config.halving.first_steps && before.at("points").size() != runs.size())
    throw ConfigError(concat(file.path, ": ", counted(runs.size(), "point"), ", but this sweep began with ", before.at("points").size(),
                             ", which halving has compared; allowed the same points, or another directory"));
  if (changed.empty()) return false;
  throw ConfigError(
      concat(file.path, ": differs from what this sweep began with in ", file.directory, ":\n", changed,
             "allowed: points added behind the existing ones, other budget, where, retries and stop_after_failures; or another directory"));
}

bool begin_or_compare(const SweepFile& file, const std::vector<PointRun>& runs) {
  const bool fresh = compare_with_begun(file, runs, false);
  const fs::path path = fs::path(file.directory) / "points.json";
  const std::string text = points_json(file, runs).dump(1) + "\n";
  std::error_code error;
  if (fresh || read_text(path) != text) write_durably(path, text);
  return fresh;
}

fs::path freeze_config(const std::string& sweep_directory, const PointRun& run) {
  const fs::path path = job_directory(sweep_directory, run.point.index) / "config.yaml";
  std::error_code error;
  if (!fs::exists(path, error)) write_durably(path, to_yaml(run.config));
  return path;
}

SweepClock::SweepClock(const std::string& sweep_directory) : path_(fs::path(sweep_directory) / "sweep.jsonl") {
  std::optional<WallClock::time_point> start, last;
  const auto add = [&] {
    if (start && last) before_ += std::chrono::duration<double>(*last - *start).count();
  };
  for (const ordered_json& line : lines_of(path_)) {
    const auto time = time_of_utc(text_in(line, "time"));
    if (!time) continue;
    if (line.at("event") == "start") {
      add();
      start = time;
    }
    last = time;
  }
  add();
  mark("start");
}

double SweepClock::hours() const { return (before_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count()) / 3600; }

void SweepClock::mark(const std::string& event) { append_line(path_, {{"event", event}}); }

}  // namespace trireme::sweep
