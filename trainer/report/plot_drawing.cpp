#include "trainer/report/plot_drawing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/plan/text.h"

namespace trireme::report {
namespace {

/// SVG path data in relative whole coordinates, which take a third of the space of absolute decimals.
class Path {
 public:
  explicit Path(const Canvas& canvas) : divisor_(canvas.divisor) {}

  void move(long x, long y) {
    text_ += 'M';
    first_ = true;
    number(x);
    number(y);
    x_ = x;
    y_ = y;
    text_ += 'l';
    first_ = true;
  }
  void line(long x, long y) {
    number(x - x_);
    number(y - y_);
    x_ = x;
    y_ = y;
  }
  /// A point, which a round line cap makes visible.
  void dot(long x, long y) {
    move(x, y);
    line(x, y);
  }
  void close() { text_ += 'z'; }
  bool empty() const { return text_.empty(); }
  std::string text() const { return text_; }

 private:
  void number(long value) {
    if (!std::exchange(first_, false) && value >= 0) text_ += ' ';
    text_ += divisor_ == 1 ? std::to_string(value) : print("%.1f", static_cast<double>(value) / divisor_);
  }

  int divisor_;
  bool first_ = true;
  long x_ = 0, y_ = 0;
  std::string text_;
};

std::string line_path(const Plot& plot, const Curve& curve, const Canvas& canvas) {
  Path path(canvas);
  bool drawing = false;
  for (size_t i = 0; i < curve.x.size(); ++i) {
    const bool alone = !drawing && (i + 1 == curve.x.size() || !std::isfinite(curve.y[i + 1]));
    if (!std::isfinite(curve.y[i])) {
      drawing = false;
      continue;
    }
    const long x = canvas.x(plot.x, curve.x[i]), y = canvas.y(plot.y, curve.y[i]);
    if (alone)
      path.dot(x, y);
    else if (drawing)
      path.line(x, y);
    else
      path.move(x, y);
    drawing = true;
  }
  return path.text();
}

/// The area between `low` and `high`, one closed shape for each stretch without gaps.
std::string range_path(const Plot& plot, const Curve& curve, const Canvas& canvas) {
  Path path(canvas);
  for (size_t begin = 0; begin < curve.low.size();) {
    size_t end = begin;
    while (end < curve.low.size() && std::isfinite(curve.low[end])) ++end;
    for (size_t i = begin; i < end; ++i) {
      const long x = canvas.x(plot.x, curve.x[i]), y = canvas.y(plot.y, curve.high[i]);
      if (i == begin)
        path.move(x, y);
      else
        path.line(x, y);
    }
    for (size_t i = end; i-- > begin;) path.line(canvas.x(plot.x, curve.x[i]), canvas.y(plot.y, curve.low[i]));
    if (end > begin) path.close();
    begin = end + 1;
  }
  return path.text();
}

std::string dots_path(const Plot& plot, const Curve& curve, const Canvas& canvas) {
  Path path(canvas);
  for (size_t i = 0; i < curve.x.size(); ++i)
    if (std::isfinite(curve.y[i])) path.dot(canvas.x(plot.x, curve.x[i]), canvas.y(plot.y, curve.y[i]));
  return path.text();
}

std::string rectangle_path(long left, long right, long top, long bottom, const Canvas& canvas) {
  Path path(canvas);
  path.move(left, top);
  path.line(right, top);
  path.line(right, bottom);
  path.line(left, bottom);
  path.close();
  return path.text();
}

std::string band_path(const Plot& plot, const Band& band, const Canvas& canvas) {
  return rectangle_path(canvas.x(plot.x, band.begin), canvas.x(plot.x, band.end), canvas.y(plot.y, band.high), canvas.y(plot.y, band.low), canvas);
}

}  // namespace

/// Far outside the area the coordinate is cut; the drawing is clipped there.
long Canvas::grid(double place, long size) { return std::lround(std::clamp(place, -1.0, 2.0) * static_cast<double>(size)); }

std::string straight_path(long x0, long y0, long x1, long y1, const Canvas& canvas) {
  Path path(canvas);
  path.move(x0, y0);
  path.line(x1, y1);
  return path.text();
}

void draw(const Plot& plot, const Canvas& canvas, const Draw& each) {
  for (const Shade& shade : plot.shades)
    each("shade", 0, shade.run, rectangle_path(canvas.x(plot.x, shade.begin), canvas.x(plot.x, shade.end), 0, canvas.height, canvas));
  for (const Band& band : plot.bands) {
    each("band", band.color, band.run, band_path(plot, band, canvas));
    const long y = canvas.y(plot.y, band.value);
    each("level", band.color, band.run, straight_path(canvas.x(plot.x, band.begin), y, canvas.x(plot.x, band.end), y, canvas));
  }
  for (const Curve& curve : plot.curves)
    if (!curve.low.empty()) each("range", curve.color, curve.run, range_path(plot, curve, canvas));
  for (const Mark& mark : plot.marks) {
    const long x = canvas.x(plot.x, mark.x);
    each("mark", 0, mark.run, straight_path(x, 0, x, canvas.height, canvas));
  }
  for (const Curve& curve : plot.curves) {
    if (curve.joined) each(curve.dashed ? "dash" : "line", curve.color, curve.run, line_path(plot, curve, canvas));
    if (curve.dots) each("dots", curve.color, curve.run, dots_path(plot, curve, canvas));
  }
}

}  // namespace trireme::report
