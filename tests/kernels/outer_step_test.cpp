#include "kernels/ops/outer_step.h"

#include <cmath>
#include <functional>

#include "kernels/ops/elementwise.h"
#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

Operation stepped(int64_t count, const OuterStep& step) {
  return {
      "outer_step",
      {in_place("sum", {count}), in_place("weights", {count}), in_place("theta", {count}), in_place("momentum", {count}), assigned("drift", {count})},
      [step](Context& ctx, const std::vector<Tensor>& t) { outer_step(ctx, step, t[0], t[1], t[2], t[3], t[4]); }};
}

/// Islands that minimise lambda (x - optimum)^2 / 2 of one number by gradient descent, and synchronise by outer steps in fp64.
class Quadratics {
 public:
  struct Function {
    double lambda, optimum;
  };
  Quadratics(std::vector<Function> functions, double learning_rate, OuterStep step)
      : functions_(std::move(functions)), learning_rate_(learning_rate), step_(step) {
    step_.islands = static_cast<int>(functions_.size());
    for (size_t i = 0; i < functions_.size(); ++i) islands_.push_back({tensor(1), tensor(1), tensor(0)});
  }
  /// A round of `steps` steps; returns the weight after the outer step, which all islands must have.
  double round(int steps) {
    double sum = 0;
    for (size_t i = 0; i < islands_.size(); ++i) {
      double& x = value(islands_[i].weight);
      for (int k = 0; k < steps; ++k) x -= learning_rate_ * functions_[i].lambda * (x - functions_[i].optimum);
      sum += x;
    }
    for (Island& island : islands_) {
      const Tensor all = tensor(sum), drift = tensor(0);
      outer_step(ctx_, step_, all, island.weight, island.theta, island.momentum, drift);
      CHECK(value(island.weight) == value(islands_.front().weight));
    }
    return value(islands_.front().weight);
  }
  double after(int rounds, int steps) {
    double x = 0;
    for (int r = 0; r < rounds; ++r) x = round(steps);
    return x;
  }

 private:
  struct Island {
    Tensor weight, theta, momentum;
  };
  Tensor tensor(double number) {
    const Tensor made = Tensor::empty(ctx_, {1}, DType::kF64, MemoryCategory::kWorkspace);
    fill(ctx_, number, made);
    return made;
  }
  static double& value(const Tensor& scalar) { return *scalar.data<double>(); }

  Arena arena_{Device::kReference};
  Context ctx_{Device::kReference, &arena_};
  std::vector<Function> functions_;
  double learning_rate_;
  OuterStep step_;
  std::vector<Island> islands_;
};

const std::vector<Quadratics::Function> kTwo{{1, 0}, {3, 1}};
constexpr OuterStep kAverage{.learning_rate = 1, .momentum = 0}, kDiLoCo{.learning_rate = 0.7, .momentum = 0.9};

}  // namespace

TEST_CASE("outer step: PyTorch's SGD with Nesterov momentum on the mean change, by hand") {
  Operation operation = stepped(2, {.learning_rate = 0.5, .momentum = 0.25, .islands = 4});
  operation.operands[0].values = {8, -4};   // means 2 and -1
  operation.operands[1].values = {3, -1};   // drifts 1 and 0
  operation.operands[2].values = {6, 1};    // outer gradients 4 and 2
  operation.operands[3].values = {16, -8};  // momenta 4 + 4 and -2 + 2
  for (const Device device : devices())
    CHECK(run(operation, device, DType::kF32) == Values{{4, 2}, {3, 0}, {3, 0}, {8, 0}, {1, 0}});  // 6 - 0.5 (4 + 0.25 8), 1 - 0.5 (2 + 0.25 0)
}

TEST_CASE("outer step: the new weights of an island are a blend of the shared ones and its own") {
  Operation operation = stepped(2, {.learning_rate = 0.5, .momentum = 0.25, .islands = 4, .blend = 0.25});
  operation.operands[0].values = {8, -4};
  operation.operands[1].values = {11, -4};  // 3 and 0 after the step
  operation.operands[2].values = {6, 1};
  operation.operands[3].values = {16, -8};
  for (const Device device : devices()) CHECK(run(operation, device, DType::kF32) == Values{{4, 2}, {9, -3}, {3, 0}, {8, 0}, {9, -3}});
}

TEST_CASE("outer step: every engine and number of threads gives the bits of the reference") {
  for (const int64_t count : {int64_t{1}, int64_t{17}, int64_t{40000}}) {
    const Operation operation = stepped(count, {.learning_rate = 0.7, .momentum = 0.9, .islands = 3});
    const Values reference = run(operation, Device::kReference, DType::kF32);
    CHECK(run(operation, Device::kCpu, DType::kF32) == reference);
    CHECK(run(operation, Device::kCpu, DType::kF32, 3) == reference);
    for (const Device device : devices())
      for (size_t i = 0; i < reference.size(); ++i) CHECK(normalised_error(run(operation, device, DType::kF32)[i], reference[i]) < 1e-6);
  }
}

TEST_CASE("outer step: a learning rate of 1 without momentum gives the mean weights to the bit") {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Operation operation = stepped(1000, {.learning_rate = 1, .momentum = 0, .islands = 1});
    Operation before = operation;
    before.run = [](Context&, const std::vector<Tensor>&) {};
    const Values after = run(operation, Device::kReference, dtype);
    CHECK(after[2] == run(before, Device::kReference, dtype)[0]);
    CHECK(after[1] == after[2]);
  }
}

TEST_CASE("outer step: one step a round without momentum is data parallel SGD") {
  Quadratics islands(kTwo, 0.1, kAverage);
  for (const double expected : {0.95, 0.91, 0.878, 0.8524}) CHECK(islands.round(1) == Approx(expected).epsilon(1e-12));
}

TEST_CASE("outer step: fixed points of averaging on two different quadratics") {
  const std::pair<int, double> points[] = {{1, 0.75}, {2, 0.728571429}, {4, 0.688439935}, {8, 0.623296168}};
  for (const auto& [steps, point] : points) CHECK(Quadratics(kTwo, 0.1, kAverage).after(400, steps) == Approx(point).margin(1e-9));
  CHECK(Quadratics(kTwo, 0.1, kAverage).after(3, 1000) == Approx(0.5).margin(1e-9));
}

TEST_CASE("outer step: four islands, the fixed point of averaging and DiLoCo round by round") {
  const std::vector<Quadratics::Function> four{{1, 0}, {3, 1}, {0.5, -1}, {2, 2}};
  // sum of (1 - (1 - 0.1 lambda)^H) optimum / sum of (1 - (1 - 0.1 lambda)^H)
  for (const auto& [steps, point] : {std::pair{1, 1.0}, {4, 0.933772456}})
    CHECK(Quadratics(four, 0.1, kAverage).after(1000, steps) == Approx(point).margin(1e-9));
  Quadratics islands(four, 0.1, kDiLoCo);
  for (const double expected : {0.958607906, 0.925439692, 0.908148841, 0.906134858}) CHECK(islands.round(4) == Approx(expected).margin(5e-10));
}

TEST_CASE("outer step: DiLoCo on two different quadratics, round by round") {
  Quadratics islands(kTwo, 0.1, kDiLoCo);
  for (const double expected : {0.7713065, 0.612984554, 0.554693545, 0.574169489, 0.629072212, 0.682330684})
    CHECK(islands.round(4) == Approx(expected).margin(5e-10));
}

TEST_CASE("outer step: the first one moves by lr (1 + mu) times the mean change, and a constant change in the end by lr / (1 - mu)") {
  // A quadratic so flat and far that each round changes the weight by 1e-3, up to 1e-9 of it.
  const double far = 1e9;
  Quadratics first({{1e-6, 1 + far}}, 1e-6, kDiLoCo);
  CHECK(first.round(1) - 1 == Approx(1.33e-3).epsilon(1e-6));
  Quadratics later({{1e-6, 1 + far}}, 1e-6, kDiLoCo);
  const double before = later.after(300, 1);
  CHECK(later.round(1) - before == Approx(7e-3).epsilon(1e-4));
}

TEST_CASE("outer step: stable below (2 + 2 mu) / (1 + 2 mu) where each round converges") {
  for (const double momentum : {0.0, 0.5, 0.9}) {
    const double limit = (2 + 2 * momentum) / (1 + 2 * momentum);
    const auto distance = [&](double learning_rate) {
      return std::abs(Quadratics({{1, 0}}, 1, {.learning_rate = learning_rate, .momentum = momentum}).after(2000, 1));
    };
    CHECK(distance(0.98 * limit) < 1e-3);
    CHECK(distance(1.02 * limit) > 10);
  }
}

TEST_CASE("outer step: tensors of another shape are rejected") {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena};
  const Tensor three = Tensor::zeros(ctx, {3}, DType::kF32, MemoryCategory::kWorkspace), two = three.flat(0, 2);
  CHECK_NOTHROW(outer_step(ctx, {}, three, three, three, three, three));
  CHECK_THROWS_AS(outer_step(ctx, {}, three, three, two, three, three), InternalError);
  CHECK_THROWS_AS(outer_step(ctx, {}, three, three, three, three, two), InternalError);
}
