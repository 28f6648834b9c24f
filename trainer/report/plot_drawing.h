#pragma once
// What the HTML and the SVG drawing of a plot have in common: coordinates and path data.
#include <functional>
#include <string>

#include "trainer/report/plot.h"

namespace trireme::report {

/// The drawing area: a grid of whole numbers, each 1 / `divisor` of a user unit.
struct Canvas {
  long width, height;
  int divisor;

  long x(const Axis& axis, double value) const { return grid(axis.place(value), width); }
  long y(const Axis& axis, double value) const { return height - grid(axis.place(value), height); }

 private:
  static long grid(double place, long size);
};

/// A line between two points of the canvas, as path data.
std::string straight_path(long x0, long y0, long x1, long y1, const Canvas& canvas);

/// Receives path data with their style: range, band, level, line, dash, dots, mark or shade.
using Draw = std::function<void(const char* style, size_t color, size_t run, const std::string& path)>;

/// Draws the content of the drawing area, from the back to the front.
void draw(const Plot& plot, const Canvas& canvas, const Draw& each);

}  // namespace trireme::report
