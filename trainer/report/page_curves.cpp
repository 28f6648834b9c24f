#include <algorithm>
#include <array>
#include <functional>

#include "kernels/core/check.h"
#include "trainer/report/page_parts.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

constexpr std::array kAxes{ProgressAxis::kSteps, ProgressAxis::kTokens, ProgressAxis::kTime};

using MakePlot = std::function<std::optional<Plot>(ProgressAxis)>;

/// A plot for each of the x axes, of which the page shows one.
/// With several runs the bar at the top of the page is the key, and `words` say what else there is.
std::string figure(std::span<const RunView> runs, PlotNumbers& numbers, const MakePlot& make, const std::string& words = "", bool wide = false,
                   const std::string& remark = "") {
  std::string key, plots, title;
  for (const ProgressAxis axis : kAxes) {
    const std::optional<Plot> plot = make(axis);
    if (!plot) return "";
    const std::string name = kProgressNames[static_cast<size_t>(axis)];
    if (title.empty()) {
      std::string small = plot->y.label;
      if (runs.size() == 1)
        key = key_html(*plot);
      else if (!words.empty())
        small += (small.empty() ? "" : "; ") + words;
      title = concat(markup(plot->title), small.empty() ? "" : concat(" <small>", markup(small), "</small>"));
    }
    plots += plot_html(*plot, numbers, name, "x-" + name);
  }
  return concat("<figure", wide ? " class=\"wide\"" : "", "><figcaption>", title, "</figcaption>\n", key, plots,
                remark.empty() ? "" : concat("<p class=\"note\"><small>", remark, "</small></p>"), "</figure>\n");
}

std::string curves(std::span<const RunView> runs, PlotNumbers& numbers) {
  const auto of = [&](Figure one) { return [&, one](ProgressAxis axis) { return figure_plot(runs, one, axis); }; };
  const bool binned = std::ranges::any_of(runs, &RunView::is_binned);
  const bool restarted = std::ranges::any_of(runs, [](const RunView& view) { return jobs_of(*view.run).size() > 1; });
  std::string remark = binned ? "Lines are means of consecutive steps, areas their minimum to maximum. " : "";
  if (restarted) remark += "Dotted vertical lines are restarts.";
  const bool evaluated = std::ranges::any_of(runs, [](const RunView& view) { return !view.run->evaluations.empty(); });
  const auto loss = [&](ProgressAxis axis) { return loss_plot(runs, axis); };
  const auto throughput = [&](ProgressAxis axis) { return throughput_plot(runs, axis); };
  const std::string text = figure(runs, numbers, loss, evaluated ? "validation is dashed" : "", true, remark) +
                           figure(runs, numbers, of(Figure::kGradNorm)) + figure(runs, numbers, of(Figure::kLearningRate)) +
                           figure(runs, numbers, throughput, "bands are forecasts") + figure(runs, numbers, of(Figure::kMfu)) +
                           figure(runs, numbers, of(Figure::kLossScale));
  return text.empty() ? "" : "<div class=\"charts\">" + text + "</div>\n";
}

/// About twenty rows of a run's figures, for reading without the script.
std::string values_table(const RunView& view) {
  constexpr std::array kShown{Figure::kTokens, Figure::kLoss, Figure::kGradNorm, Figure::kLearningRate, Figure::kTokensPerSecond};
  constexpr std::array kHeads{"tokens", "loss", "gradient norm", "learning rate", "tokens per second"};
  constexpr size_t kRows = 20;
  const StepTable& steps = view.run->steps;
  if (steps.size() == 0) return "";
  std::string rows;
  const auto row = [&](size_t i) {
    rows += concat("<tr><th scope=\"row\">", grouped(steps.step[i]), "</th><td>", value_text(steps.elapsed_seconds[i], Quantity::kDuration), "</td>");
    for (const Figure one : kShown)
      rows +=
          concat("<td>", value_text(steps[one][i], one == Figure::kTokens || one == Figure::kTokensPerSecond ? Quantity::kCount : Quantity::kNumber),
                 "</td>");
    rows += "</tr>\n";
  };
  const std::vector<Bin> chosen = bins_of(steps.size(), kRows);
  for (const Bin& bin : chosen) row(bin.end - 1);
  std::string head = "<th scope=\"col\">step</th><th scope=\"col\">training time</th>";
  for (const char* name : kHeads) head += concat("<th scope=\"col\">", name, "</th>");
  return concat("<div class=\"scroll\"><table class=\"figures\"><thead><tr>", head, "</tr></thead><tbody>", rows, "</tbody></table></div>\n");
}

std::string validation_table(const RunView& view) {
  constexpr size_t kRows = 20;
  const std::vector<EvaluationRecord>& all = view.run->evaluations;
  if (all.empty()) return "";
  std::string rows, head = "<th scope=\"col\">step</th><th scope=\"col\">validation loss</th>";
  for (const auto& [name, loss] : all.back().sets) head += concat("<th scope=\"col\">", markup(name), "</th>");
  for (const Bin& bin : bins_of(all.size(), kRows)) {
    const EvaluationRecord& one = all[bin.end - 1];
    rows += concat("<tr><th scope=\"row\">", grouped(one.step), "</th><td>", value_text(one.loss, Quantity::kNumber), "</td>");
    for (const auto& [name, loss] : one.sets) rows += concat("<td>", value_text(loss, Quantity::kNumber), "</td>");
    rows += "</tr>\n";
  }
  return concat("<div class=\"scroll\"><table class=\"figures\"><thead><tr>", head, "</tr></thead><tbody>", rows, "</tbody></table></div>\n");
}

std::string values(std::span<const RunView> runs) {
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string tables = values_table(runs[i]) + validation_table(runs[i]);
    if (!tables.empty()) text += run_heading(runs, i) + tables;
  }
  return text.empty() ? "" : "<details><summary>Figures as tables</summary>\n" + text + "</details>\n";
}

}  // namespace

std::string curves_section(std::span<const RunView> runs, PlotNumbers& numbers) {
  const std::string text = curves(runs, numbers);
  return text.empty() ? "" : text + values(runs);
}

}  // namespace trireme::report
