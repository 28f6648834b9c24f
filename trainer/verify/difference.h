#pragma once
#include <optional>
#include <string>
#include <vector>

#include "trainer/verify/record.h"

namespace trireme {

/// Names of all parameters in forward order.
std::vector<std::string> parameter_order(const ModelConfig& model);

/// The compared quantities, in the order in which a run computes them.
enum class Quantity : uint8_t { kInitialWeight, kLoss, kGradient, kGradNorm, kWeight, kAverage, kValidationLoss };
const char* name_of(Quantity quantity);

struct Difference {
  Quantity quantity = Quantity::kLoss;
  int step = 0;        ///< from 1; 0 before the first
  std::string tensor;  ///< parameter name; empty for losses and norms
  int64_t place = -1;  ///< flat index of the element that differs most; -1: the tensor as a whole
  double expected = 0, actual = 0;
  double relative = 0;          ///< |expected - actual| / largest element of the tensor, or / expected scalar
  std::optional<double> ratio;  ///< actual / expected, if equal for all elements large enough to tell
  size_t differing = 1, elements = 1;
  std::vector<int> ranks;  ///< world ranks that own the differing elements
  std::string str() const;
};

/// Layouts change only the order of fp64 sums: a few thousand roundings of 1e-16, amplified by a few AdamW steps.
inline constexpr double kSameTolerance = 1e-10;

struct Comparison {
  std::vector<Difference> differences;  ///< in the order of computation; tensors of a gradient in the order of the backward, head first
  double largest = 0;                   ///< largest relative difference, including those within the tolerance
};

/// `order`: parameter_order. The tolerance is relative: for a scalar to its expected value, for a tensor to its largest element, but at least to a
/// thousandth of the largest element of all tensors.
Comparison compare(const RunRecord& expected, const RunRecord& actual, const std::vector<std::string>& order, double tolerance = kSameTolerance);

/// Compare one scalar, or one set of tensors, as compare() does; add the differences to `out`.
void compare_figure(double expected, double actual, Quantity quantity, int step, double tolerance, Comparison& out);
void compare_tensors(const GlobalTensors& expected, const GlobalTensors& actual, const std::vector<std::string>& order, const Difference& about,
                     double tolerance, Comparison& out);

}  // namespace trireme
