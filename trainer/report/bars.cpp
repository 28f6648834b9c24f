#include "trainer/report/bars.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/core/check.h"
#include "trainer/plan/text.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

constexpr std::array<const char*, kBarColors> kBarPalette{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                                          "#56b4e9", "#4d4d4d", "#f0e442", "#b0b0b0"};

double sum_of(const Bar& bar) {
  double sum = 0;
  for (const Segment& segment : bar.segments) sum += std::max(0.0, segment.value);
  return sum;
}

double longest(const Bars& bars) {
  double most = 0;
  for (const BarRow& row : bars.rows)
    for (const Bar& bar : row.bars) most = std::max(most, sum_of(bar));
  return most > 0 && std::isfinite(most) ? most : 1;
}

std::string name_in_key(const Bars& bars, size_t color) {
  const auto found = std::ranges::find(bars.key, color, &std::pair<size_t, std::string>::first);
  return found == bars.key.end() ? "" : found->second;
}

/// "compute 1.2 s", for a segment.
std::string text_of(const Bars& bars, const Segment& segment) {
  return concat(name_in_key(bars, segment.color), " ", value_text(segment.value, bars.quantity));
}

}  // namespace

std::string bars_html(const Bars& bars) {
  const double most = longest(bars);
  std::string text = "<ul class=\"key\">";
  for (const auto& [color, name] : bars.key) text += concat("<li><i class=\"band c", color, "\"></i>", markup(name), "</li>");
  text += "</ul>\n<table class=\"bars\">\n";
  for (const BarRow& row : bars.rows) {
    text += concat("<tr><th scope=\"row\">", markup(row.label), "</th><td>");
    for (const Bar& bar : row.bars) {
      text += "<div class=\"bar\">";
      for (const Segment& segment : bar.segments) {
        if (segment.value <= 0) continue;
        text += concat("<i class=\"c", segment.color, "\" style=\"width:calc((100% - 6em) * ", print("%.4f", segment.value / most), ")\" title=\"",
                       markup(text_of(bars, segment)), "\"></i>");
      }
      text += concat("<span>", bar.name.empty() ? "" : markup(bar.name) + " ", value_text(sum_of(bar), bars.quantity), "</span></div>");
    }
    text += "</td></tr>\n";
  }
  return text + "</table>\n";
}

std::string bars_svg(const Bars& bars) {
  constexpr double kWidth = 720, kLeft = 150, kRight = 150, kTop = 62, kBar = 14, kGap = 8;
  constexpr double kCharacter = 6.6;
  const double most = longest(bars);
  std::string body;
  double y = kTop;
  for (const BarRow& row : bars.rows) {
    body += concat("<text x=\"", kLeft - 8, "\" y=\"", print("%.1f", y + 11), "\" text-anchor=\"end\">", markup(row.label), "</text>\n");
    for (const Bar& bar : row.bars) {
      double x = kLeft;
      for (const Segment& segment : bar.segments) {
        const double width = (kWidth - kLeft - kRight) * std::max(0.0, segment.value) / most;
        body += concat("<rect x=\"", print("%.2f", x), "\" y=\"", print("%.1f", y), "\" width=\"", print("%.2f", width), "\" height=\"", kBar - 2,
                       "\" fill=\"", kBarPalette[segment.color % kBarColors], "\"/>");
        x += width;
      }
      body += concat("<text x=\"", print("%.1f", x + 6), "\" y=\"", print("%.1f", y + 10), "\">", bar.name.empty() ? "" : markup(bar.name) + " ",
                     value_text(sum_of(bar), bars.quantity), "</text>\n");
      y += kBar;
    }
    y += kGap;
  }
  double x = 16;
  std::string key;
  for (const auto& [color, name] : bars.key) {
    key += concat("<rect x=\"", print("%.1f", x), "\" y=\"36\" width=\"12\" height=\"10\" fill=\"", kBarPalette[color % kBarColors], "\"/><text x=\"",
                  print("%.1f", x + 16), "\" y=\"45\">", markup(name), "</text>\n");
    x += 28 + kCharacter * static_cast<double>(name.size());
  }
  const double height = y + 8;
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", std::max(kWidth, x), "\" height=\"", height, "\" viewBox=\"0 0 ",
                std::max(kWidth, x), " ", height,
                "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#111\">"
                "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"16\" y=\"22\" font-size=\"15\">",
                markup(bars.title), "</text>\n", key, body, "</svg>\n");
}

}  // namespace trireme::report
