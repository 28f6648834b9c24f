#include "trainer/report/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/core/check.h"
#include "trainer/plan/text.h"

namespace trireme::report {
namespace {

constexpr size_t kMostRows = 128, kMostColumns = 120;
constexpr int kLevels = 9;  ///< shades; the middle one is the median
/// Blue to orange, which stay apart with every color vision deficiency; the style sheet has the same as --h0 to --h8.
constexpr std::array<const char*, kLevels> kShades{"#08519c", "#3182bd", "#7fb5d8", "#c6dbec", "#f4f4f4", "#fddcb5", "#fdae6b", "#e6670c", "#8c2d04"};

struct Grid {
  size_t rows = 0, ranks_per_row = 1, ranks = 0;
  std::vector<std::pair<int64_t, int64_t>> columns;  ///< first and last step
  std::vector<double> ratio;                         ///< [rows x columns]; 0: unknown
  double span = 0;                                   ///< the outermost shades are those of 1 - span and 1 + span

  double at(size_t row, size_t column) const { return ratio[row * columns.size() + column]; }
  int level(double value) const {
    return std::clamp(static_cast<int>(std::lround((value - 1) / span * (kLevels / 2))) + kLevels / 2, 0, kLevels - 1);
  }
};

Grid grid_of(const RankStepTimes& times) {
  Grid grid;
  grid.ranks = times.ranks().size();
  grid.ranks_per_row = (grid.ranks + kMostRows - 1) / kMostRows;
  grid.rows = (grid.ranks + grid.ranks_per_row - 1) / grid.ranks_per_row;
  const size_t merged = (times.bins().size() + kMostColumns - 1) / kMostColumns;
  const size_t columns = (times.bins().size() + merged - 1) / merged;
  grid.ratio.assign(grid.rows * columns, 0);
  std::vector<double> all;
  for (size_t column = 0; column < columns; ++column) {
    std::vector<double> sum(grid.ranks, 0);
    std::vector<int64_t> count(grid.ranks, 0);
    const size_t begin = column * merged, end = std::min(times.bins().size(), begin + merged);
    for (size_t bin = begin; bin < end; ++bin)
      for (size_t rank = 0; rank < times.bins()[bin].ratio.size(); ++rank) {
        sum[rank] += times.bins()[bin].ratio[rank];
        count[rank] += times.bins()[bin].count[rank];
      }
    grid.columns.emplace_back(times.bins()[begin].first_step, times.bins()[end - 1].last_step);
    for (size_t rank = 0; rank < grid.ranks; ++rank) {
      if (count[rank] == 0) continue;
      double& cell = grid.ratio[rank / grid.ranks_per_row * columns + column];
      cell = std::max(cell, sum[rank] / static_cast<double>(count[rank]));
    }
  }
  for (const double value : grid.ratio)
    if (value > 0) all.push_back(std::abs(value - 1));
  std::ranges::sort(all);
  constexpr double kQuantile = 0.999;  // single outliers do not make everything else pale
  const double most = all.empty() ? 0 : all[static_cast<size_t>(kQuantile * static_cast<double>(all.size() - 1))];
  for (const double span : {0.04, 0.08, 0.2, 0.4, 0.8, 1.6, 4.0}) {
    grid.span = span;
    if (most <= span) break;
  }
  return grid;
}

/// One path for each shade, of runs of equal cells; a cell is `width` x `height` units.
std::array<std::string, kLevels> paths_of(const Grid& grid, long width, long height) {
  std::array<std::string, kLevels> paths;
  for (size_t row = 0; row < grid.rows; ++row)
    for (size_t begin = 0; begin < grid.columns.size();) {
      size_t end = begin + 1;
      if (grid.at(row, begin) > 0) {
        const int level = grid.level(grid.at(row, begin));
        while (end < grid.columns.size() && grid.at(row, end) > 0 && grid.level(grid.at(row, end)) == level) ++end;
        const long length = static_cast<long>(end - begin) * width;
        paths[static_cast<size_t>(level)] +=
            concat("M", static_cast<long>(begin) * width, " ", static_cast<long>(row) * height, "h", length, "v", height, "h", -length, "z");
      }
      begin = end;
    }
  return paths;
}

Axis rank_axis(const Grid& grid) { return {"rank", Quantity::kCount, 0, static_cast<double>(grid.rows * grid.ranks_per_row)}; }

/// Place of a step among the columns, which have equal widths.
double place_of_step(const Grid& grid, double step) {
  for (size_t column = 0; column < grid.columns.size(); ++column) {
    const auto [first, last] = grid.columns[column];
    if (step > static_cast<double>(last)) continue;
    const double inside = std::max(0.0, step - static_cast<double>(first)) / static_cast<double>(last - first + 1);
    return (static_cast<double>(column) + inside) / static_cast<double>(grid.columns.size());
  }
  return 1;
}

std::vector<Tick> step_ticks(const Grid& grid) {
  return ticks_of({"steps", Quantity::kCount, static_cast<double>(grid.columns.front().first),
                   std::max(static_cast<double>(grid.columns.back().second), static_cast<double>(grid.columns.front().first + 1))},
                  7);
}

/// Relative busy times as letters, 2 % each: A is at most 0.5, _ at least 1.76, a space unknown.
std::string cells_of(const Grid& grid) {
  constexpr const char* kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string cells;
  for (const double value : grid.ratio) cells += value > 0 ? kLetters[std::clamp(std::lround((value - 0.5) / 0.02), 0L, 63L)] : ' ';
  return cells;
}

/// The center of a shade in words: "-20 %", "+5 %".
std::string shade_text(const Grid& grid, int level) {
  const int percent = static_cast<int>(std::lround(100 * grid.span * (level - kLevels / 2) / (kLevels / 2)));
  return percent == 0 ? "0" : print("%s%d %%", percent < 0 ? "−" : "+", std::abs(percent));
}

}  // namespace

std::string heat_map_html(const RankStepTimes& times, PlotNumbers& numbers) {
  const Grid grid = grid_of(times);
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (const auto& [first, last] : grid.columns) steps.push_back({first, last});
  const size_t number = numbers.add_plot({{"heat",
                                           {{"rows", grid.rows},
                                            {"ranks", grid.ranks},
                                            {"ranks_per_row", grid.ranks_per_row},
                                            {"steps", std::move(steps)},
                                            {"cells", cells_of(grid)}}}});
  std::string drawing, y_labels, x_labels, key;
  const std::array<std::string, kLevels> paths = paths_of(grid, 1, 1);
  for (size_t level = 0; level < kLevels; ++level)
    if (!paths[level].empty()) drawing += concat("<path class=\"h", level, "\" d=\"", paths[level], "\"/>\n");
  for (const Tick& tick : ticks_of(rank_axis(grid), 6))
    if (tick.value < static_cast<double>(grid.ranks))
      y_labels += concat("<span style=\"bottom:", print("%.2f", 100 * (1 - rank_axis(grid).place(tick.value))), "%\">", tick.label, "</span>");
  for (const Tick& tick : step_ticks(grid)) {
    const double place = place_of_step(grid, tick.value);
    x_labels += concat("<span class=\"", tick.minor ? "minor" : "major",
                       place > 0.97   ? " end"
                       : place < 0.03 ? " start"
                                      : "",
                       "\" style=\"left:", print("%.2f", 100 * place), "%\">", tick.label, "</span>");
  }
  for (int level = 0; level < kLevels; ++level) key += concat("<li><i class=\"band h", level, "\"></i>", shade_text(grid, level), "</li>");
  return concat(
      "<ul class=\"key tight\"><li>busy time against the median of all ranks:</li>", key, "</ul>\n<div class=\"plot heat\" data-plot=\"", number,
      "\" tabindex=\"0\" role=\"group\" aria-label=\"Busy time of each rank relative to the median of all ranks, by step. The arrow keys read "
      "values.\"><div class=\"y\">",
      y_labels, "</div><div class=\"area\"><svg viewBox=\"0 0 ", grid.columns.size(), " ", grid.rows,
      "\" preserveAspectRatio=\"none\" shape-rendering=\"crispEdges\" aria-hidden=\"true\">\n", drawing, "</svg></div><div class=\"x\">", x_labels,
      "</div><div class=\"label\">steps</div></div>\n");
}

std::string heat_map_svg(const RankStepTimes& times) {
  const Grid grid = grid_of(times);
  constexpr double kWidth = 720, kLeft = 72, kTop = 58, kAreaWidth = 632, kAreaHeight = 300;
  const double height = kTop + kAreaHeight + 46;
  std::string text =
      concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", kWidth, "\" height=\"", height, "\" viewBox=\"0 0 ", kWidth, " ", height,
             "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#111\"><rect width=\"100%\" height=\"100%\" "
             "fill=\"#fff\"/>\n<text x=\"72\" y=\"22\" font-size=\"15\">Busy time of each rank against the median of all ranks</text>\n");
  for (int level = 0; level < kLevels; ++level)
    text +=
        concat("<rect x=\"", kLeft + 68 * level, "\" y=\"36\" width=\"14\" height=\"12\" stroke=\"#999\" stroke-width=\"0.5\" fill=\"",
               kShades[static_cast<size_t>(level)], "\"/><text x=\"", kLeft + 68 * level + 18, "\" y=\"46\">", shade_text(grid, level), "</text>");
  text += concat("<g transform=\"translate(", kLeft, " ", kTop, ") scale(", kAreaWidth / static_cast<double>(grid.columns.size()), " ",
                 kAreaHeight / static_cast<double>(grid.rows), ")\" shape-rendering=\"crispEdges\">\n");
  const std::array<std::string, kLevels> paths = paths_of(grid, 1, 1);
  for (size_t level = 0; level < kLevels; ++level)
    if (!paths[level].empty()) text += concat("<path fill=\"", kShades[level], "\" d=\"", paths[level], "\"/>\n");
  text += "</g>\n";
  for (const Tick& tick : ticks_of(rank_axis(grid), 6))
    if (tick.value < static_cast<double>(grid.ranks))
      text += concat("<text x=\"", kLeft - 6, "\" y=\"", print("%.1f", kTop + kAreaHeight * rank_axis(grid).place(tick.value) + 10),
                     "\" text-anchor=\"end\">", tick.label, "</text>");
  for (const Tick& tick : step_ticks(grid))
    text += concat("<text x=\"", print("%.1f", kLeft + kAreaWidth * place_of_step(grid, tick.value)), "\" y=\"", kTop + kAreaHeight + 18,
                   "\" text-anchor=\"middle\">", tick.label, "</text>");
  return text + concat("<text x=\"", kLeft + kAreaWidth / 2, "\" y=\"", height - 8,
                       "\" text-anchor=\"middle\">steps</text><text text-anchor=\"middle\" ", "transform=\"translate(16 ", kTop + kAreaHeight / 2,
                       ") rotate(-90)\">rank</text></svg>\n");
}

}  // namespace trireme::report
