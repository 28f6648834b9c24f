#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace trireme {

/// The upper one of the two in the middle if the number of values is even. There must be a value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace trireme
