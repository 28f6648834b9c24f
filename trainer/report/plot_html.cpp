#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "kernels/core/check.h"
#include "trainer/plan/text.h"
#include "trainer/report/plot.h"
#include "trainer/report/plot_drawing.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

using nlohmann::ordered_json;

std::string number_json(double value) {
  if (!std::isfinite(value)) return "null";
  if (std::abs(value) < 1e15 && value == std::round(value)) return print("%.0f", value);
  return print(std::abs(value) >= 1e9 ? "%.12g" : "%.5g", value);
}

const char* name_of(Quantity quantity) {
  constexpr std::array kNames{"number", "count", "duration", "clock", "bytes", "percent"};
  return kNames[static_cast<size_t>(quantity)];
}

ordered_json axis_json(const Axis& axis) {
  return {{"label", axis.label}, {"quantity", name_of(axis.quantity)}, {"low", axis.low}, {"high", axis.high}, {"log", axis.log}};
}

std::string percent(double place) { return print("%.2f%%", 100 * place); }

/// A sentence for people who do not see the plot.
std::string description(const Plot& plot) {
  std::string text = concat(plot.title, " over ", plot.x.label, ".");
  constexpr size_t kMost = 4;
  for (size_t i = 0; i < std::min(kMost, plot.curves.size()); ++i) {
    const Curve& curve = plot.curves[i];
    std::vector<double> finite;
    std::ranges::copy_if(curve.y, std::back_inserter(finite), [](double value) { return std::isfinite(value); });
    if (finite.empty()) continue;
    text +=
        concat(" ", curve.name, ": first ", value_text(finite.front(), plot.y.quantity), ", last ", value_text(finite.back(), plot.y.quantity), ".");
  }
  return text + " The left and right arrow keys read values.";
}

}  // namespace

size_t PlotNumbers::add(std::span<const double> values) {
  std::string text = "[";
  for (const double value : values) text += (text.size() > 1 ? "," : "") + number_json(value);
  text += "]";
  const auto [found, fresh] = numbers_.emplace(text, arrays_.size());
  if (fresh) arrays_.push_back(text);
  return found->second;
}

size_t PlotNumbers::add_plot(ordered_json plot) {
  plots_.push_back(std::move(plot));
  return plots_.size() - 1;
}

std::string PlotNumbers::json() const {
  std::string text = "{\"arrays\":[";
  for (size_t i = 0; i < arrays_.size(); ++i) text += (i > 0 ? ",\n" : "") + arrays_[i];
  const std::string plots = ordered_json(plots_).dump(-1, ' ', true, ordered_json::error_handler_t::replace);
  text += "],\n\"plots\":";
  for (const char c : plots) {
    if (c == '<' || c == '>' || c == '&')
      text += print("\\u%04x", static_cast<unsigned>(c));
    else
      text += c;
  }
  return text + "}";
}

std::string plot_html(const Plot& plot, PlotNumbers& numbers, const std::string& link, const std::string& classes) {
  constexpr Canvas kCanvas{2000, 600, 1};
  ordered_json curves = ordered_json::array();
  for (const Curve& curve : plot.curves) {
    if (!curve.readable) continue;
    ordered_json& one = curves.emplace_back();
    one = {{"name", curve.name}, {"color", curve.color % kColors}, {"run", curve.run}, {"x", numbers.add(curve.x)}, {"y", numbers.add(curve.y)}};
    if (curve.low.empty()) continue;
    one["low"] = numbers.add(curve.low);
    one["high"] = numbers.add(curve.high);
  }
  const size_t number = numbers.add_plot({{"link", link}, {"x", axis_json(plot.x)}, {"y", axis_json(plot.y)}, {"curves", std::move(curves)}});

  std::string grid, y_labels, x_labels;
  for (const Tick& tick : ticks_of(plot.y, 5)) {
    grid += straight_path(0, kCanvas.y(plot.y, tick.value), kCanvas.width, kCanvas.y(plot.y, tick.value), kCanvas);
    y_labels += concat(R"(<span style="bottom:)", percent(plot.y.place(tick.value)), "\">", markup(tick.label), "</span>");
  }
  for (const Tick& tick : ticks_of(plot.x, 7)) {
    const double place = plot.x.place(tick.value);
    const char* const edge = place > 0.97 ? " end" : place < 0.03 ? " start" : "";
    x_labels +=
        concat("<span class=\"", tick.minor ? "minor" : "major", edge, R"(" style="left:)", percent(place), "\">", markup(tick.label), "</span>");
  }
  std::string drawing;
  draw(plot, kCanvas, [&](const char* style, size_t color, size_t run, const std::string& path) {
    if (!path.empty()) drawing += concat("<path class=\"", style, " c", color % kColors, " r", run, "\" d=\"", path, "\"/>\n");
  });
  return concat("<div class=\"plot ", classes, "\" data-plot=\"", number, R"(" tabindex="0" role="group" aria-label=")", markup(description(plot)),
                "\"><div class=\"y\">", y_labels,
                R"(</div><div class="area"><svg viewBox="0 0 2000 600" preserveAspectRatio="none" aria-hidden="true">)", "<path class=\"grid\" d=\"",
                grid, "\"/>\n", drawing, "</svg></div><div class=\"x\">", x_labels, "</div><div class=\"label\">", markup(plot.x.label),
                "</div></div>\n");
}

std::string key_html(const Plot& plot) {
  std::string items;
  const auto item = [&](const std::string& style, size_t color, size_t run, const std::string& name) {
    items += concat("<li class=\"r", run, "\"><i class=\"", style, " c", color % kColors, "\"></i>", markup(name), "</li>");
  };
  for (const Curve& curve : plot.curves) item(curve.dots ? "dots" : curve.dashed ? "dash" : "line", curve.color, curve.run, curve.name);
  for (const Band& band : plot.bands)
    if (!band.name.empty()) item("band", band.color, band.run, band.name);
  return plot.curves.size() + plot.bands.size() < 2 ? "" : concat("<ul class=\"key\">", items, "</ul>\n");
}

}  // namespace trireme::report
