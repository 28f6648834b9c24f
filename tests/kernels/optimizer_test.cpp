#include "kernels/ops/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

constexpr int64_t kCases[] = {0, 1, 3, 17, 130, 4097, 70001};

// A handful of roundings; the update is small beside the weight.
constexpr double kTolerance = 1e-6;

constexpr AdamW kHyper{0.9, 0.95, 1e-8, 0.1};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// grad_scale, finite, learning rate, bias corrections at step 3.
const std::vector<double> kScalars = {0.7, 1, 1e-2, 1 - std::pow(0.9, 3), 1 - std::pow(0.95, 3)};

Operation adamw(int64_t count, const std::vector<double>& scalars = kScalars) {
  Operand second = in_place("v", {count});
  for (double& value : second.values) value = value * value;
  return {"adamw_step",
          {always_f64(input("scalars", {kStepScalars}, scalars)), in_place("w", {count}), input("g", {count}), in_place("m", {count}), second},
          [](Context& ctx, const std::vector<Tensor>& t) { adamw_step(ctx, kHyper, t[0], t[1], t[2], t[3], t[4]); }};
}
Operation squares(int64_t count) {
  return {"sum_of_squares",
          {free_rows(input("x", {count})), always_f64(added_to("sum", {1}, {2.5}))},
          [](Context& ctx, const std::vector<Tensor>& t) { sum_of_squares(ctx, t[0], t[1]); }};
}
Operation clipped(double sum_sq, double clip) {
  return {"clip_factor",
          {always_f64(input("sum_sq", {1}, {sum_sq})), always_f64(assigned("norm", {1})),
           always_f64(in_place("scalars", {kStepScalars}, {kNaN, kNaN, 3, 4, 5}))},
          [clip](Context& ctx, const std::vector<Tensor>& t) { clip_factor(ctx, t[0], clip, t[1], t[2]); }};
}

}  // namespace

TEST_CASE("optimizer: engines agree") {
  for (int64_t count : kCases) {
    check_engines(adamw(count), kTolerance);
    check_engines(squares(count), kTolerance);
    const std::vector<double> fast = run(squares(count), Device::kCpu, DType::kF32)[1];
    CHECK(normalised_error(fast, run(squares(count), Device::kReference, DType::kF32)[1]) < 1e-13);  // summed in double on every engine
  }
}

TEST_CASE("AdamW follows the scalar formula over steps") {
  Operation operation = adamw(3);
  operation.operands[3].values = operation.operands[4].values = {0, 0, 0};
  double w = operation.operands[1].values[1], m = 0, v = 0;
  for (int step = 1; step <= 5; ++step) {
    const double correction1 = 1 - std::pow(kHyper.beta1, step), correction2 = 1 - std::pow(kHyper.beta2, step), learning_rate = 0.01 * step;
    operation.operands[0].values = {0.5, 1, learning_rate, correction1, correction2};
    operation.operands[2].values = {0, 0.3 * step - 1, 1e4};
    const double g = 0.5 * operation.operands[2].values[1];
    w *= 1 - learning_rate * kHyper.weight_decay;
    m += (1 - kHyper.beta1) * (g - m);
    v = kHyper.beta2 * v + (1 - kHyper.beta2) * g * g;
    w -= learning_rate / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + kHyper.epsilon);
    const Values after = run(operation, Device::kReference, DType::kF64);
    CHECK(after[1][1] == Approx(w).epsilon(1e-13));
    for (size_t i : {1, 3, 4}) operation.operands[i].values = after[i];
  }
}

TEST_CASE("a rejected step writes nothing, whatever the gradients hold") {
  std::vector<double> scalars = kScalars;
  scalars[kFinite] = 0;
  scalars[kGradScale] = kNaN;
  Operation rejected = adamw(130, scalars);
  rejected.operands[2].values[7] = kNaN;
  rejected.operands[2].values[8] = kInfinity;
  for (Operand& operand : rejected.operands) operand.role = Role::kInput;  // inputs are checked to keep their bytes
  for (Device device : {Device::kReference, Device::kCpu}) {
    run(rejected, device, DType::kF32);
    run(rejected, device, DType::kF64);
  }
}

TEST_CASE("a non-finite gradient makes a non-finite norm, which rejects the step") {
  for (Device device : {Device::kReference, Device::kCpu}) {
    for (double bad : {kNaN, kInfinity, -kInfinity}) {
      Operation operation = squares(4099);
      operation.operands[0].values[4098] = bad;
      const double sum = run(operation, device, DType::kF32)[1][0];
      CHECK_FALSE(std::isfinite(sum));
      const Values after = run(clipped(sum, 1.0), device, DType::kF32);
      CHECK_FALSE(std::isfinite(after[1][0]));
      CHECK(after[2][kFinite] == 0);
    }
  }
}

TEST_CASE("the clip factor") {
  struct Case {
    double sum_sq, clip, norm, factor;
  };
  for (const Case& c : {Case{25, 1, 5, 0.2}, {25, 5, 5, 1}, {25, 10, 5, 1}, {25, 0, 5, 1}, {0, 1, 0, 1}}) {
    for (Device device : {Device::kReference, Device::kCpu}) {
      const Values after = run(clipped(c.sum_sq, c.clip), device, DType::kF32);
      CHECK(after[1][0] == c.norm);
      CHECK(after[2] == std::vector<double>{c.factor, 1, 3, 4, 5});  // the other scalars stay
    }
  }
}
