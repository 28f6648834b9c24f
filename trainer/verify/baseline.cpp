#include "trainer/verify/baseline.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "trainer/verify/diagnosis.h"

namespace trireme {
namespace {

constexpr double kShift = 1e-4;  // along a unit vector: costs 1e-12 by rounding and 1e-8 by the third derivative
constexpr double kSlopeTolerance = 1e-6;
constexpr double kSmallestGradient = 1e-3;  // of the largest gradient
constexpr double kFaultTolerance = 1e-9;

double norm_of(const GlobalTensors& tensors, const std::set<std::string>& names) {
  double sum = 0;
  for (const std::string& name : names)
    for (const double v : tensors.at(name).values) sum += v * v;
  return std::sqrt(sum);
}

GlobalTensors along(const GlobalTensors& weights, const std::set<std::string>& names, const GlobalTensors& direction, double shift) {
  GlobalTensors moved = weights;
  for (const std::string& name : names)
    for (size_t i = 0; i < moved.at(name).values.size(); ++i) moved.at(name).values[i] += shift * direction.at(name).values[i];
  return moved;
}

/// A random unit vector over the parameters `names`.
GlobalTensors direction_over(const GlobalTensors& weights, const std::set<std::string>& names, uint64_t seed) {
  GlobalTensors direction;
  for (const std::string& name : names) {
    const uint64_t key = random_key(seed, "direction:" + name);
    direction[name] = weights.at(name);
    for (size_t i = 0; i < direction[name].values.size(); ++i) direction[name].values[i] = random_normal(key, i);
  }
  const double length = norm_of(direction, names);
  for (const std::string& name : names)
    for (double& v : direction[name].values) v /= length;
  return direction;
}

class Slopes {
 public:
  Slopes(const Oracle& oracle, const Dataset& data, uint64_t seed, const GlobalTensors& weights, const GlobalTensors& gradient, int step)
      : oracle_(oracle), data_(data), seed_(seed), weights_(weights), gradient_(gradient), step_(step) {
    std::set<std::string> all;
    for (const auto& [name, tensor] : gradient) {
      by_kind_[kind_of(name)].insert(name);
      all.insert(name);
    }
    largest_ = norm_of(gradient, all);
  }

  /// Checks the directional derivative of each kind of parameters, then of each parameter of the kinds that fail.
  void check(const std::vector<std::string>& order, Comparison& out) const {
    std::set<std::string> suspects;
    for (const auto& [kind, names] : by_kind_)
      if (!same(names, out.largest, nullptr)) suspects.insert(names.begin(), names.end());
    for (auto name = order.rbegin(); name != order.rend(); ++name) {
      Difference found;
      found.quantity = Quantity::kGradient;
      found.step = step_;
      found.tensor = *name;
      if (suspects.contains(*name) && !same({*name}, out.largest, &found)) out.differences.push_back(found);
    }
  }

 private:
  bool same(const std::set<std::string>& names, double& largest, Difference* found) const {
    const GlobalTensors direction = direction_over(weights_, names, seed_);
    const double up = oracle_.training_loss(along(weights_, names, direction, kShift), data_, step_ - 1);
    const double down = oracle_.training_loss(along(weights_, names, direction, -kShift), data_, step_ - 1);
    const double expected = (up - down) / (2 * kShift);
    double actual = 0;
    for (const std::string& name : names)
      for (size_t i = 0; i < direction.at(name).values.size(); ++i) actual += direction.at(name).values[i] * gradient_.at(name).values[i];
    const double size = std::max(norm_of(gradient_, names), kSmallestGradient * largest_);
    const double relative = std::abs(actual - expected) / size;
    if (relative <= kSlopeTolerance) return true;
    largest = std::max(largest, relative);
    if (found != nullptr) {
      found->expected = expected;
      found->actual = actual;
      found->relative = relative;
      // A slope that happens to be near zero has no meaningful ratio.
      if (std::abs(expected) > 1e-2 * size) found->ratio = actual / expected;
    }
    return false;
  }

  const Oracle& oracle_;
  const Dataset& data_;
  uint64_t seed_;
  const GlobalTensors& weights_;
  const GlobalTensors& gradient_;
  int step_;
  std::map<std::string, std::set<std::string>> by_kind_;
  double largest_ = 0;
};

KnownFault known_fault_of(const Config& config, const RunRecord& record, const Dataset& data, int step) {
  const double loss = record.loss[static_cast<size_t>(step - 1)];
  const auto explains = [&](KnownFault fault, const GlobalTensors& weights) {
    return std::abs(Oracle(config, fault).training_loss(weights, data, step - 1) - loss) <= kFaultTolerance * std::abs(loss);
  };
  for (const KnownFault fault : kKnownFaults)
    if (explains(fault, step == 1 ? record.initial_weight : record.first_weight)) return fault;
  return step > 1 && explains(KnownFault::kNone, record.initial_weight) ? KnownFault::kStaleWeights : KnownFault::kNone;
}

}  // namespace

BaselineCheck check_baseline(const Config& config, const RunRecord& record, const Dataset& data, const Dataset& validation,
                             const RecordOptions& options) {
  const std::vector<std::string> order = parameter_order(config.model);
  const Oracle oracle(config);
  const auto seed = static_cast<uint64_t>(config.run.seed);
  BaselineCheck check;
  Comparison& out = check.comparison;
  const auto losses = [&](const GlobalTensors& weights, int step) {
    const double loss = record.loss[static_cast<size_t>(step - 1)];
    const size_t before = out.differences.size();
    compare_figure(oracle.training_loss(weights, data, step - 1), loss, Quantity::kLoss, step, kSameTolerance, out);
    if (out.differences.size() > before && check.fault == KnownFault::kNone) check.fault = known_fault_of(config, record, data, step);
    return out.differences.size() == before;
  };
  const auto tensors = [&](const GlobalTensors& expected, const GlobalTensors& actual, Quantity quantity, int step) {
    Difference about;
    about.quantity = quantity;
    about.step = step;
    compare_tensors(expected, actual, order, about, kSameTolerance, out);
  };
  tensors(oracle.initial_weights(0, 0), record.fresh_weight, Quantity::kInitialWeight, 0);
  if (options.zeroed.empty())
    tensors(oracle.initial_weights(options.bias_scale, options.norm_scale), record.initial_weight, Quantity::kInitialWeight, 0);
  // If the loss is wrong, its slopes say nothing about the gradient.
  if (losses(record.initial_weight, 1)) Slopes(oracle, data, seed, record.initial_weight, record.first_gradient, 1).check(order, out);
  std::set<std::string> all;
  std::ranges::copy_if(order, std::inserter(all, all.end()), [&](const std::string& name) { return oracle.trains(name); });
  compare_figure(norm_of(record.first_gradient, all), record.grad_norm[0], Quantity::kGradNorm, 1, kSameTolerance, out);
  const double rate = config.training.optimizer.learning_rate;
  tensors(oracle.updated(record.initial_weight, {{record.first_gradient, rate}}), record.first_weight, Quantity::kWeight, 1);
  if (losses(record.first_weight, 2)) Slopes(oracle, data, seed + 1, record.first_weight, record.second_gradient, 2).check(order, out);
  compare_figure(norm_of(record.second_gradient, all), record.grad_norm[1], Quantity::kGradNorm, 2, kSameTolerance, out);
  tensors(oracle.updated(record.initial_weight, {{record.first_gradient, rate}, {record.second_gradient, rate / 2}}), record.second_weight,
          Quantity::kWeight, 2);
  if (config.training.ema.decay)
    tensors(oracle.averaged({&record.initial_weight, &record.first_weight, &record.second_weight}), record.second_average, Quantity::kAverage, 2);
  compare_figure(oracle.evaluation_loss(record.weight, validation), record.validation_loss, Quantity::kValidationLoss, 0, kSameTolerance, out);
  return check;
}

}  // namespace trireme
