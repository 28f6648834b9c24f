#pragma once
// Down-sampling: a curve of any number of points as at most a few hundred bins with mean, minimum and maximum, so that no spike disappears.
#include <cstddef>
#include <span>
#include <vector>

namespace trireme::report {

/// Points [begin, end) of a series, at least one.
struct Bin {
  size_t begin = 0, end = 0;
};

/// At most `most` bins of equal length, the last one may be shorter; one for each point if there are at most `most` points.
std::vector<Bin> bins_of(size_t points, size_t most);

/// A curve over bins. A bin without a finite value is NaN in all three.
struct Envelope {
  std::vector<double> mean, low, high;
};
Envelope envelope_of(std::span<const double> values, std::span<const Bin> bins);

/// The value of the middle point of each bin: where a bin lies on the x axis.
std::vector<double> middles_of(std::span<const double> values, std::span<const Bin> bins);

/// The median of the finite values; NaN if there are none.
double median_of(std::span<const double> values);

/// Mean of the last finite values, at most `count`; NaN if there are none.
double mean_of_last(std::span<const double> values, size_t count);

}  // namespace trireme::report
