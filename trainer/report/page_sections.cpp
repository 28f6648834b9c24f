// Sections with a part for each run: memory, step time by cause, ranks, samples.
#include <algorithm>
#include <functional>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/plan/text.h"
#include "trainer/report/bars.h"
#include "trainer/report/heat_map.h"
#include "trainer/report/page_parts.h"
#include "trainer/report/run_facts.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

/// The ranks with the highest relative busy times.
std::string slowest_ranks(const RankStepTimes& times) {
  constexpr size_t kMost = 8;
  std::vector<size_t> order;
  for (size_t rank = 0; rank < times.ranks().size(); ++rank)
    if (times.ranks()[rank].count > 0) order.push_back(rank);
  const auto ratio = [&](size_t rank) { return times.ranks()[rank].ratio / static_cast<double>(times.ranks()[rank].count); };
  std::ranges::stable_sort(order, std::ranges::greater(), ratio);
  order.resize(std::min(order.size(), kMost));
  std::string rows;
  for (const size_t rank : order) {
    const RankStepTimes::Rank& one = times.ranks()[rank];
    const auto count = static_cast<double>(one.count);
    rows += concat("<tr><th scope=\"row\">rank ", rank, "</th><td>", value_text(one.seconds / count, Quantity::kDuration), "</td><td>",
                   print("%.3f", ratio(rank)), "</td><td>", percent_text(static_cast<double>(one.slowest) / count), "</td></tr>\n");
  }
  return concat(
      "<div class=\"scroll\"><table class=\"figures\"><thead><tr><th scope=\"col\">slowest</th><th scope=\"col\">mean busy time</th><th "
      "scope=\"col\">/ median</th><th scope=\"col\">slowest of all in</th></tr></thead><tbody>",
      rows, "</tbody></table></div>\n");
}

}  // namespace

std::string memory_section(std::span<const RunView> runs) {
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const Bars& bars : memory_bars(*runs[i].run))
      text += concat("<figure class=\"r", i, "\">", run_heading(runs, i), "<figcaption>", markup(bars.title), "</figcaption>\n", bars_html(bars),
                     "</figure>\n");
  if (text.empty()) return "";
  return concat("<p class=\"note\">Each category has its peak at another time, so the peak of their sum is less than the sum of the peaks.</p>\n",
                "<div class=\"three\">", text, "</div>\n");
}

std::string causes_section(std::span<const RunView> runs) {
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i)
    if (const std::optional<Bars> bars = cause_bars(*runs[i].run)) text += run_heading(runs, i) + bars_html(*bars);
  return text;
}

std::string ranks_section(std::span<const RunView> runs, PlotNumbers& numbers) {
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RankStepTimes& times = runs[i].run->ranks;
    const std::optional<Plot> plot = rank_plot(runs[i]);
    if (times.empty() || !plot) continue;
    text += run_heading(runs, i) + concat("<p class=\"note\">", grouped(static_cast<int64_t>(times.ranks().size())),
                                          times.ranks().size() == 1 ? " rank, " : " ranks, ", counted(times.count(), "measurement"),
                                          "; the imbalance, (max - min) / mean, is ", percent_text(times.imbalance()), " on average.</p>\n",
                                          "<div class=\"charts\"><figure class=\"wide\"><figcaption>Slow ranks over time</figcaption>\n",
                                          heat_map_html(times, numbers), "</figure>\n<figure><figcaption>", markup(plot->title), " <small>",
                                          markup(plot->curves.front().name), "</small></figcaption>\n", plot_html(*plot, numbers, concat("rank-", i)),
                                          "</figure>\n<figure>", slowest_ranks(times), "</figure></div>\n");
  }
  return text;
}

std::string samples_section(std::span<const RunView> runs) {
  constexpr size_t kMost = 6, kLongest = 4000;
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<const EventRecord*> found;
    for (const EventRecord& event : runs[i].run->events)
      if (event.kind == "sample" && event.fields.contains("text") && event.fields["text"].is_string()) found.push_back(&event);
    if (found.empty()) continue;
    text += run_heading(runs, i);
    for (size_t one = found.size() > kMost ? found.size() - kMost : 0; one < found.size(); ++one) {
      const nlohmann::ordered_json& fields = found[one]->fields;
      const std::string prompt = fields.contains("prompt") && fields["prompt"].is_string() ? fields["prompt"].get<std::string>() : "";
      text += concat("<p class=\"note\">step ", grouped(found[one]->after_step), "</p><pre><mark>", markup(prompt), "</mark>",
                     markup(shortened(fields["text"].get<std::string>(), kLongest)), "</pre>\n");
    }
  }
  return text;
}

}  // namespace trireme::report
