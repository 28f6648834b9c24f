#pragma once
// Layouts as NVIDIA's CuTe writes them (CUTLASS 3, include/cute), for tests of what the machine knows from the PTX manual.
#include <cstddef>
#include <vector>

/// An index is split into digits below the extents, the first digit varying fastest. Each digit moves by its stride.
struct Mode {
  std::vector<int> extents, strides;
  int at(int index) const {
    int position = 0;
    for (size_t i = 0; i < extents.size(); index /= extents[i++]) position += index % extents[i] * strides[i];
    return position;
  }
};
/// Where element `value` of a lane's registers lies in a matrix or in memory.
struct FragmentLayout {
  Mode lane, value;
  size_t at(int of_lane, int of_value) const { return static_cast<size_t>(lane.at(of_lane) + value.at(of_value)); }
};
