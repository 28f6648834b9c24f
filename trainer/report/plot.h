#pragma once
// A plot as data, and its two drawings: a fragment of the HTML report and an SVG file for papers.
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/report/axis.h"

namespace trireme::report {

struct Curve {
  std::string name;
  size_t color = 0;  ///< number of a color of the palette
  size_t run = 0;    ///< the curves of a run are shown and hidden together
  bool dashed = false;
  bool dots = false;                        ///< marks each point
  bool joined = true;                       ///< false: only marks, no line between them
  bool readable = true;                     ///< the script shows its values at the cursor
  std::vector<double> x = {}, y = {};       ///< NaN in y interrupts the curve
  std::vector<double> low = {}, high = {};  ///< the range of each point; empty: no range is drawn
};

/// A horizontal band with a line in it, such as a forecast with its range.
struct Band {
  std::string name = {};  ///< empty: part of the band before it
  size_t color = 0, run = 0;
  double low = 0, value = 0, high = 0;
  double begin = 0, end = 0;  ///< of x
};

/// A vertical line at `x`.
struct Mark {
  double x = 0;
  std::string name;
  size_t run = 0;
};

/// An interval of x that is shaded.
struct Shade {
  double begin = 0, end = 0;
  size_t run = 0;
};

struct Plot {
  std::string title;
  Axis x = {}, y = {};
  std::vector<Curve> curves = {};
  std::vector<Band> bands = {};
  std::vector<Mark> marks = {};
  std::vector<Shade> shades = {};
};

/// The palette has this many colors, which people with color vision deficiency can tell apart (Okabe and Ito, 2008); further curves repeat them.
constexpr size_t kColors = 7;

/// The numbers that the page's script reads at the cursor. Equal arrays are stored once.
class PlotNumbers {
 public:
  /// Number of the array in json(). Values have five significant digits; those beyond a billion and whole numbers are exact.
  size_t add(std::span<const double> values);
  /// Number of the plot in json(), an object that the script knows.
  size_t add_plot(nlohmann::ordered_json plot);
  /// {"arrays": [...], "plots": [...]}, without characters that end a script element.
  std::string json() const;

 private:
  std::vector<std::string> arrays_;
  std::map<std::string, size_t> numbers_;
  std::vector<nlohmann::ordered_json> plots_;
};

/// The plot as HTML, drawn in percent of its element and colored by the page's style sheet. `link`: plots with the same one share a cursor; their x
/// axes have the same quantity. `classes`: of the element.
std::string plot_html(const Plot& plot, PlotNumbers& numbers, const std::string& link, const std::string& classes = "");

/// Names of the curves and bands with their colors, as an HTML list; empty if there is only one.
std::string key_html(const Plot& plot);

/// The plot as an SVG document, 720 pixels wide, with title, axes and key.
std::string plot_svg(const Plot& plot);
/// Several plots below each other.
std::string plots_svg(std::span<const Plot> plots);

}  // namespace trireme::report
