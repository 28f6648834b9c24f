#pragma once
#include <optional>
#include <string>
#include <vector>

#include "trainer/verify/record.h"

namespace trireme {

/// Names of all parameters, as a forward reads them.
std::vector<std::string> parameter_order(const ModelConfig& model);

/// What is compared, in the order in which a run computes it.
enum class Quantity : uint8_t { kInitialWeight, kLoss, kGradient, kGradNorm, kWeight, kAverage, kValidationLoss };
const char* name_of(Quantity quantity);

struct Difference {
  Quantity quantity = Quantity::kLoss;
  int step = 0;        ///< from 1; 0 before the first
  std::string tensor;  ///< of initial weights, gradients and weights
  int64_t place = -1;  ///< of the element that differs most; -1: the tensor as a whole
  double expected = 0, actual = 0;
  double relative = 0;          ///< |expected - actual| in units of the largest element, or of the expected figure
  std::optional<double> ratio;  ///< actual / expected, where it is the same for all elements that are large enough to tell
  size_t differing = 1, elements = 1;
  std::vector<int> ranks;  ///< of the world: those that own the differing elements
  std::string str() const;
};

/// Double precision sums in another order: a few thousand roundings of 1e-16, amplified by a few AdamW steps.
inline constexpr double kSameTolerance = 1e-10;

struct Comparison {
  std::vector<Difference> differences;  ///< in the order of computation; tensors of a gradient in the order of the backward, head first
  double largest = 0;                   ///< of all relative differences, those within the tolerance too
};

/// `order`: parameter_order. A figure may differ by `tolerance` of itself, a tensor by that of its largest element, which
/// counts as at least a thousandth of the largest of all tensors.
Comparison compare(const RunRecord& expected, const RunRecord& actual, const std::vector<std::string>& order, double tolerance = kSameTolerance);

/// One figure, or one set of tensors, as compare() does.
void compare_figure(double expected, double actual, Quantity quantity, int step, double tolerance, Comparison& out);
void compare_tensors(const GlobalTensors& expected, const GlobalTensors& actual, const std::vector<std::string>& order, const Difference& about,
                     double tolerance, Comparison& out);

}  // namespace trireme
