#include "trainer/report/series.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace trireme::report {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

bool is_finite(double value) { return std::isfinite(value); }

}  // namespace

std::vector<Bin> bins_of(size_t points, size_t most) {
  const size_t length = (points + most - 1) / most;
  std::vector<Bin> bins;
  for (size_t begin = 0; begin < points; begin += length) bins.push_back({begin, std::min(points, begin + length)});
  return bins;
}

Envelope envelope_of(std::span<const double> values, std::span<const Bin> bins) {
  Envelope result;
  for (const Bin& bin : bins) {
    double sum = 0, low = kNoValue, high = kNoValue;
    size_t count = 0;
    for (const double value : values.subspan(bin.begin, bin.end - bin.begin)) {
      if (!is_finite(value)) continue;
      sum += value;
      low = count == 0 ? value : std::min(low, value);
      high = count == 0 ? value : std::max(high, value);
      ++count;
    }
    result.mean.push_back(count > 0 ? sum / static_cast<double>(count) : kNoValue);
    result.low.push_back(low);
    result.high.push_back(high);
  }
  return result;
}

std::vector<double> middles_of(std::span<const double> values, std::span<const Bin> bins) {
  std::vector<double> result;
  for (const Bin& bin : bins) result.push_back(values[bin.begin + (bin.end - bin.begin - 1) / 2]);
  return result;
}

double median_of(std::span<const double> values) {
  std::vector<double> finite;
  std::ranges::copy_if(values, std::back_inserter(finite), is_finite);
  if (finite.empty()) return kNoValue;
  const auto middle = finite.begin() + static_cast<ptrdiff_t>(finite.size() / 2);
  std::nth_element(finite.begin(), middle, finite.end());
  return *middle;
}

double mean_of_last(std::span<const double> values, size_t count) {
  double sum = 0;
  size_t taken = 0;
  for (size_t i = values.size(); i-- > 0 && taken < count;) {
    if (!is_finite(values[i])) continue;
    sum += values[i];
    ++taken;
  }
  return taken > 0 ? sum / static_cast<double>(taken) : kNoValue;
}

}  // namespace trireme::report
