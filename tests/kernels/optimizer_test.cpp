#include "kernels/ops/update.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "kernels/ops/update_rules.h"
#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

constexpr int64_t kCases[] = {0, 1, 3, 17, 130, 4097, 70001};

// A handful of roundings; the update is small relative to the weight.
constexpr double kTolerance = 1e-6;

constexpr AdamW kHyper{0.9, 0.95, 1e-8, 0.1};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// grad_scale, finite, learning rate, bias corrections at step 3, accepted steps, loss scale, clean steps.
const std::vector<double> kScalars = {0.7, 1, 1e-2, 1 - std::pow(0.9, 3), 1 - std::pow(0.95, 3), 3, 1, 0, kInfinity, kInfinity, kInfinity, kInfinity};

/// A second moment: squares of normal values.
Operand second_moment(const std::string& name, int64_t count) {
  Operand second = in_place(name, {count});
  for (double& value : second.values) value = value * value;
  return second;
}

/// One slice for each count, every other one decayed. Operands: scalars, then w, g, m, v of each.
Operation adamw(const std::vector<int64_t>& counts, const std::vector<double>& scalars = kScalars) {
  Operation operation{"adamw_step", {always_f64(input("scalars", {kStepScalars}, scalars))}, {}};
  for (size_t i = 0; i < counts.size(); ++i) {
    const std::string n = std::to_string(i);
    for (const Operand& operand :
         {in_place("w" + n, {counts[i]}), input("g" + n, {counts[i]}), in_place("m" + n, {counts[i]}), second_moment("v" + n, counts[i])})
      operation.operands.push_back(wide(operand));
  }
  operation.run = [](Context& ctx, const std::vector<Tensor>& t) {
    std::vector<AdamWSlice> slices;
    for (size_t i = 1; i < t.size(); i += 4) slices.push_back({t[i], t[i + 1], t[i + 2], t[i + 3], i / 4 % 2 == 0});
    adamw_step(ctx, kHyper, t[0], slices);
  };
  return operation;
}

struct Range {
  int64_t begin, count;
  bool decay;
};
/// Slices of flat tensors, as in the shard of a unit; elements between them must be unchanged. The gradient is shifted by `shift` elements relative
/// to the other tensors.
Operation flat_adamw(int64_t total, const std::vector<Range>& ranges, int64_t shift, const std::vector<double>& scalars = kScalars) {
  return {"adamw_step of flat slices",
          {always_f64(input("scalars", {kStepScalars}, scalars)), wide(free_rows(in_place("w", {total}))),
           wide(free_rows(input("g", {total + shift}))), wide(free_rows(in_place("m", {total}))), wide(free_rows(second_moment("v", total)))},
          [ranges, shift](Context& ctx, const std::vector<Tensor>& t) {
            std::vector<AdamWSlice> slices;
            for (const Range& r : ranges)
              slices.push_back({t[1].flat(r.begin, r.count), t[2].flat(r.begin + shift, r.count), t[3].flat(r.begin, r.count),
                                t[4].flat(r.begin, r.count), r.decay});
            adamw_step(ctx, kHyper, t[0], slices);
          }};
}

/// Lion on flat slices; operands: scalars, w, g, m.
Operation flat_lion(int64_t total, const std::vector<Range>& ranges, int64_t shift, const std::vector<double>& scalars = kScalars) {
  return {"update_step of lion",
          {always_f64(input("scalars", {kStepScalars}, scalars)), wide(free_rows(in_place("w", {total}))),
           wide(free_rows(input("g", {total + shift}))), wide(free_rows(in_place("m", {total})))},
          [ranges, shift](Context& ctx, const std::vector<Tensor>& t) {
            std::vector<UpdateSlice> slices;
            for (const Range& r : ranges)
              slices.push_back({t[1].flat(r.begin, r.count), t[2].flat(r.begin + shift, r.count), {t[3].flat(r.begin, r.count)}, r.decay});
            update_step(ctx, Optimizer::kLion, {0.9, 0.99, 0, 0.1}, t[0], slices);
          }};
}

/// SGD on flat slices; operands: scalars, w, g.
Operation flat_sgd(int64_t total, const std::vector<Range>& ranges, int64_t shift, const std::vector<double>& scalars = kScalars) {
  return {
      "update_step of sgd",
      {always_f64(input("scalars", {kStepScalars}, scalars)), wide(free_rows(in_place("w", {total}))), wide(free_rows(input("g", {total + shift})))},
      [ranges, shift](Context& ctx, const std::vector<Tensor>& t) {
        std::vector<UpdateSlice> slices;
        for (const Range& r : ranges) slices.push_back({t[1].flat(r.begin, r.count), t[2].flat(r.begin + shift, r.count), {}, r.decay});
        update_step(ctx, Optimizer::kSgd, {0.9, 0.99, 0, 0.1}, t[0], slices);
      }};
}

Operation squares(const std::vector<int64_t>& counts) {
  Operation operation{"sum_of_squares", {always_f64(added_to("sum", {1}, {2.5}))}, {}};
  for (size_t i = 0; i < counts.size(); ++i) operation.operands.push_back(free_rows(input("x" + std::to_string(i), {counts[i]})));
  operation.run = [](Context& ctx, const std::vector<Tensor>& t) { sum_of_squares(ctx, std::span(t).subspan(1), t[0]); };
  return operation;
}
Operation flat_squares(int64_t total, const std::vector<Range>& ranges) {
  return {"sum_of_squares of flat slices",
          {always_f64(added_to("sum", {1}, {2.5})), free_rows(input("x", {total}))},
          [ranges](Context& ctx, const std::vector<Tensor>& t) {
            std::vector<Tensor> slices;
            for (const Range& r : ranges) slices.push_back(t[1].flat(r.begin, r.count));
            sum_of_squares(ctx, slices, t[0]);
          }};
}

/// `tensors` tensors of `count` elements; each tensor in `bad` contains one non-finite value.
Operation offender(int64_t tensors, int64_t count, const std::vector<std::pair<int64_t, double>>& bad, bool finite) {
  std::vector<double> scalars = kScalars;
  scalars[kAccepted] = finite ? 1 : 0;
  Operation operation{"first_non_finite", {always_f64(input("scalars", {kStepScalars}, scalars)), always_f64(assigned("index", {1}))}, {}};
  for (int64_t i = 0; i < tensors; ++i) operation.operands.push_back(free_rows(input("x" + std::to_string(i), {count})));
  for (const auto& [place, value] : bad)
    operation.operands[static_cast<size_t>(2 + place)].values[static_cast<size_t>(count - 1 - place % count)] = value;
  operation.run = [](Context& ctx, const std::vector<Tensor>& t) { first_non_finite(ctx, std::span(t).subspan(2), t[0], t[1]); };
  return operation;
}

/// Limits of a step, and its sum of losses.
struct Limits {
  double norm = kInfinity, loss = kInfinity;
  double measured_loss = 2;
  double outliers = kInfinity, measured_outliers = 0;
};

/// `sum_sq` is the sum of squares of gradients that include the loss scale.
Operation decided(double sum_sq, double clip, double steps, const LossScaling& scaling = {}, const LossScale& loss_scale = {},
                  const Limits& limits = {}) {
  return {"finalize_step_scalars",
          {always_f64(input("sums", {kStepSums}, {sum_sq, limits.measured_loss, limits.measured_outliers})), always_f64(assigned("norm", {1})),
           always_f64(in_place("scalars", {kStepScalars},
                               {kNaN, kNaN, 3, kNaN, kNaN, steps, static_cast<double>(loss_scale.scale), static_cast<double>(loss_scale.clean_steps),
                                limits.norm, limits.loss, kInfinity, limits.outliers}))},
          [clip, scaling](Context& ctx, const std::vector<Tensor>& t) { finalize_step_scalars(ctx, kHyper, scaling, t[0], clip, t[1], t[2]); }};
}

/// A rank with this sum of losses and its limit.
Operation marked(double loss, double limit) {
  return {"mark_outlier",
          {always_f64(input("scalars", {kStepScalars}, {0.7, 1, 1e-2, 1, 1, 3, 1, 0, kInfinity, kInfinity, limit, kInfinity})),
           always_f64(in_place("sums", {kStepSums}, {25, loss, kNaN}))},
          [](Context& ctx, const std::vector<Tensor>& t) { mark_outlier(ctx, t[0], t[1]); }};
}

/// Moving average of `count` weights from element `shift` on; operands: scalars, w, e.
Operation average(int64_t count, int64_t shift, double decay, const std::vector<double>& scalars = kScalars) {
  return {"average_step",
          {always_f64(input("scalars", {kStepScalars}, scalars)), wide(free_rows(input("w", {count + shift}))),
           wide(free_rows(in_place("e", {count + 5})))},
          [count, shift, decay](Context& ctx, const std::vector<Tensor>& t) {
            average_step(ctx, decay, t[0], t[1].flat(shift, count), t[2].flat(0, count));
          }};
}

/// What a step keeps, from element `shift` on; operands: scalars, from, to.
Operation copied(int64_t count, int64_t shift, bool accepted) {
  std::vector<double> scalars = kScalars;
  scalars[kAccepted] = accepted ? 1 : 0;
  Operation operation{
      "copy_accepted",
      {always_f64(input("scalars", {kStepScalars}, scalars)), free_rows(input("from", {count + shift})), free_rows(in_place("to", {count + 5}))},
      [count, shift](Context& ctx, const std::vector<Tensor>& t) { copy_accepted(ctx, t[0], t[1].flat(shift, count), t[2].flat(0, count)); }};
  for (size_t i = 1; i < operation.operands.size(); ++i) operation.operands[i].dtype = DType::kF32;
  return operation;
}

/// Consecutive slices of awkward lengths with gaps of awkward lengths, none of them aligned to the next.
std::vector<Range> awkward_ranges(int64_t slices, int64_t total) {
  std::vector<Range> ranges;
  int64_t begin = 3;
  for (int64_t i = 0; i < slices; ++i) {
    const int64_t count = i % 7 == 3 ? 0 : 1 + i * i % 61;
    ranges.push_back({begin, count, i % 3 != 0});
    begin += count + i % 4;
  }
  TRIREME_CHECK(begin <= total, begin, " elements needed");
  return ranges;
}

}  // namespace

TEST_CASE("optimizer: engines agree") {
  for (int64_t count : kCases) {
    check_engines(adamw({count}), kTolerance);
    check_engines(squares({count}), kTolerance);
  }
  check_engines(adamw({5, 0, 4099, 17}), kTolerance);
  check_engines(squares({5, 0, 3999, 17, 6999}), kTolerance);
  check_engines(decided(25, 1, 2), kTolerance);
  check_engines(marked(2, 1), kTolerance);
}

TEST_CASE("optimizer: what a step keeps is copied only if it is accepted") {
  for (const bool accepted : {true, false}) {
    for (const int64_t count : {0, 1, 300, 5000})
      for (const int64_t shift : {0, 1}) check_engines(copied(count, shift, accepted), 0);
    const Operation operation = copied(300, 0, accepted);
    for (const Device device : devices()) {
      const Values after = run(operation, device, DType::kF32);
      CHECK(std::equal(after[2].begin(), after[2].begin() + 300, accepted ? after[1].begin() : operation.operands[2].values.begin(),
                       [](double a, double b) { return static_cast<float>(a) == static_cast<float>(b); }));
    }
  }
}

TEST_CASE("AdamW updates its slices and nothing between them") {
  constexpr int64_t kMany = 300, kTotal = 12000, kLong = 200003;
  for (int64_t shift : {0, 1, 2}) {
    check_engines(flat_adamw(kTotal, awkward_ranges(kMany, kTotal), shift), kTolerance);
    check_engines(flat_adamw(kLong, {{3, 70001, true}, {70004, 1, false}, {70009, 129990, false}}, shift), kTolerance);
    const Operation operation = flat_adamw(kTotal, awkward_ranges(kMany, kTotal), shift);
    for (Device device : devices()) {
      const Values after = run(operation, device, DType::kF32);
      std::vector<char> inside(kTotal, 0);
      for (const Range& r : awkward_ranges(kMany, kTotal)) std::fill_n(inside.begin() + r.begin, r.count, 1);
      for (size_t i : {1, 3, 4}) {
        int64_t wrong = 0;
        for (size_t e = 0; e < kTotal; ++e) wrong += (after[i][e] == static_cast<float>(operation.operands[i].values[e])) == (inside[e] == 1);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("weight decay applies only to slices that request it") {
  Operation operation = adamw({9, 9});
  for (size_t i : {2, 3, 4, 6, 7, 8}) operation.operands[i].values.assign(9, 0.0);
  for (Device device : devices()) {
    const Values after = run(operation, device, DType::kF32);
    std::vector<double> decayed = operation.operands[1].values;
    for (double& w : decayed) w *= 1 - kScalars[kLearningRate] * kHyper.weight_decay;
    CHECK(normalised_error(after[1], decayed) < 2e-7);
    CHECK(std::equal(after[5].begin(), after[5].end(), operation.operands[5].values.begin(),
                     [](double w, double before) { return w == static_cast<float>(before); }));
  }
}

TEST_CASE("AdamW follows the scalar formula over steps") {
  Operation operation = adamw({3});
  operation.operands[3].values = operation.operands[4].values = {0, 0, 0};
  double w = operation.operands[1].values[1], m = 0, v = 0;
  for (int step = 1; step <= 5; ++step) {
    const double correction1 = 1 - std::pow(kHyper.beta1, step), correction2 = 1 - std::pow(kHyper.beta2, step), learning_rate = 0.01 * step;
    operation.operands[0].values = {0.5, 1, learning_rate, correction1, correction2, static_cast<double>(step),
                                    1,   0, kInfinity,     kInfinity,   kInfinity,   kInfinity};
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

TEST_CASE("AdamW's second moment stays as it is after the steps that it follows") {
  AdamW frozen = kHyper;
  frozen.second_moment_steps = 2;
  Operation step = adamw({4099});
  step.run = [frozen](Context& ctx, const std::vector<Tensor>& t) {
    finalize_step_scalars(ctx, frozen, {}, t[5], 0, t[6], t[0]);
    adamw_step(ctx, frozen, t[0], std::vector<AdamWSlice>{{t[1], t[2], t[3], t[4], true}});
  };
  step.operands[0] = always_f64(in_place("scalars", {kStepScalars}, {1, 1, 0.01, 1, 1, 0, 1, 0, kInfinity, kInfinity, kInfinity, kInfinity}));
  step.operands.push_back(always_f64(input("sums", {kStepSums}, {4, 2, 0})));
  step.operands.push_back(always_f64(assigned("norm", {1})));
  for (const Device device : devices()) {
    Operation operation = step;
    for (int t = 1; t <= 4; ++t) {
      operation.operands[2].values.assign(4099, 0.25 * t);
      const Values after = run(operation, device, DType::kF32);
      const double beta2 = t <= 2 ? kHyper.beta2 : 1, g = 0.25 * t, decay = 1 - 0.01 * kHyper.weight_decay;
      CHECK(after[0][kBiasCorrection1] == Approx(1 - std::pow(kHyper.beta1, t)).epsilon(1e-14));
      CHECK(after[0][kBiasCorrection2] == Approx(1 - std::pow(kHyper.beta2, std::min(t, 2))).epsilon(1e-14));
      double worst = 0;
      for (size_t i = 0; i < 4099; ++i) {
        const double w = operation.operands[1].values[i], m = kHyper.beta1 * operation.operands[3].values[i] + (1 - kHyper.beta1) * g;
        const double v = beta2 * operation.operands[4].values[i] + (1 - beta2) * g * g;
        const double expected = w * decay - 0.01 * m / after[0][kBiasCorrection1] / (std::sqrt(v / after[0][kBiasCorrection2]) + kHyper.epsilon);
        worst = std::max({worst, std::abs(after[1][i] - expected) / (1 + std::abs(expected)), std::abs(after[4][i] - v)});
      }
      CHECK(worst < 1e-6);
      if (t > 2) CHECK(after[4] == operation.operands[4].values);
      for (const size_t i : {0, 1, 3, 4}) operation.operands[i].values = after[i];
    }
  }
}

TEST_CASE("Lion: engines agree, and elements between slices are unchanged") {
  constexpr int64_t kMany = 300, kTotal = 12000, kLong = 200003;
  for (int64_t shift : {0, 1, 2}) {
    check_engines(flat_lion(kTotal, awkward_ranges(kMany, kTotal), shift), kTolerance);
    check_engines(flat_lion(kLong, {{3, 70001, true}, {70004, 1, false}, {70009, 129990, false}}, shift), kTolerance);
    const Operation operation = flat_lion(kTotal, awkward_ranges(kMany, kTotal), shift);
    for (Device device : devices()) {
      const Values after = run(operation, device, DType::kF32);
      std::vector<char> inside(kTotal, 0);
      for (const Range& r : awkward_ranges(kMany, kTotal)) std::fill_n(inside.begin() + r.begin, r.count, 1);
      for (size_t i : {1, 3}) {
        int64_t wrong = 0;
        for (size_t e = 0; e < kTotal; ++e) wrong += (after[i][e] == static_cast<float>(operation.operands[i].values[e])) == (inside[e] == 1);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("Lion matches values computed by hand: sign of the interpolated momentum, sign(0) = 0, weight decay") {
  const auto step = [](double& w, double& m, double g, bool decay) {
    Operation operation = flat_lion(1, {{0, 1, decay}}, 0, {1, 1, 0.1, 1, 1, 1, 1, 0, kInfinity, kInfinity, kInfinity, kInfinity});
    operation.operands[1].values = {w};
    operation.operands[2].values = {g};
    operation.operands[3].values = {m};
    const Values after = run(operation, Device::kReference, DType::kF64);
    w = after[1][0];
    m = after[3][0];
  };
  double w = 1, m = 0;
  const double weights[] = {0.9, 1.0, 1.1}, momenta[] = {0.005, 0.00295, 0.0009205}, gradients[] = {0.5, -0.2, -0.2};
  for (int i = 0; i < 3; ++i) {
    step(w, m, gradients[i], false);
    CHECK(w == Approx(weights[i]).epsilon(1e-15));
    CHECK(m == Approx(momenta[i]).epsilon(1e-14));
  }
  w = 2, m = 0;
  step(w, m, 0, false);
  CHECK(w == 2);
  step(w, m, 0, true);
  CHECK(w == Approx(2 * (1 - 0.1 * 0.1)).epsilon(1e-15));
}

TEST_CASE("SGD: engines agree, elements between slices are unchanged, and the update is w - lr (g + decay w)") {
  constexpr int64_t kTotal = 12000;
  for (int64_t shift : {0, 1, 2}) {
    check_engines(flat_sgd(kTotal, awkward_ranges(300, kTotal), shift), kTolerance);
    check_engines(flat_sgd(200003, {{3, 70001, true}, {70004, 1, false}, {70009, 129990, false}}, shift), kTolerance);
  }
  for (Device device : devices()) {
    // The factor 0.5 on gradients, learning rate 0.25, decay 0.1; the second element is in no slice, the third is not decayed.
    Operation operation = flat_sgd(3, {{0, 1, true}, {2, 1, false}}, 0, {0.5, 1, 0.25, 1, 1, 1, 1, 0, kInfinity, kInfinity, kInfinity, kInfinity});
    operation.operands[1].values = {4, 5, 6};
    operation.operands[2].values = {2, 2, -8};
    const Values after = run(operation, device, DType::kF32);
    CHECK(after[1] == std::vector<double>{static_cast<double>(4 * static_cast<float>(1 - 0.25 * 0.1) - 0.25F), 5, 7});
  }
}

TEST_CASE("moving average: engines agree, and elements after it are unchanged") {
  for (const int64_t count : kCases)
    for (const int64_t shift : {0, 1, 4}) {
      const Operation operation = average(count, shift, 0.2);
      check_engines(operation, kTolerance);
      for (Device device : devices()) {
        const Values after = run(operation, device, DType::kF32);
        for (size_t i = 0; i < after[2].size(); ++i)
          if ((after[2][i] == static_cast<float>(operation.operands[2].values[i])) == (i < static_cast<size_t>(count))) FAIL_CHECK(i);
      }
    }
}

TEST_CASE("moving average matches values computed by hand: d = min(decay, (1 + t) / (10 + t)), t from 0") {
  // Weights after four steps, and their average with decay 0.2, which first counts at t = 2: d = 1/10, 2/11, 0.2, 0.2.
  const double weights[] = {2, -1, 3, 3}, expected[] = {1.9, -5.2 / 11};
  double e = 1, by_hand = 1;
  const double d[] = {0.1, 2.0 / 11, 0.2, 0.2};
  for (int t = 0; t < 4; ++t) {
    Operation operation = average(1, 0, 0.2, {1, 1, 0.1, 1, 1, static_cast<double>(t + 1), 1, 0, kInfinity, kInfinity, kInfinity, kInfinity});
    operation.operands[1].values = {weights[t]};
    operation.operands[2].values[0] = e;
    for (Device device : devices()) CHECK(run(operation, device, DType::kF32)[2][0] == Approx(d[t] * e + (1 - d[t]) * weights[t]).epsilon(1e-6));
    e = run(operation, Device::kReference, DType::kF64)[2][0];
    by_hand = d[t] * by_hand + (1 - d[t]) * weights[t];
    CHECK(e == Approx(by_hand).epsilon(1e-14));
    if (t < 2) CHECK(e == Approx(expected[t]).epsilon(1e-14));
  }
  CHECK(average_share(0.999, 1) == 0.9);                              // the first step
  CHECK(average_share(0.999, 8990) == Approx(9.0 / 8999));            // the last step of the warm-up
  CHECK(average_share(0.999, 8992) == Approx(0.001).epsilon(1e-12));  // the constant decay after the warm-up
}

TEST_CASE("a rejected step writes nothing, whatever values the gradients have") {
  std::vector<double> scalars = kScalars;
  scalars[kAccepted] = 0;
  scalars[kGradScale] = kNaN;
  for (Operation rejected :
       {adamw({130, 7}, scalars), flat_adamw(12000, awkward_ranges(300, 12000), 0, scalars), flat_lion(12000, awkward_ranges(300, 12000), 0, scalars),
        flat_sgd(12000, awkward_ranges(300, 12000), 0, scalars), average(130, 0, 0.5, scalars)}) {
    rejected.operands[2].values[7] = kNaN;
    rejected.operands[2].values[8] = kInfinity;
    for (Operand& operand : rejected.operands) operand.role = Role::kInput;  // inputs are checked to be unchanged
    for (Device device : devices()) run(rejected, device, DType::kF32);
    run(rejected, Device::kReference, DType::kF64);
    run(rejected, Device::kCpu, DType::kF64);
  }
}

TEST_CASE("the squares of each tensor add up to the sum, bit by bit") {
  for (const Device device : {Device::kReference, Device::kCpu}) {
    Arena arena(device);
    Context ctx{device, &arena, 1};
    std::vector<Tensor> tensors;
    for (const int64_t count : {70001, 3, 1, 4097}) {
      tensors.push_back(Tensor::empty(ctx, {count}, DType::kF32, MemoryCategory::kWorkspace));
      for (int64_t i = 0; i < count; ++i) tensors.back().data<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i * count)));
    }
    const Tensor alone = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
    const Tensor sum = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
    std::vector<double> each(tensors.size(), kNaN);
    sum_of_squares(ctx, tensors, alone);
    sum_of_squares(ctx, tensors, sum, each);
    CHECK(*sum.data<double>() == *alone.data<double>());
    CHECK(((each[0] + each[1]) + each[2]) + each[3] == *sum.data<double>());
    for (size_t i = 0; i < tensors.size(); ++i) {
      double squares = 0;
      for (int64_t k = 0; k < tensors[i].numel(); ++k) squares += std::pow(static_cast<double>(tensors[i].data<float>()[k]), 2);
      CHECK(each[i] == Approx(squares).epsilon(1e-13));
    }
    CHECK_THROWS_AS(sum_of_squares(ctx, tensors, sum, std::span(each).first(2)), InternalError);
  }
}

TEST_CASE("squares are summed in double over all tensors") {
  constexpr int64_t kTotal = 12000;
  for (const Operation& operation : {squares({70001, 3, 0, 4097}), flat_squares(kTotal, awkward_ranges(300, kTotal)), squares({1})}) {
    const std::vector<double> expected = run(operation, Device::kReference, DType::kF32)[0];
    for (Device device : devices()) CHECK(normalised_error(run(operation, device, DType::kF32)[0], expected) < 1e-13);
  }
  const std::vector<int64_t> many(1100, 3);  // a partial sum of each, more than the threads of the block that adds them
  for (Device device : devices())
    CHECK(normalised_error(run(squares(many), device, DType::kF32)[0], run(squares(many), Device::kReference, DType::kF32)[0]) < 1e-13);
  Operation operation = squares({4097});
  operation.operands[1].values.assign(4097, 1e-2);
  operation.operands[1].values[0] = 1e4;  // an fp32 sum would lose the other terms
  const double small = static_cast<float>(1e-2);
  for (Device device : devices()) CHECK(run(operation, device, DType::kF32)[0][0] == Approx(2.5 + 1e8 + 4096 * small * small).epsilon(1e-12));
}

TEST_CASE("a non-finite gradient gives a non-finite norm, which rejects the step") {
  for (Device device : devices()) {
    for (double bad : {kNaN, kInfinity, -kInfinity}) {
      for (int64_t where : {0, 4098}) {
        Operation operation = squares({4099, 5});
        operation.operands[1].values[where] = bad;
        const double sum = run(operation, device, DType::kF32)[0][0];
        CHECK_FALSE(std::isfinite(sum));
        const Values after = run(decided(sum, 1.0, 7), device, DType::kF32);
        CHECK_FALSE(std::isfinite(after[1][0]));
        CHECK(after[2][kAccepted] == 0);
        CHECK(after[2][kAcceptedSteps] == 7);
        CHECK(after[2][kLearningRate] == 3);
        CHECK(after[2][kBiasCorrection1] == Approx(1 - std::pow(kHyper.beta1, 7)).epsilon(1e-14));
        CHECK(after[2][kBiasCorrection2] == Approx(1 - std::pow(kHyper.beta2, 7)).epsilon(1e-14));
      }
    }
  }
}

TEST_CASE("the first non-finite tensor is reported only after a rejected step") {
  struct Case {
    std::vector<std::pair<int64_t, double>> bad;
    double found;
  };
  constexpr int64_t kTensors = 140, kCount = 9;
  for (const Case& c : {Case{{}, -1},
                        {{{0, kNaN}}, 0},
                        {{{139, -kInfinity}}, 139},
                        {{{137, kNaN}, {130, kInfinity}, {131, kNaN}}, 130},
                        {{{2, kInfinity}, {135, kNaN}}, 2}}) {
    for (Device device : devices()) {
      for (const Alignment alignment : {Alignment::kElement, Alignment::kVector}) {
        CHECK(run(offender(kTensors, kCount, c.bad, false), device, DType::kF32, 1, alignment)[1][0] == c.found);
        CHECK(run(offender(kTensors, kCount, c.bad, true), device, DType::kF32, 1, alignment)[1][0] == -1);
      }
    }
  }
  for (Device device : devices()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      CHECK(run(offender(3, 70001, {{1, kNaN}}, false), device, dtype)[1][0] == 1);
      CHECK(run(offender(3, 70001, {{2, kInfinity}}, false), device, dtype)[1][0] == 2);
    }
    CHECK(run(offender(1100, 3, {{1098, kNaN}, {1097, kInfinity}}, false), device, DType::kF32)[1][0] == 1097);
    CHECK(run(offender(0, 1, {}, false), device, DType::kF32)[1][0] == -1);
    Operation largest = offender(1, 5, {}, false);
    largest.operands[2].values = {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(), 0, 1e-45, -1};
    CHECK(run(largest, device, DType::kF32)[1][0] == -1);
  }
}

TEST_CASE("a finite norm accepts the step, clips it and counts it") {
  struct Case {
    double sum_sq, clip, norm, factor;
  };
  for (const Case& c : {Case{25, 1, 5, 0.2}, {25, 5, 5, 1}, {25, 10, 5, 1}, {25, 0, 5, 1}, {0, 1, 0, 1}}) {
    for (double steps : {0, 4, 100000}) {
      for (Device device : devices()) {
        const Values after = run(decided(c.sum_sq, c.clip, steps), device, DType::kF32);
        CHECK(after[1][0] == c.norm);
        CHECK(after[2][kGradScale] == c.factor);
        CHECK(after[2][kAccepted] == 1);
        CHECK(after[2][kLearningRate] == 3);
        CHECK(after[2][kAcceptedSteps] == steps + 1);
        CHECK(after[2][kBiasCorrection1] == Approx(1 - std::pow(kHyper.beta1, steps + 1)).epsilon(1e-14));
        CHECK(after[2][kBiasCorrection2] == Approx(1 - std::pow(kHyper.beta2, steps + 1)).epsilon(1e-14));
      }
    }
  }
}

TEST_CASE("the loss scale is removed from the gradient norm and from the gradients of the update") {
  struct Case {
    double clip, factor;
  };
  for (const Case& c : {Case{1, 0.2}, {5, 1}, {0, 1}}) {
    for (const int64_t scale : {int64_t{1}, int64_t{1} << 10, int64_t{1} << 24}) {
      const auto factor = static_cast<double>(scale);
      for (Device device : devices()) {
        const Values after = run(decided(25 * factor * factor, c.clip, 4, {2000, 1, 1 << 24}, {scale, 7}), device, DType::kF32);
        CHECK(after[1][0] == 5);
        CHECK(after[2][kGradScale] == c.factor / factor);
        CHECK(after[2][kLossScale] == factor);
        CHECK(after[2][kCleanSteps] == 8);
      }
    }
  }
  const Operation scaled{"scale_loss",
                         {always_f64(input("scalars", {kStepScalars}, {0.7, 1, 1e-2, 1, 1, 3, 4096, 5, kInfinity, kInfinity, kInfinity, kInfinity})),
                          always_f64(in_place("factor", {1}, {0.1}))},
                         [](Context& ctx, const std::vector<Tensor>& t) { scale_loss(ctx, t[0], t[1]); }};
  for (Device device : devices()) CHECK(run(scaled, device, DType::kF32)[1][0] == 409.6);
}

TEST_CASE("the loss scale doubles after clean steps, halves on overflow, and stays within its bounds") {
  struct Case {
    LossScale before;
    double sum_sq;
    LossScale after;
  };
  const LossScaling scaling{3, 4, 64};
  for (const Case& c : {Case{{16, 0}, 1, {16, 1}},
                        {{16, 1}, 1, {16, 2}},
                        {{16, 2}, 1, {32, 0}},
                        {{16, 2}, kInfinity, {8, 0}},
                        {{16, 0}, kNaN, {8, 0}},
                        {{4, 2}, kNaN, {4, 0}},
                        {{4, 2}, 1, {8, 0}},
                        {{64, 1}, 1, {64, 2}},
                        {{64, 2}, 1, {64, 0}},
                        {{64, 0}, kInfinity, {32, 0}}}) {
    for (Device device : devices()) {
      const Values after = run(decided(c.sum_sq, 1, 4, scaling, c.before), device, DType::kF32);
      INFO(c.before.scale << " after " << c.before.clean_steps << " clean steps, " << c.sum_sq);
      CHECK(after[2][kLossScale] == static_cast<double>(c.after.scale));
      CHECK(after[2][kCleanSteps] == static_cast<double>(c.after.clean_steps));
      CHECK(after[2][kAccepted] == (std::isfinite(c.sum_sq) ? 1 : 0));
      CHECK(after[2][kAcceptedSteps] == (std::isfinite(c.sum_sq) ? 5 : 4));
      // Without dynamic loss scaling.
      const Values fixed = run(decided(c.sum_sq, 1, 4), device, DType::kF32);
      CHECK(fixed[2][kLossScale] == 1);
      CHECK(fixed[2][kCleanSteps] == 0);
    }
  }
}

TEST_CASE("a step above the limit of its gradient norm or of its loss is rejected and leaves the loss scale alone") {
  const LossScaling scaling{3, 4, 64};
  struct Case {
    Limits limits;
    bool accepted;
  };
  // The norm is 5 and its squares include the loss scale; a value at its limit is within it. A finite limit also rejects a loss that is not finite.
  constexpr double kLargest = std::numeric_limits<double>::max();
  for (const Case& c : {Case{{5, 2, 2}, true},
                        {{4.9, 2, 2}, false},
                        {{5, 1.9, 2}, false},
                        {{5, kLargest, 2}, true},
                        {{5, kLargest, kNaN}, false},
                        {{5, kLargest, kInfinity}, false},
                        {{5, 2, kNaN}, false},
                        {{5, kInfinity, kInfinity}, true},
                        {{5, kInfinity, kNaN}, true},
                        {{5, 2, 2, 0, 0}, true},  // ranks that stand out
                        {{5, 2, 2, 0, 1}, false},
                        {{5, 2, 2, 0, 3}, false},
                        {{5, 2, 2, kInfinity, 3}, true}}) {
    for (Device device : devices()) {
      const Values after = run(decided(25 * 16 * 16, 1, 4, scaling, {16, 2}, c.limits), device, DType::kF32);
      INFO("limits " << c.limits.norm << ", " << c.limits.loss << "; loss " << c.limits.measured_loss << "; outliers " << c.limits.measured_outliers);
      CHECK(after[1][0] == 5);
      CHECK(after[2][kAccepted] == (c.accepted ? 1 : 0));
      CHECK(after[2][kAcceptedSteps] == (c.accepted ? 5 : 4));
      CHECK(after[2][kLossScale] == (c.accepted ? 32 : 16));
      CHECK(after[2][kCleanSteps] == (c.accepted ? 0 : 2));
    }
  }
  for (Device device : devices()) {  // an overflow under a limit is still one
    const Values after = run(decided(kInfinity, 1, 4, scaling, {16, 2}, {5, 2, 2}), device, DType::kF32);
    CHECK(after[2][kAccepted] == 0);
    CHECK(after[2][kLossScale] == 8);
    CHECK(after[2][kCleanSteps] == 0);
  }
}

TEST_CASE("a rank stands out above the limit of its losses, and neither at it nor with what is not a number") {
  for (const auto& [loss, stands_out] : {std::pair{2.0, false}, {2.1, true}, {kInfinity, true}, {kNaN, false}, {0.0, false}}) {
    for (Device device : devices()) {
      INFO(loss);
      CHECK(run(marked(loss, 2), device, DType::kF32)[1][kOutliers] == (stands_out ? 1 : 0));
      CHECK(run(marked(loss, kInfinity), device, DType::kF32)[1][kOutliers] == 0);
    }
  }
}

TEST_CASE("a sum of squares over more than one parallel round adds each element once") {
  constexpr int64_t kRound = int64_t{1} << 22, kMore = 5000;
  std::vector<double> values(kRound + kMore, 1.0);
  std::fill(values.begin() + kRound, values.end(), 2.0);
  const Operation operation{"sum_of_squares",
                            {always_f64(added_to("sum", {1}, {2.5})), free_rows(input("x", {kRound + kMore}, values))},
                            [](Context& ctx, const std::vector<Tensor>& t) { sum_of_squares(ctx, std::span(t).subspan(1), t[0]); }};
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level)
    CHECK(run(operation, Device::kCpu, DType::kF32, 2, Alignment::kVector, static_cast<Isa>(level))[0][0] == 2.5 + kRound + 4 * kMore);
}
