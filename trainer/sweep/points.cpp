#include "trainer/sweep/points.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "trainer/config/bind.h"
#include "trainer/config/sweep_visit.h"
#include "trainer/plan/text.h"

namespace trireme::sweep {
namespace {

/// Axes that advance together: the values of each of them, in the order of the axes.
struct Dimension {
  std::vector<size_t> axes;
  std::vector<std::vector<Setting>> steps;  ///< by value, then by axis
};

/// The first `samples` different joint draws of all random axes.
Dimension draws_of(const SweepFile& file) {
  Dimension dimension;
  for (size_t i = 0; i < file.axes.size(); ++i)
    if (file.axes[i].random()) dimension.axes.push_back(i);
  if (dimension.axes.empty()) return dimension;
  const auto samples = static_cast<size_t>(file.config.samples.value());
  const uint64_t limit = 1000 * static_cast<uint64_t>(samples);  // draws of few values repeat themselves
  std::set<std::string> seen;
  for (uint64_t index = 0; dimension.steps.size() < samples && index < limit; ++index) {
    std::vector<Setting> step;
    std::string text;
    for (const size_t axis : dimension.axes) text += step.emplace_back(draw(file.axes[axis], file.config.seed, index)).value + '\n';
    if (seen.insert(text).second) dimension.steps.push_back(std::move(step));
  }
  if (dimension.steps.size() < samples)
    throw ConfigError(concat(file.sources.name_of(file.sources.locate("samples")), " samples=", samples, ": the random axes have only ",
                             dimension.steps.size(), " different draws; allowed integer from 1 to ", dimension.steps.size()));
  return dimension;
}

std::vector<Dimension> dimensions_of(const SweepFile& file) {
  std::vector<Dimension> all;
  if (Dimension draws = draws_of(file); !draws.axes.empty()) all.push_back(std::move(draws));
  const std::vector<std::string>& zip = file.config.zip;
  const auto zipped = [&](const Axis& axis) { return std::ranges::find(zip, axis.key) != zip.end(); };
  bool zip_added = false;
  for (size_t i = 0; i < file.axes.size(); ++i) {
    const Axis& axis = file.axes[i];
    if (axis.random() || (zipped(axis) && zip_added)) continue;
    Dimension one;
    for (size_t other = i; other < file.axes.size(); ++other)
      if (other == i || (zipped(axis) && zipped(file.axes[other]))) one.axes.push_back(other);
    zip_added = zip_added || zipped(axis);
    for (size_t value = 0; value < axis.values.size(); ++value) {
      std::vector<Setting>& step = one.steps.emplace_back();
      for (const size_t member : one.axes) step.push_back(file.axes[member].values[value]);
    }
    all.push_back(std::move(one));
  }
  return all;
}

size_t number_of_points(const SweepFile& file, const std::vector<Dimension>& dimensions) {
  double number = 1;
  for (const Dimension& one : dimensions) number *= static_cast<double>(one.steps.size());
  if (number > kMostSweepPoints)
    throw ConfigError(concat(file.sources.name_of(file.sources.locate("axes")), " axes: ", print("%.0f", number), " points; allowed at most ",
                             print("%.0f", kMostSweepPoints)));
  return static_cast<size_t>(number);
}

}  // namespace

Setting draw(const Axis& axis, int64_t seed, uint64_t index) {
  const double uniform = random_uniform(random_key(static_cast<uint64_t>(seed), "sweep:" + axis.key), index);
  if (axis.kind == Axis::Kind::kChoice)
    return axis.values[std::min(axis.values.size() - 1, static_cast<size_t>(uniform * static_cast<double>(axis.values.size())))];
  const double last = axis.integer && !axis.log ? 1 : 0;  // so that each integer, the last one included, has the same probability
  double value = axis.log ? axis.from * std::pow(axis.to / axis.from, uniform) : axis.from + (axis.to - axis.from + last) * uniform;
  if (axis.integer)
    value = axis.log ? std::round(value) : std::floor(value);
  else
    value = decimal_number(print("%.6g", value)).value_or(value);
  return {axis.key, setting_text(std::clamp(value, axis.from, axis.to), axis.integer), axis.at};
}

std::vector<Point> points_of(const SweepFile& file) {
  const std::vector<Dimension> dimensions = dimensions_of(file);
  const size_t number = number_of_points(file, dimensions);
  std::vector<Point> points;
  for (size_t index = 0; index < number; ++index) {
    Point point{index, std::vector<Setting>(file.axes.size())};
    size_t rest = index;
    for (auto one = dimensions.rbegin(); one != dimensions.rend(); ++one) {
      const std::vector<Setting>& step = one->steps[rest % one->steps.size()];
      for (size_t member = 0; member < step.size(); ++member) point.settings[one->axes[member]] = step[member];
      rest /= one->steps.size();
    }
    points.push_back(std::move(point));
  }
  return points;
}

std::string short_key(const std::string& key, const std::vector<Setting>& settings) {
  const auto last = [](const std::string& path) { return path.substr(path.rfind('.') + 1); };
  const auto same = [&](const Setting& other) { return other.key != key && last(other.key) == last(key); };
  return std::ranges::any_of(settings, same) ? key : last(key);
}

std::string label_of(const Point& point) {
  std::string text;
  for (const Setting& one : point.settings) text += concat(text.empty() ? "" : ", ", short_key(one.key, point.settings), "=", one.value);
  return text.empty() ? "range test" : text;
}

std::string name_of(const Point& point) {
  constexpr size_t kLongest = 100;
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || std::string_view(".=,+-_").find(c) != std::string_view::npos;
  };
  std::string name = print("%03zu-", point.index);
  for (const char c : label_of(point)) {
    if (c == ' ' && name.back() == ',') continue;
    name += allowed(c) ? c : '_';
  }
  return name.substr(0, kLongest);
}

}  // namespace trireme::sweep
