#include <array>
#include <cmath>

#include "kernels/core/check.h"
#include "trainer/plan/text.h"
#include "trainer/report/plot.h"
#include "trainer/report/plot_drawing.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

/// Okabe and Ito without yellow, which is too light for lines on white. The style sheet has the same colors as --c0 to --c6.
constexpr std::array<const char*, kColors> kPalette{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d"};

constexpr int kWidth = 720, kAreaHeight = 296;                     ///< pixels
constexpr int kLeft = 72, kRight = 16, kTitle = 32, kBottom = 46;  ///< margins around the drawing area and its key
constexpr int kKeyRow = 18;
constexpr double kCharacter = 6.6;  ///< approximate width at 12 pixels

std::string svg_text(double x, double y, const char* anchor, const std::string& text, const std::string& more = "") {
  return concat("<text x=\"", print("%.1f", x), "\" y=\"", print("%.1f", y), "\" text-anchor=\"", anchor, "\"", more, ">", markup(text), "</text>\n");
}

std::string svg_style(const std::string& style, size_t color) {
  const std::string stroke = concat(" fill=\"none\" stroke=\"", kPalette[color % kColors], "\"");
  if (style == "range" || style == "band") return concat(" fill=\"", kPalette[color % kColors], "\" fill-opacity=\"0.2\"");
  if (style == "shade") return " fill=\"#ececec\"";
  if (style == "mark") return " fill=\"none\" stroke=\"#777\" stroke-dasharray=\"2 3\"";
  if (style == "dots") return stroke + " stroke-width=\"4\" stroke-linecap=\"round\"";
  if (style == "level") return stroke + " stroke-dasharray=\"6 3\"";
  return stroke + (style == "dash" ? " stroke-width=\"1.5\" stroke-dasharray=\"5 3\"" : " stroke-width=\"1.5\"") + " stroke-linejoin=\"round\"";
}

/// Rows of names above the drawing area.
struct Key {
  std::string text;
  int rows = 0;
};

Key key_of(const Plot& plot) {
  Key key;
  double x = kWidth;
  const auto entry = [&](const std::string& style, size_t color, const std::string& name) {
    const double width = 34 + kCharacter * static_cast<double>(name.size());
    if (x + width > kWidth) {
      x = kLeft;
      ++key.rows;
    }
    const double y = kTitle + kKeyRow * (key.rows - 1);
    key.text += style == "band"
                    ? concat("<rect x=\"", print("%.1f", x), "\" y=\"", y + 5, "\" width=\"18\" height=\"10\"", svg_style(style, color), "/>")
                    : concat("<path d=\"M", print("%.1f", x), " ", y + 10, "h18\"", svg_style(style, color), "/>");
    key.text += svg_text(x + 23, y + 14, "start", name);
    x += width;
  };
  if (plot.curves.size() + plot.bands.size() < 2) return key;
  for (const Curve& curve : plot.curves) entry(curve.dashed ? "dash" : "line", curve.color, curve.name);
  for (const Band& band : plot.bands)
    if (!band.name.empty()) entry("band", band.color, band.name);
  return key;
}

/// The plot as a group at height `y`, which is moved below it.
std::string svg_group(const Plot& plot, size_t number, int& y) {
  constexpr int kTenths = 10;
  constexpr int kAreaWidth = kWidth - kLeft - kRight;
  constexpr Canvas kCanvas{kAreaWidth * kTenths, kAreaHeight * kTenths, kTenths};
  const Key key = key_of(plot);
  const int top = kTitle + kKeyRow * key.rows + 8, bottom = top + kAreaHeight;
  std::string text = concat("<g transform=\"translate(0 ", y, ")\">\n", svg_text(kLeft, 22, "start", plot.title, " font-size=\"15\""), key.text);
  for (const Tick& tick : ticks_of(plot.y, 6)) {
    const double at = top + kAreaHeight * (1 - plot.y.place(tick.value));
    text +=
        concat("<path d=\"M", kLeft, " ", print("%.1f", at), "h", kAreaWidth, "\" stroke=\"#ddd\"/>", svg_text(kLeft - 6, at + 4, "end", tick.label));
  }
  for (const Tick& tick : ticks_of(plot.x, 7)) {
    const double at = kLeft + kAreaWidth * plot.x.place(tick.value);
    text += concat("<path d=\"M", print("%.1f", at), " ", bottom, "v4\" stroke=\"#333\"/>", svg_text(at, bottom + 18, "middle", tick.label));
  }
  text += concat("<clipPath id=\"area", number, "\"><rect width=\"", kAreaWidth, "\" height=\"", kAreaHeight,
                 "\"/></clipPath><g transform=\"translate(", kLeft, " ", top, ")\" clip-path=\"url(#area", number, ")\">\n");
  draw(plot, kCanvas, [&](const char* style, size_t color, size_t, const std::string& path) {
    if (!path.empty()) text += concat("<path", svg_style(style, color), " d=\"", path, "\"/>\n");
  });
  text += concat("</g><path d=\"M", kLeft, " ", top, "v", kAreaHeight, "h", kAreaWidth, "\" fill=\"none\" stroke=\"#333\"/>\n",
                 svg_text(kLeft + kAreaWidth / 2.0, bottom + kBottom - 8, "middle", plot.x.label));
  if (!plot.y.label.empty())
    text += svg_text(0, 0, "middle", plot.y.label, concat(" transform=\"translate(16 ", top + kAreaHeight / 2, ") rotate(-90)\""));
  y += bottom + kBottom;
  return text + "</g>\n";
}

}  // namespace

std::string plots_svg(std::span<const Plot> plots) {
  std::string body;
  int height = 0;
  for (size_t i = 0; i < plots.size(); ++i) body += svg_group(plots[i], i, height);
  return concat(R"(<svg xmlns="http://www.w3.org/2000/svg" width=")", kWidth, "\" height=\"", height, "\" viewBox=\"0 0 ", kWidth, " ", height,
                R"(" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#111"><rect width="100%" height="100%" fill="#fff"/>)", "\n",
                body, "</svg>\n");
}

std::string plot_svg(const Plot& plot) { return plots_svg({&plot, 1}); }

}  // namespace trireme::report
