#include "trainer/verify/difference.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "trainer/model/declare.h"

namespace trireme {
namespace {

constexpr double kSmallestTensor = 1e-3;  // of the largest tensor: a tensor that is zero up to rounding has no scale
constexpr double kSameRatio = 1e-6;       // relative spread of the ratios of elements
constexpr double kLargeElement = 1e-2;    // of the largest: rounding errors of smaller ones hide the ratio

double largest_of(const GlobalTensor& tensor) {
  double largest = 0;
  for (const double v : tensor.values) largest = std::max(largest, std::abs(v));
  return largest;
}

/// |a - b|; infinity if it is NaN.
double distance(double a, double b) {
  const double d = std::abs(a - b);
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

std::optional<double> ratio_of(const GlobalTensor& expected, const GlobalTensor& actual) {
  const double least = kLargeElement * largest_of(expected);
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    if (std::abs(expected.values[i]) < least || expected.values[i] == 0) continue;
    const double ratio = actual.values[i] / expected.values[i];
    if (std::isnan(ratio)) return std::nullopt;
    low = std::min(low, ratio);
    high = std::max(high, ratio);
  }
  const double ratio = (low + high) / 2;
  const bool same = high - low <= kSameRatio * std::abs(high) && std::abs(ratio - 1) > 10 * kSameRatio;
  return same ? std::optional(ratio) : std::nullopt;
}

bool holds(const Box& box, int64_t place, int64_t columns) {
  const int64_t row = place / columns - box.start[0], column = place % columns - box.start[1];
  return row >= 0 && row < box.extent[0] && column >= 0 && column < box.extent[1];
}

void compare_tensor(const GlobalTensor& expected, const GlobalTensor& actual, Difference found, double size, double tolerance, Comparison& out) {
  found.differing = 0;
  found.elements = expected.values.size();
  std::set<int> ranks;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double value = i < actual.values.size() ? actual.values[i] : NAN;
    const double relative = distance(expected.values[i], value) / size;
    out.largest = std::max(out.largest, relative);
    if (relative <= tolerance) continue;
    ++found.differing;
    for (const GlobalTensor::Holder& holder : actual.holders)
      if (holds(holder.box, static_cast<int64_t>(i), actual.shape[1])) ranks.insert(holder.rank);
    if (found.place >= 0 && relative <= found.relative) continue;
    found.place = static_cast<int64_t>(i);
    found.relative = relative;
    found.expected = expected.values[i];
    found.actual = value;
  }
  if (found.differing == 0) return;
  found.ranks.assign(ranks.begin(), ranks.end());
  if (expected.values.size() == actual.values.size()) found.ratio = ratio_of(expected, actual);
  out.differences.push_back(std::move(found));
}

}  // namespace

void compare_figure(double expected, double actual, Quantity quantity, int step, double tolerance, Comparison& out) {
  const double relative = distance(expected, actual) / std::max(std::abs(expected), std::numeric_limits<double>::min());
  out.largest = std::max(out.largest, relative);
  if (relative <= tolerance) return;
  Difference found;
  found.quantity = quantity;
  found.step = step;
  found.expected = expected;
  found.actual = actual;
  found.relative = relative;
  if (std::isfinite(actual) && expected != 0) found.ratio = actual / expected;
  out.differences.push_back(std::move(found));
}

std::vector<std::string> parameter_order(const ModelConfig& model) {
  std::vector<std::string> order;
  for (const ParamSpec& spec : whole_model(model)) order.push_back(spec.name);
  return order;
}

const char* name_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::kInitialWeight: return "initial weight";
    case Quantity::kLoss: return "loss";
    case Quantity::kGradient: return "gradient";
    case Quantity::kGradNorm: return "gradient norm";
    case Quantity::kWeight: return "weight";
    case Quantity::kAverage: return "moving average";
    case Quantity::kValidationLoss: return "validation loss";
  }
  return "?";
}

std::string Difference::str() const {
  std::ostringstream out;
  out.precision(9);
  out << name_of(quantity);
  if (!tensor.empty()) out << " of " << tensor;
  if (place >= 0) out << "[" << place << "]";
  if (step > 0) out << (quantity == Quantity::kWeight || quantity == Quantity::kAverage ? " after step " : " in step ") << step;
  out << ": expected " << expected << ", got " << actual;
  if (elements > 1) out << "; " << differing << " of " << elements << " elements differ";
  if (ratio && !tensor.empty()) out << ", each by the factor " << *ratio;
  return out.str();
}

void compare_tensors(const GlobalTensors& expected, const GlobalTensors& actual, const std::vector<std::string>& order, const Difference& about,
                     double tolerance, Comparison& out) {
  const GlobalTensor missing;
  double largest = 0;
  for (const auto& [name, tensor] : expected) largest = std::max(largest, largest_of(tensor));
  for (const std::string& name : order) {
    const auto a = expected.find(name);
    if (a == expected.end()) continue;
    Difference found = about;
    found.tensor = name;
    const auto b = actual.find(name);
    const double size = std::max({largest_of(a->second), kSmallestTensor * largest, std::numeric_limits<double>::min()});
    compare_tensor(a->second, b == actual.end() ? missing : b->second, std::move(found), size, tolerance, out);
  }
}

Comparison compare(const RunRecord& expected, const RunRecord& actual, const std::vector<std::string>& order, double tolerance) {
  Comparison out;
  const std::vector<std::string> backward(order.rbegin(), order.rend());
  std::vector<std::string> determined;
  std::ranges::copy_if(order, std::back_inserter(determined), [&](const std::string& name) { return !expected.undetermined.contains(name); });
  const auto tensors = [&](const GlobalTensors& a, const GlobalTensors& b, Quantity quantity, int step) {
    Difference about;
    about.quantity = quantity;
    about.step = step;
    // The backward runs from the head down, so the first wrong gradient is the one nearest to the head.
    const bool updated = quantity == Quantity::kWeight || quantity == Quantity::kAverage;
    if (!b.empty()) compare_tensors(a, b, quantity == Quantity::kGradient ? backward : updated ? determined : order, about, tolerance, out);
  };
  tensors(expected.initial_weight, actual.initial_weight, Quantity::kInitialWeight, 0);
  for (size_t i = 0; i < expected.loss.size(); ++i) {
    const int step = static_cast<int>(i) + 1;
    compare_figure(expected.loss[i], i < actual.loss.size() ? actual.loss[i] : NAN, Quantity::kLoss, step, tolerance, out);
    if (step == 1) tensors(expected.first_gradient, actual.first_gradient, Quantity::kGradient, step);
    if (step == 2) tensors(expected.second_gradient, actual.second_gradient, Quantity::kGradient, step);
    compare_figure(expected.grad_norm[i], i < actual.grad_norm.size() ? actual.grad_norm[i] : NAN, Quantity::kGradNorm, step, tolerance, out);
    if (step == 1) tensors(expected.first_weight, actual.first_weight, Quantity::kWeight, step);
  }
  tensors(expected.weight, actual.weight, Quantity::kWeight, static_cast<int>(expected.loss.size()));
  tensors(expected.average, actual.average, Quantity::kAverage, static_cast<int>(expected.loss.size()));
  if (actual.rejected.empty()) compare_figure(expected.validation_loss, actual.validation_loss, Quantity::kValidationLoss, 0, tolerance, out);
  return out;
}

}  // namespace trireme
