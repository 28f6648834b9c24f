// Drawing of scaling curves: speedup over ranks, both on logarithmic axes, so that ideal scaling is a straight line.
#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "trainer/bench/scale.h"
#include "trainer/plan/text.h"

namespace trireme::bench {
namespace {

constexpr double kWidth = 360, kHeight = 280, kMargin = 60, kGap = 90, kHeader = 50;  // pixels

/// One panel.
struct Panel {
  double left = 0;
  double first = 1, last = 2;  ///< ranks
  double highest = 2;          ///< speedup

  double x(double ranks) const { return left + kWidth * std::log(ranks / first) / std::log(last / first); }
  double y(double speedup) const { return kHeader + kHeight * (1 - std::log(speedup / lowest()) / std::log(highest / lowest())); }
  double lowest() const { return 0.5; }
  bool shows(double speedup) const { return speedup >= lowest() && speedup <= highest; }
};

std::string pixel(double value) { return print("%.1f", value); }

std::string line(const Panel& panel, const std::vector<std::pair<double, double>>& points, const char* kind) {
  std::string path;
  for (const auto& [ranks, speedup] : points)
    if (panel.shows(speedup)) path += concat(path.empty() ? "" : " ", pixel(panel.x(ranks)), ",", pixel(panel.y(speedup)));
  return concat("<polyline class=\"", kind, "\" points=\"", path, "\"/>\n");
}

std::string dot(const Panel& panel, const ScalePoint& point, double speedup) {
  if (!panel.shows(speedup)) return "";
  return concat("<circle class=\"", point.shares_cores ? "hollow" : "full", "\" cx=\"", pixel(panel.x(static_cast<double>(point.ranks))), "\" cy=\"",
                pixel(panel.y(speedup)), "\" r=\"4\"><title>", point.ranks, " ranks: ", seconds_text(point.seconds), ", speedup ",
                print("%.3g", speedup), point.forecast ? ", forecast " + seconds_text(*point.forecast) : "",
                point.shares_cores ? ", shares cores" : "", "</title></circle>\n");
}

std::string axes(const Panel& panel, const ScaleCurve& curve, const std::string& name) {
  std::string text = concat("<rect class=\"frame\" x=\"", pixel(panel.left), "\" y=\"", pixel(kHeader), "\" width=\"", pixel(kWidth), "\" height=\"",
                            pixel(kHeight), "\"/><text x=\"", pixel(panel.left), "\" y=\"", pixel(kHeader - 8), "\">", name, "</text>\n");
  for (const ScalePoint& point : curve.points)
    text += concat("<text class=\"m\" x=\"", pixel(panel.x(static_cast<double>(point.ranks))), "\" y=\"", pixel(kHeader + kHeight + 16), "\">",
                   point.ranks, "</text>\n");
  for (double speedup = panel.lowest(); speedup <= panel.highest; speedup *= 2)
    text +=
        concat("<text class=\"e\" x=\"", pixel(panel.left - 6), "\" y=\"", pixel(panel.y(speedup) + 4), "\">", print("%.3g", speedup), "</text>\n");
  return text + concat("<text class=\"m\" x=\"", pixel(panel.left + kWidth / 2), "\" y=\"", pixel(kHeader + kHeight + 34), "\">ranks</text>\n");
}

/// `fitted(n)`: speedup by the fit on n times the ranks of the first point.
std::string panel_of(const ScaleCurve& curve, double left, const std::string& name, double (*fitted)(double share, double n)) {
  std::vector<const ScalePoint*> measured;
  for (const ScalePoint& point : curve.points)
    if (point.left_out.empty()) measured.push_back(&point);
  if (measured.empty()) return "";
  Panel panel{.left = left, .first = static_cast<double>(curve.points.front().ranks), .last = static_cast<double>(curve.points.back().ranks)};
  if (panel.last <= panel.first) panel.last = 2 * panel.first;
  const auto first = static_cast<double>(measured.front()->ranks);
  panel.highest = 2;
  while (panel.highest < panel.last / first) panel.highest *= 2;
  std::vector<std::pair<double, double>> ideal, forecast, fit;
  for (const ScalePoint& point : curve.points) {
    const auto ranks = static_cast<double>(point.ranks);
    ideal.emplace_back(ranks, ranks / first);
    if (point.forecast && measured.front()->forecast && point.left_out.empty())
      forecast.emplace_back(ranks, point.tokens / *point.forecast / (measured.front()->tokens / *measured.front()->forecast));
    if (curve.serial_share) fit.emplace_back(ranks, fitted(*curve.serial_share, ranks / first));
  }
  std::string text = axes(panel, curve, name) + line(panel, ideal, "ideal") + line(panel, forecast, "forecast") + line(panel, fit, "fit");
  for (const ScalePoint* point : measured) text += dot(panel, *point, speedup_of(curve, *point));
  return text;
}

}  // namespace

std::string scale_svg(const ScaleResult& result, const std::string& title) {
  const double width = 2 * (kMargin + kWidth) + kGap, height = kHeader + kHeight + 70, legend = kHeader + kHeight + 56;
  std::string text = concat(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 )", pixel(width), " ", pixel(height),
      R"(" font-family="sans-serif" font-size="12"><style>polyline{fill:none;stroke-width:1.5}.ideal{stroke:#bbb}.forecast{stroke:#d07020;stroke-dasharray:5 3})",
      R"(.fit{stroke:#3a6fb0}.full{fill:#3a6fb0}.hollow{fill:#fff;stroke:#3a6fb0}.frame{fill:none;stroke:#888}.m{text-anchor:middle}.e{text-anchor:end}</style>)",
      R"(<rect width="100%" height="100%" fill="#fff"/><text x="10" y="20" font-size="15">)", xml_text(title), "</text>\n");
  text += panel_of(result.strong, kMargin, "strong scaling, speedup", [](double share, double n) { return 1 / (share + (1 - share) / n); });
  text += panel_of(result.weak, kMargin + kWidth + kGap, "weak scaling, speedup", [](double share, double n) { return n - share * (n - 1); });
  return text + concat("<text x=\"", pixel(kMargin), "\" y=\"", pixel(legend),
                       "\">dots: measured, hollow where ranks share cores; blue line: fit; dashed: forecast; ", "grey: ideal</text>\n</svg>\n");
}

}  // namespace trireme::bench
