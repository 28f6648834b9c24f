#pragma once
// Horizontal bars: memory by category, step time by cause.
#include <string>
#include <vector>

#include "trainer/report/axis.h"

namespace trireme::report {

struct Segment {
  size_t color = 0;  ///< below kBarColors
  double value = 0;
};

/// A bar of adjoining segments.
struct Bar {
  std::string name;  ///< of the segments' sum, such as "forecast"; may be empty
  std::vector<Segment> segments;
};

struct BarRow {
  std::string label;
  std::vector<Bar> bars;
};

struct Bars {
  std::string title;
  Quantity quantity = Quantity::kNumber;
  std::vector<std::pair<size_t, std::string>> key;  ///< color and name
  std::vector<BarRow> rows;
};

/// Bars have two colors more than lines.
constexpr size_t kBarColors = 9;

/// A table whose cells contain the bars and their values.
std::string bars_html(const Bars& bars);
/// An SVG document.
std::string bars_svg(const Bars& bars);

}  // namespace trireme::report
