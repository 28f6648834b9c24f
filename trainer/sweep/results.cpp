#include "trainer/sweep/results.h"

#include <algorithm>
#include <filesystem>

#include "kernels/core/check.h"
#include "trainer/config/bind.h"
#include "trainer/config/write.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/files/table.h"
#include "trainer/report/csv.h"

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace trireme::sweep {
namespace {

/// Points that trained longer come first: with halving the losses of an earlier rung cannot be compared with those of a later one.
bool ranks_before(const ResultRow& a, const ResultRow& b, const SweepConfig& config) {
  if (a.standing.score.has_value() != b.standing.score.has_value()) return a.standing.score.has_value();
  if (!a.standing.score) return false;
  if (config.halving.first_steps && a.standing.scored_at != b.standing.scored_at) return a.standing.scored_at > b.standing.scored_at;
  return is_better(a.standing.score, b.standing.score, config.objective);
}

std::string shortened_text(const std::string& text, size_t most) {
  const std::string line = text.substr(0, text.find('\n'));
  return line.size() <= most ? line : line.substr(0, most) + "...";
}

ordered_json score_json(const ResultRow& row) { return row.standing.score ? ordered_json(row.standing.score->value) : ordered_json(nullptr); }

std::string plain_name(const std::string& text) {
  std::string name;
  for (const char c : text) name += c == '/' || static_cast<unsigned char>(c) < ' ' || c == 0x7F ? '_' : c;
  return name.empty() || name == "." || name == ".." ? "sweep" : name;
}

}  // namespace

const ResultRow* Results::best() const {
  return file->config.range_test.from || rows.empty() || !rows.front().standing.score ? nullptr : &rows.front();
}

size_t Results::count(PointState state) const {
  return static_cast<size_t>(std::ranges::count_if(rows, [&](const ResultRow& row) { return row.standing.state == state; }));
}

size_t Results::failed() const { return count(PointState::kFailed); }

Results results_of(const SweepFile& file, const std::vector<PointRun>& runs, const std::vector<Standing>& standings,
                   const std::vector<PointHistory>& histories) {
  Results results{&file, {}};
  for (size_t i = 0; i < runs.size(); ++i) {
    ResultRow row{&runs[i], standings[i], histories[i], 0};
    if (histories[i].has_run) {
      const report::RunRecord run = report::read_run(runs[i].config.run.directory);
      if (run.steps.size() > 0) row.steps = run.steps.step.back();
      if (file.config.range_test.from) results.range_test = range_test_result(run, file.config.range_test);
      if (row.standing.state == PointState::kFailed) row.standing.score.reset();
    }
    results.rows.push_back(std::move(row));
  }
  std::ranges::stable_sort(results.rows, [&](const ResultRow& a, const ResultRow& b) { return ranks_before(a, b, file.config); });
  return results;
}

std::string results_table(const Results& results, size_t most) {
  constexpr size_t kLongestMessage = 200;
  if (results.range_test && results.failed() == 0) return results.range_test->text + "\n";
  ordered_json rows = ordered_json::array();
  std::string failures;
  size_t shown = 0, hidden = 0;
  for (const ResultRow& row : results.rows) {
    const bool failed = row.standing.state == PointState::kFailed;
    if (!failed && ++shown > most) {
      ++hidden;
      continue;
    }
    ordered_json line = {{"point", row.run->point.index}};
    for (const Setting& one : row.run->point.settings) line[short_key(one.key, row.run->point.settings)] = one.value;
    line[objective_text(results.file->config.objective)] = score_json(row);
    line["steps"] = row.steps;
    line["state"] = name_of(row.standing.state);
    if (failed)
      failures += concat("  point ", row.run->point.index, ": exit code ", row.history.failure->code, ": ",
                         shortened_text(row.history.failure->message, kLongestMessage), "\n");
    rows.push_back(std::move(line));
  }
  return table_of(rows) + (hidden > 0 ? concat("  and ", hidden, " more: results.csv has all\n") : "") + failures;
}

ordered_json results_json(const Results& results) {
  ordered_json points = ordered_json::array();
  for (const ResultRow& row : results.rows) {
    ordered_json settings = ordered_json::object();
    for (const Setting& one : row.run->point.settings) settings[one.key] = one.value;
    points.push_back({{"point", row.run->point.index},
                      {"name", row.run->name},
                      {"directory", row.run->config.run.directory},
                      {"state", name_of(row.standing.state)},
                      {"settings", settings},
                      {"objective", score_json(row)},
                      {"objective_step", row.standing.score ? ordered_json(row.standing.score->step) : ordered_json(nullptr)},
                      {"steps", row.steps},
                      {"seconds", row.history.seconds},
                      {"starts", row.history.starts},
                      {"failure", row.history.failure && row.standing.state == PointState::kFailed
                                      ? ordered_json({{"code", row.history.failure->code}, {"message", row.history.failure->message}})
                                      : ordered_json(nullptr)}});
  }
  const ResultRow* const best = results.best();
  ordered_json json = {{"sweep", results.file->path},
                       {"objective", objective_text(results.file->config.objective)},
                       {"goal", results.file->config.objective.goal.text()},
                       {"points", points},
                       {"best", best == nullptr ? ordered_json(nullptr) : ordered_json(best->run->point.index)},
                       {"failed", results.failed()}};
  if (results.range_test) {
    const auto rate = [](const std::optional<double>& value) { return value ? ordered_json(*value) : ordered_json(nullptr); };
    json["range_test"] = {{"suggested", rate(results.range_test->suggested)}, {"lowest", rate(results.range_test->lowest)}};
  }
  return json;
}

std::string results_csv(const Results& results) {
  std::string text = "point,name,state";
  for (const Setting& one : results.rows.front().run->point.settings) text += "," + report::csv_text(one.key);
  text += concat(",", report::csv_text(objective_text(results.file->config.objective)), ",objective_step,steps,seconds,starts,failure\n");
  for (const ResultRow& row : results.rows) {
    text += concat(row.run->point.index, ",", report::csv_text(row.run->name), ",", name_of(row.standing.state));
    for (const Setting& one : row.run->point.settings) text += "," + (decimal_number(one.value) ? one.value : report::csv_text(one.value));
    const std::optional<Score>& score = row.standing.score;
    text += concat(",", score ? report::csv_number(score->value) : "", ",", score ? std::to_string(score->step) : "", ",", row.steps, ",",
                   report::csv_number(row.history.seconds), ",", row.history.starts, ",",
                   row.history.failure ? report::csv_text(row.history.failure->message) : "", "\n");
  }
  return text;
}

std::string best_yaml(const Results& results) {
  const ResultRow* const best = results.best();
  if (best == nullptr) return "";
  Config config = best->run->config;
  config.run.name = plain_name(fs::path(results.file->directory).filename().string()) + "-best";
  config.run.directory.clear();  // auto
  return concat("# Point ", best->run->point.index, " of a sweep: ", objective_text(results.file->config.objective), " ",
                setting_text(best->standing.score->value, false), " after step ", best->standing.score->step, ".\n# ",
                printable(label_of(best->run->point)), "\n", to_yaml(config));
}

std::string best_difference(const Results& results) {
  const ResultRow* const best = results.best();
  if (best == nullptr) return "";
  std::optional<Config> base = base_config(*results.file);
  if (!base) {
    std::string text;
    for (const Setting& one : best->run->point.settings) text += concat(one.key, ": ", one.value, "\n");
    return text;
  }
  base->run.name = best->run->config.run.name;
  base->run.directory = best->run->config.run.directory;
  return config_diff(*base, best->run->config);
}

void write_results(const Results& results) {
  const fs::path directory = results.file->directory;
  write_durably(directory / "results.json", results_json(results).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
  write_durably(directory / "results.csv", results_csv(results));
  const std::string best = best_yaml(results);
  if (!best.empty()) write_durably(directory / "best.yaml", best);
}

}  // namespace trireme::sweep
