#include "trainer/sweep/page.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/config/bind.h"
#include "trainer/files/durable_file.h"
#include "trainer/plan/text.h"
#include "trainer/report/axis.h"
#include "trainer/report/page_style.h"
#include "trainer/report/text_escape.h"

namespace trireme::sweep {
namespace {

using report::markup;
using report::Quantity;
using report::value_text;

/// Curves of points that are not among the best stay in the background.
constexpr const char* kFaint = ".faint .c6{opacity:.4}\n";

std::string section(const std::string& id, const std::string& title, const std::string& body) {
  return body.empty() ? "" : concat("<section id=\"", id, "\"><h2>", markup(title), "</h2>\n", body, "</section>\n");
}

std::string tile(const std::string& name, const std::string& value, const std::string& remark = "") {
  return concat("<div class=\"tile\"><dt>", markup(name), "</dt><dd>", markup(value),
                remark.empty() ? "" : concat("<small>", markup(remark), "</small>"), "</dd></div>\n");
}

std::string tiles(const Results& results) {
  const SweepConfig& config = results.file->config;
  double seconds = 0;
  int64_t steps = 0, unknown = 0;
  for (const ResultRow& row : results.rows) {
    seconds += row.history.seconds;
    steps += row.steps;
    unknown += row.history.starts - row.history.ends;
  }
  std::string text = "<dl class=\"tiles\">\n";
  if (const ResultRow* const best = results.best(); best != nullptr)
    text += tile("best " + objective_text(config.objective), value_text(best->standing.score->value, Quantity::kNumber),
                 concat("point ", best->run->point.index, ", step ", report::grouped(best->standing.score->step)));
  if (results.range_test && results.range_test->suggested)
    text += tile("suggested learning rate", print("%.2g", *results.range_test->suggested),
                 concat("lowest loss at ", print("%.2g", *results.range_test->lowest)));
  const size_t done = results.count(PointState::kDone);
  text += tile("points", std::to_string(results.rows.size()),
               concat(done, " done", results.failed() > 0 ? concat(", ", results.failed(), " failed") : ""));
  for (const PointState state : {PointState::kDropped, PointState::kLeftOut})
    if (const size_t count = results.count(state); count > 0)
      text += tile(state == PointState::kDropped ? "dropped by halving" : "left out by the budget", std::to_string(count));
  if (const size_t open = results.rows.size() - done - results.failed() - results.count(PointState::kDropped) - results.count(PointState::kLeftOut);
      open > 0)
    text += tile("to be done", std::to_string(open));
  return text + tile("training steps", report::grouped(steps)) +
         tile("time of all points", seconds > 0 ? time_text(seconds) : "–",
              unknown > 0 ? concat("without ", counted(unknown, "job"), " that died with the sweep") : "") +
         "</dl>\n";
}

std::string figure(const report::Plot& plot, report::PlotNumbers& numbers, const std::string& link, bool wide, const std::string& key,
                   const std::string& note = "") {
  return concat("<figure class=\"", wide ? "wide " : "", "faint\"><figcaption>", markup(plot.title), " <small>", markup(plot.y.label),
                "</small></figcaption>\n", key, report::plot_html(plot, numbers, link),
                note.empty() ? "" : concat("<p class=\"note\"><small>", markup(note), "</small></p>"), "</figure>\n");
}

/// The colors of many curves cannot name each of them.
std::string losses_key(const Results& results) {
  std::string items;
  const auto item = [&](const char* color, const std::string& text) {
    items += concat("<li><i class=\"line ", color, "\"></i>", markup(text), "</li>");
  };
  if (results.best() != nullptr) item("c1", concat("best: ", label_of(results.best()->run->point)));
  if (results.rows.size() > 4) item("c0", "others of the best quarter");
  item("c6", results.rows.size() > 4 ? "the rest" : "others");
  return concat("<ul class=\"key\">", items, "</ul>\n");
}

/// For an axis whose values are texts: the best and the mean objective of each.
std::string axis_table(const Results& results, size_t axis) {
  struct Group {
    std::vector<double> scores;
    size_t points = 0;
  };
  std::vector<std::pair<std::string, Group>> groups;
  for (const ResultRow& row : results.rows) {  // best first, so that the first score of a group is its best
    const std::string& value = row.run->point.settings[axis].value;
    auto found = std::ranges::find(groups, value, &std::pair<std::string, Group>::first);
    if (found == groups.end()) found = groups.insert(groups.end(), {value, {}});
    ++found->second.points;
    if (row.standing.score) found->second.scores.push_back(row.standing.score->value);
  }
  if (groups.size() < 2) return "";
  std::string rows;
  for (const auto& [value, group] : groups) {
    double sum = 0;
    for (const double score : group.scores) sum += score;
    const bool any = !group.scores.empty();
    rows += concat("<tr><th scope=\"row\">", markup(value), "</th><td>", group.points, "</td><td>",
                   any ? value_text(group.scores.front(), Quantity::kNumber) : "–", "</td><td>",
                   any ? value_text(sum / static_cast<double>(group.scores.size()), Quantity::kNumber) : "–", "</td></tr>\n");
  }
  const std::string& key = results.file->axes[axis].key;
  return concat(
      "<figure><figcaption>", markup(short_key(key, results.rows.front().run->point.settings)), " <small>", markup(key),
      "</small></figcaption>\n<div class=\"scroll\"><table class=\"figures\"><thead><tr><th scope=\"col\">value</th><th scope=\"col\">points</th><th "
      "scope=\"col\">best</th><th scope=\"col\">mean</th></tr></thead><tbody>",
      rows, "</tbody></table></div></figure>\n");
}

std::string axes_section(const Results& results, report::PlotNumbers& numbers) {
  std::string text;
  for (size_t axis = 0; axis < results.file->axes.size(); ++axis) {
    if (const std::optional<report::Plot> plot = axis_plot(results, axis))
      text += figure(*plot, numbers, concat("axis-", axis), false, report::key_html(*plot));
    else if (results.best() != nullptr)
      text += axis_table(results, axis);
  }
  return text.empty() ? "" : concat("<div class=\"charts\">", text, "</div>\n");
}

std::string points_table(const Results& results) {
  std::string head = "<th scope=\"col\">point</th>", rows;
  const std::vector<Setting>& axes = results.rows.front().run->point.settings;
  for (const Setting& one : axes) head += concat("<th scope=\"col\">", markup(short_key(one.key, axes)), "</th>");
  head += concat("<th scope=\"col\">", markup(objective_text(results.file->config.objective)), "</th>");
  for (const char* name : {"at step", "steps", "state", "time", "starts"}) head += concat("<th scope=\"col\">", name, "</th>");
  for (const ResultRow& row : results.rows) {
    const std::optional<Score>& score = row.standing.score;
    rows += concat("<tr><th scope=\"row\">", row.run->point.index, "</th>");
    for (const Setting& one : row.run->point.settings) rows += concat("<td>", markup(one.value), "</td>");
    rows += concat("<td>", score ? value_text(score->value, Quantity::kNumber) : "–", "</td><td>", score ? report::grouped(score->step) : "–",
                   "</td><td>", report::grouped(row.steps), "</td><td>", name_of(row.standing.state), "</td><td>",
                   row.history.seconds > 0 ? time_text(row.history.seconds) : "–", "</td><td>", row.history.starts, "</td></tr>\n");
  }
  return concat("<div class=\"scroll\"><table class=\"figures\"><thead><tr>", head, "</tr></thead><tbody>", rows, "</tbody></table></div>\n");
}

std::string failures_section(const Results& results) {
  std::string text;
  for (const ResultRow& row : results.rows)
    if (row.standing.state == PointState::kFailed)
      text += concat("<p><b>point ", row.run->point.index, "</b> ", markup(label_of(row.run->point)), "; exit code ", row.history.failure->code,
                     "</p><pre>", markup(row.history.failure->message), "</pre>\n");
  return text;
}

std::string best_section(const Results& results) {
  const std::string difference = best_difference(results);
  if (difference.empty()) return "";
  return concat("<p class=\"note\">What differs from ", markup(results.file->base),
                "; <code>best.yaml</code> in the directory of the sweep is the whole ", "configuration.</p><pre>", markup(difference), "</pre>\n");
}

}  // namespace

std::string page_html(const Results& results, std::span<const report::RunRecord> records, const std::string& version) {
  report::PlotNumbers numbers;
  const bool test = results.file->config.range_test.from.has_value();
  const std::string title = concat(test ? "Range test " : "Sweep ", std::filesystem::path(results.file->path).filename().string());
  std::string charts, words;
  if (test) {
    if (results.range_test) words = results.range_test->text;
    if (const auto plot = range_test_plot(results)) charts += figure(*plot, numbers, "rates", true, report::key_html(*plot));
  }
  if (const auto plot = test ? std::nullopt : losses_plot(results, records))
    charts += figure(*plot, numbers, "steps", true, losses_key(results),
                     "Values far above the others, as of points that diverge, are cut off. The cursor reads the eight best points.");
  std::string body = tiles(results);
  body += section("losses", test ? "Range test" : "Losses",
                  charts.empty() ? "<p>No step has been recorded yet.</p>\n"
                                 : concat(words.empty() ? "" : concat("<p>", markup(words), "</p>\n"), "<div class=\"charts\">", charts, "</div>\n"));
  if (!test) body += section("axes", "Objective over each axis", axes_section(results, numbers));
  if (!test) body += section("best", "Best point", best_section(results));
  body += section("failures", "Failures", failures_section(results));
  if (!test) body += section("points", "Points, best first", points_table(results));
  return concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>", markup(title),
      "</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '",
      report::kPageScriptSource, "'\">\n<link rel=\"icon\" href=\"data:,\">\n<style>", report::kPageStyle, kFaint,
      "</style>\n</head>\n<body>\n<header><h1>", markup(title), "</h1>\n<p class=\"sub\">", counted(results.rows.size(), "point"), " in ",
      markup(results.file->directory), ", from ", markup(results.file->base), "</p></header>\n<main>\n", body,
      "</main>\n<footer>Made by trireme sweep, version ", markup(version), ".</footer>\n<script type=\"application/json\" id=\"numbers\">",
      numbers.json(), "</script>\n<script>", report::kPageScript, "</script>\n</body>\n</html>\n");
}

void write_page(const Results& results, const std::string& version) {
  std::vector<report::RunRecord> records;
  for (const ResultRow& row : results.rows)
    records.push_back(row.history.has_run ? report::read_run(row.run->config.run.directory) : report::RunRecord{});
  write_durably(std::filesystem::path(results.file->directory) / "sweep.html", page_html(results, records, version));
}

}  // namespace trireme::sweep
