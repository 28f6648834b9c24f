#include "trainer/report/run_record.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/config/yaml.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/json_lines.h"
#include "trainer/files/strict_json.h"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

double number_of(const ordered_json& value) { return value.is_number() ? value.get<double>() : kMissing; }

/// A step number that a double represents exactly; 0 if there is none.
int64_t step_of(const ordered_json& line) {
  constexpr int64_t kMost = int64_t{1} << 53;
  const auto found = line.find("step");
  if (found == line.end() || !found->is_number_integer() || (found->is_number_unsigned() && found->get<uint64_t>() > kMost)) return 0;
  return std::clamp<int64_t>(found->get<int64_t>(), 0, kMost);
}

double time_of(const ordered_json& line) {
  const auto found = line.find("time");
  if (found == line.end() || !found->is_string()) return kMissing;
  const auto time = time_of_utc(found->get_ref<const std::string&>());
  return time ? std::chrono::duration<double>(time->time_since_epoch()).count() : kMissing;
}

/// Removes the evaluations of `step` and later ones; they are in the order of their steps.
void forget_evaluations(RunRecord& run, int64_t step) {
  while (!run.evaluations.empty() && run.evaluations.back().step >= step) run.evaluations.pop_back();
}

/// Removes what was recorded of `step` and later ones.
void roll_back(RunRecord& run, int64_t step) {
  StepTable& steps = run.steps;
  const auto kept = static_cast<size_t>(std::ranges::lower_bound(steps.step, step) - steps.step.begin());
  steps.step.resize(kept);
  steps.time.resize(kept);
  for (std::vector<double>& column : steps.figures) column.resize(kept);
  steps.suspects.resize(kept);
  forget_evaluations(run, step);
}

std::vector<std::pair<int, double>> suspects_in(const ordered_json& line) {
  constexpr size_t kMostDigits = 9;
  std::vector<std::pair<int, double>> suspects;
  const auto found = line.find("suspects");
  if (found == line.end() || !found->is_object()) return suspects;
  for (const auto& [rank, distance] : found->items())
    if (!rank.empty() && rank.size() <= kMostDigits && rank.find_first_not_of("0123456789") == rank.npos)
      suspects.emplace_back(std::stoi(rank), number_of(distance));
  return suspects;
}

bool add_step(RunRecord& run, const ordered_json& line) {
  const int64_t step = step_of(line);
  if (step < 1) return false;
  StepTable& steps = run.steps;
  if (!steps.step.empty() && step <= steps.step.back()) roll_back(run, step);
  steps.step.push_back(step);
  steps.time.push_back(time_of(line));
  for (size_t i = 0; i < kFigureNames.size(); ++i) steps.figures[i].push_back(number_in(line, kFigureNames[i]));
  steps.suspects.push_back(suspects_in(line));
  return true;
}

/// The mean of the numbers of a list; NaN if there are none.
double mean_in(const ordered_json& line, const char* key) {
  const auto list = line.find(key);
  double sum = 0, count = 0;
  if (list != line.end() && list->is_array())
    for (const ordered_json& one : *list)
      if (one.is_number()) sum += one.get<double>(), ++count;
  return count > 0 ? sum / count : kMissing;
}

/// Adds what the ranks waited and read in the steps of an event "ranks".
void add_shares(RunRecord& run, const ordered_json& line) {
  const double steps = number_in(line, "steps"), seconds = mean_in(line, "step_seconds"), busy = mean_in(line, "busy_seconds");
  if (!(steps >= 1 && seconds > 0 && busy >= 0)) return;
  const double input = mean_in(line, "data_seconds");
  run.shares.measured += steps * seconds;
  run.shares.communication += steps * std::max(0.0, seconds - busy);
  if (input > 0) run.shares.data += steps * std::min(input, busy);
}

/// The same of the traced steps, on GPUs.
void add_traced_shares(RunRecord& run) {
  if (run.shares.measured > 0) return;
  for (const EventRecord& event : run.events) {
    const double seconds = event.kind == "exposed" ? number_in(event.fields, "step_seconds") : 0;
    if (!(seconds > 0)) continue;
    run.shares.measured += seconds;
    for (const char* cause : {"tensor", "pipeline_bubble", "pipeline_transfer", "zero_gather", "zero_reduce"})
      if (const double part = number_in(event.fields, cause); part > 0) run.shares.communication += part;
    if (const double part = number_in(event.fields, "data_wait"); part > 0) run.shares.data += part;
  }
}

bool add_ranks(RunRecord& run, const ordered_json& line) {
  const auto ranks = line.find("busy_seconds");
  if (ranks == line.end() || !ranks->is_array()) return true;  // GPUs have none
  add_shares(run, line);
  std::vector<double> seconds;
  for (const ordered_json& one : *ranks) seconds.push_back(number_of(one));
  const int64_t step = step_of(line);
  const double steps = number_in(line, "steps");
  run.ranks.add(step, seconds, steps >= 1 && steps <= static_cast<double>(step) ? static_cast<int64_t>(steps) : 1);
  return true;
}

bool add_evaluation(RunRecord& run, const ordered_json& line) {
  const int64_t step = step_of(line);
  if (step < 1) return false;
  EvaluationRecord record{step, number_in(line, "validation_loss"), {}, time_of(line)};
  if (const auto sets = line.find("validation"); sets != line.end() && sets->is_object())
    for (const auto& [name, loss] : sets->items()) record.sets.emplace_back(name, number_of(loss));
  forget_evaluations(run, step);  // a job that resumes may evaluate its first step again
  run.evaluations.push_back(std::move(record));
  return true;
}

bool add_line(RunRecord& run, ordered_json& line) {
  if (!line.is_object()) return false;
  const auto event = line.find("event");
  if (event == line.end()) {
    if (line.contains("loss")) return add_step(run, line);
    return line.contains("validation_loss") && add_evaluation(run, line);
  }
  if (!event->is_string()) return false;
  if (*event == "ranks") return add_ranks(run, line);
  EventRecord record{event->get<std::string>(), step_of(line), time_of(line), {}};
  if (!line.contains("step")) record.after_step = run.steps.step.empty() ? 0 : run.steps.step.back();
  for (const char* key : {"event", "step", "time"}) line.erase(key);
  record.fields = std::move(line);
  run.events.push_back(std::move(record));
  return true;
}

void read_metrics(RunRecord& run, const fs::path& path) {
  for (JsonLines lines(path.string()); lines.next();)
    if (!lines.is_whole() || !add_line(run, lines.value())) ++run.skipped_lines;
  add_traced_shares(run);
  double sum = 0;
  for (const double seconds : run.steps[Figure::kStepSeconds]) run.steps.elapsed_seconds.push_back(sum += std::isfinite(seconds) ? seconds : 0);
}

void flatten(const YamlNode& node, const std::string& path, ConfigTexts& out) {
  if (node.kind == YamlNode::Kind::kMapping) {
    for (const YamlNode& child : node.children) flatten(child, path.empty() ? child.key : path + "." + child.key, out);
    return;
  }
  std::string text = node.kind == YamlNode::Kind::kNull ? "null" : node.text;
  if (node.kind == YamlNode::Kind::kSequence) {
    for (const YamlNode& child : node.children) text += (text.empty() ? "" : ", ") + child.text;
    text = "[" + text + "]";
  }
  out.emplace_back(path, text);
}

void read_config(RunRecord& run, const fs::path& path) {
  run.config_yaml = read_text(path, static_cast<int64_t>(kMaxYamlBytes));
  run.config = config_texts(run.config_yaml);
}

/// Calls `read` if the file exists; what is wrong with it becomes a problem of the run.
template <class Read>
void read_part(RunRecord& run, const char* name, const Read& read) {
  const fs::path path = run.directory / name;
  std::error_code error;
  if (!fs::exists(path, error)) {
    run.problems.push_back(concat(name, " is missing"));
    return;
  }
  try {
    read(path);
  } catch (const DataError& problem) {
    run.problems.emplace_back(problem.what());
  } catch (const ConfigError& problem) {
    run.problems.push_back(concat(name, " is damaged: ", problem.what()));
  }
}

}  // namespace

ConfigTexts config_texts(const std::string& yaml) {
  Sources sources;
  Violations violations;
  const YamlNode root = parse_yaml(yaml, 0, sources, violations);
  violations.raise(sources);
  ConfigTexts texts;
  flatten(root, "", texts);
  return texts;
}

bool StepTable::has(Figure figure) const {
  return std::ranges::any_of((*this)[figure], [](double value) { return std::isfinite(value); });
}

std::string RunRecord::value(const std::string& key) const {
  const auto found = std::ranges::find(config, key, &std::pair<std::string, std::string>::first);
  return found == config.end() ? "" : found->second;
}

std::string RunRecord::name() const {
  const std::string given = value("run.name");
  return given.empty() ? directory.filename().string() : given;
}

const EventRecord* RunRecord::first(const std::string& kind) const {
  const auto found = std::ranges::find(events, kind, &EventRecord::kind);
  return found == events.end() ? nullptr : &*found;
}

const EventRecord* RunRecord::last(const std::string& kind) const {
  const auto found = std::find_if(events.rbegin(), events.rend(), [&](const EventRecord& event) { return event.kind == kind; });
  return found == events.rend() ? nullptr : &*found;
}

RunRecord read_run(const fs::path& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) throw MissingFileError(concat(directory.string(), ": does not exist; expected a run directory"));
  if (status.type() == fs::file_type::none) throw IoError(concat(directory.string(), ": ", error.message()));
  const bool has_metrics = fs::exists(directory / "metrics.jsonl", error), has_config = fs::exists(directory / "config.yaml", error);
  if (!fs::is_directory(status) || (!has_metrics && !has_config))
    throw DataError(concat(directory.string(), ": not a run: has neither metrics.jsonl nor config.yaml; expected the run.directory of a run"));
  RunRecord run;
  run.directory = directory.has_filename() ? directory : directory.parent_path();
  read_part(run, "config.yaml", [&](const fs::path& path) { read_config(run, path); });
  read_part(run, "environment.json", [&](const fs::path& path) { run.environment = parse_object(read_text(path), path.string()); });
  read_part(run, "metrics.jsonl", [&](const fs::path& path) { read_metrics(run, path); });
  try {
    run.slurm = slurm_tries(run.directory);
  } catch (const DataError& problem) {
    run.problems.emplace_back(problem.what());
  }
  if (fs::exists(directory / kJobsName, error)) read_part(run, kJobsName, [&](const fs::path&) { run.jobs = read_job_records(directory); });
  if (run.skipped_lines > 0) run.problems.push_back(concat("metrics.jsonl: ", counted(run.skipped_lines, "line"), " cut or damaged, skipped"));
  return run;
}

double number_in(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? kMissing : number_of(*found);
}

std::vector<std::string> labels_of(std::span<const RunRecord> runs) {
  std::set<std::string> names;
  std::vector<std::string> labels;
  for (const RunRecord& run : runs) {
    labels.push_back(run.name());
    names.insert(labels.back());
  }
  if (names.size() == runs.size()) return labels;
  labels.clear();
  for (const RunRecord& run : runs) labels.push_back(run.directory.string());
  return labels;
}

}  // namespace trireme::report
