#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/files/clock_text.h"
#include "trainer/report/goodput.h"
#include "trainer/report/page_parts.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

std::string utc(double seconds) {
  if (!std::isfinite(seconds)) return "";
  const auto time = WallClock::time_point(std::chrono::duration_cast<WallClock::duration>(std::chrono::duration<double>(seconds)));
  std::string text = utc_text(time).substr(0, 19);
  text[10] = ' ';
  return text;
}

/// Vertical lines at `times`, each once a pixel.
std::string ticks_path(const std::vector<double>& times, const Axis& axis) {
  std::string path;
  long before = -1;
  for (const double time : times) {
    if (!std::isfinite(time)) continue;
    const long x = std::lround(2000 * axis.place(time));
    if (x != before) path += concat("M", x, " 2v12");
    before = x;
  }
  return path;
}

/// A row of marks below the time line. `words`: what they are, below all rows.
struct Lane {
  std::string name, style, path, words;
};

std::string lanes_html(const std::vector<Lane>& lanes) {
  std::string rows, words;
  for (const Lane& lane : lanes) {
    rows += concat("<div class=\"lane\"><b>", lane.name,
                   "</b><svg viewBox=\"0 0 2000 16\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path class=\"", lane.style, "\" d=\"",
                   lane.path, "\"/></svg></div>\n");
    words += concat("<li><i class=\"line ", lane.style.substr(lane.style.find(' ') + 1), "\"></i>", markup(lane.words), "</li>");
  }
  return concat("<div class=\"lanes\">", rows, "<ul class=\"key\">", words, "</ul></div>\n");
}

/// Events that are not a regular part of a run. Kinds that this program does not know count too: another version or sink may write them.
bool is_unusual(const EventRecord& event) {
  static constexpr std::array kRegular{"start",           "checkpoint", "memory",         "forecast",   "exposed",
                                       "change",          "sample",     "plain_products", "early_stop", "goodput",
                                       "rebalance_again", "arrivals",   "staleness",      "suspects",   "checkpoint_interval"};
  return std::ranges::find(kRegular, event.kind) == kRegular.end();
}

std::string lanes(const RunView& view, const Axis& axis) {
  const RunRecord& run = *view.run;
  std::vector<Lane> lanes;
  const std::vector<Job> jobs = jobs_of(run);
  std::string path;
  double running = 0;
  for (const Job& job : jobs) {
    if (!std::isfinite(job.begin)) continue;
    const long begin = std::lround(2000 * axis.place(job.begin)), end = std::lround(2000 * axis.place(job.end));
    path += concat("M", begin, " 8h", std::max(2L, end - begin - 2));
    running += job.end - job.begin;
  }
  std::string words = counted(jobs.size(), "job");
  if (jobs.size() > 1) words += concat(", ", value_text(axis.high - axis.low - running, Quantity::kDuration), " between them");
  lanes.push_back({"jobs", "bar c0", path, words});

  std::vector<double> saves, evaluations, others;
  double stalled = 0;
  std::map<std::string, size_t> unusual;
  for (const EventRecord& event : run.events) {
    if (event.kind == "checkpoint") {
      saves.push_back(event.time);
      if (const double stall = number_in(event.fields, "stall_seconds"); std::isfinite(stall)) stalled += stall;
    }
    if (!is_unusual(event)) continue;
    others.push_back(event.time);
    ++unusual[event.kind];
  }
  for (const EvaluationRecord& one : run.evaluations) evaluations.push_back(one.time);
  if (!saves.empty())
    lanes.push_back({"saves", "tick c2", ticks_path(saves, axis),
                     concat(counted(saves.size(), "checkpoint"), ", training waited ", value_text(stalled, Quantity::kDuration))});
  if (!evaluations.empty()) lanes.push_back({"evals", "tick c1", ticks_path(evaluations, axis), counted(evaluations.size(), "evaluation")});
  if (!others.empty()) {
    std::string kinds;
    for (const auto& [kind, count] : unusual) kinds += concat(kinds.empty() ? "" : ", ", count, " ", kind);
    lanes.push_back({"events", "tick c3", ticks_path(others, axis), kinds});
  }
  return lanes_html(lanes);
}

/// All events but the regular ones of saves, the last of them.
std::string event_list(const RunRecord& run) {
  constexpr size_t kMost = 100, kLongest = 300;
  std::vector<const EventRecord*> shown;
  for (const EventRecord& event : run.events)
    if (event.kind != "checkpoint" && event.kind != "memory" && event.kind != "sample") shown.push_back(&event);
  if (shown.empty()) return "";
  std::string rows;
  for (size_t i = shown.size() > kMost ? shown.size() - kMost : 0; i < shown.size(); ++i)
    rows += concat("<tr><td>", utc(shown[i]->time), "</td><td>", grouped(shown[i]->after_step), "</td><th scope=\"row\">", markup(shown[i]->kind),
                   "</th><td><small>", markup(shortened(json_text(shown[i]->fields), kLongest)), "</small></td></tr>\n");
  const std::string which = shown.size() > kMost ? concat("the last ", kMost, " of ", shown.size()) : counted(shown.size(), "event");
  return concat("<details><summary>Events: ", which,
                "</summary><div class=\"scroll\"><table><thead><tr><th scope=\"col\">time, UTC</th><th scope=\"col\">step</th><th "
                "scope=\"col\">event</th><th scope=\"col\">fields</th></tr></thead><tbody>",
                rows, "</tbody></table></div></details>\n");
}

}  // namespace

std::string time_line_section(std::span<const RunView> runs, PlotNumbers& numbers) {
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::optional<Plot> plot = time_line_plot(runs[i]);
    const std::string events = event_list(*runs[i].run);
    if (!plot && events.empty()) continue;
    text += run_heading(runs, i);
    if (plot)
      text += concat("<figure><figcaption>", markup(plot->title), "</figcaption>\n", plot_html(*plot, numbers, concat("clock-", i)),
                     lanes(runs[i], plot->x), "</figure>\n");
    if (const std::optional<Goodput> goodput = goodput_of(*runs[i].run)) {
      const Bars bars = goodput_bars(*goodput);
      text += concat("<figure><figcaption>", markup(bars.title), " <small>", markup(goodput_text(*goodput)), "</small></figcaption>\n",
                     bars_html(bars), "</figure>\n");
    }
    text += events;
  }
  return text;
}

}  // namespace trireme::report
