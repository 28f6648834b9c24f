#pragma once
// Differences in words, for the parts of a comparison, its cause and its text.
#include <array>
#include <string>

#include "kernels/core/joined.h"
#include "trainer/report/comparison.h"

namespace trireme::report {

inline constexpr std::array kRunNames{"A", "B"};

/// "not set" for an empty value.
std::string shown(const std::string& value);
/// "5.60863 -> 5.61421", with as many digits as tell the two apart.
std::string arrow(const std::array<double, 2>& values);
/// "training.steps 6 -> 8 since step 5, by --change".
std::string key_text(const KeyValues& one);
/// Step, name, first element and extent of a difference.
std::string tensor_text(const TensorDifference& found);

/// The likely cause in one sentence; empty if the runs are equal. Reads everything else of `all`.
std::string cause_of(const Comparison& all);

}  // namespace trireme::report
