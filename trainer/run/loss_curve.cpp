#include "trainer/run/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr size_t kRows = 10, kMostColumns = 100, kFewestColumns = 40;
constexpr int64_t kFewestSteps = 10;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace

void LossCurve::add(int64_t step, double loss) {
  if (!std::isfinite(loss) || (steps_ > 0 && step < first_)) return;
  if (steps_ == 0) first_ = step;
  last_ = std::max(last_, step);
  ++steps_;
  while (static_cast<size_t>((step - first_) / steps_per_bucket_) >= kMostBuckets) {
    for (size_t i = 0; 2 * i < buckets_.size(); ++i) {
      const Bucket second = 2 * i + 1 < buckets_.size() ? buckets_[2 * i + 1] : Bucket{};
      buckets_[i] = {buckets_[2 * i].sum + second.sum, buckets_[2 * i].count + second.count};
    }
    buckets_.resize((buckets_.size() + 1) / 2);
    steps_per_bucket_ *= 2;
  }
  const auto index = static_cast<size_t>((step - first_) / steps_per_bucket_);
  if (index >= buckets_.size()) buckets_.resize(index + 1);
  buckets_[index].sum += loss;
  ++buckets_[index].count;
}

void LossCurve::add_validation(int64_t step, double loss) {
  if (std::isfinite(loss)) validations_.push_back({step, loss});
}

LossCurve::Shown LossCurve::shown_in(size_t width) const {
  Shown shown{std::vector<Bucket>(width), {}, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  const auto extend = [&](double loss) {
    shown.least = std::min(shown.least, loss);
    shown.most = std::max(shown.most, loss);
  };
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& column = shown.columns[column_of(first_ + static_cast<int64_t>(i) * steps_per_bucket_, width)];
    column.sum += buckets_[i].sum;
    column.count += buckets_[i].count;
  }
  for (const Bucket& column : shown.columns)
    if (column.count > 0) extend(column.mean());
  for (const Validation& each : validations_) {
    if (each.step < first_ || each.step > last_) continue;
    shown.validations.push_back(each);
    extend(each.loss);
  }
  return shown;
}

std::string LossCurve::text(size_t columns) const {
  if (steps_ < kFewestSteps || columns < kFewestColumns) return "";
  columns = std::min(columns, kMostColumns);
  // The labels say what is drawn, and what is drawn depends on the room that they leave.
  size_t label = 0, needed = 1, width = 0;
  Shown shown;
  do {
    label = needed;
    width = columns - label - 2;
    shown = shown_in(width);
    needed = std::max(number(shown.least).size(), number(shown.most).size());
  } while (needed > label);
  const double least = shown.least, most = shown.most;
  const auto row_of = [&](double loss) {
    return most > least ? static_cast<size_t>(std::lround((most - loss) / (most - least) * (kRows - 1))) : kRows / 2;
  };
  std::vector<std::string> rows(kRows, std::string(width, ' '));
  for (size_t column = 0; column < width; ++column)
    if (shown.columns[column].count > 0) rows[row_of(shown.columns[column].mean())][column] = '*';
  for (const Validation& each : shown.validations) rows[row_of(each.loss)][column_of(each.step, width)] = 'o';

  std::string text = concat("loss of steps ", first_, " to ", last_, " (*)", shown.validations.empty() ? "" : ", of validation (o)", "\n");
  for (size_t row = 0; row < kRows; ++row) {
    const std::string mark = row == 0 ? number(most) : row == kRows - 1 && most > least ? number(least) : "";
    rows[row].erase(rows[row].find_last_not_of(' ') + 1);
    text += std::string(label - mark.size(), ' ') + mark + " |" + rows[row] + "\n";
  }
  const std::string from = std::to_string(first_), to = std::to_string(last_);
  const size_t gap = width > from.size() + to.size() ? width - from.size() - to.size() : 1;
  text += std::string(label + 1, ' ') + "+" + std::string(width, '-') + "\n";
  text += std::string(label + 2, ' ') + from + std::string(gap, ' ') + to + "\n";
  return text;
}

}  // namespace trireme
