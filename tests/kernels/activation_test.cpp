#include "kernels/ops/activation.h"

#include <cmath>

#include "kernels/ops/elementwise.h"
#include "tests/kernels/harness.h"
#include "tests/kernels/misaligned.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t rows, columns;
};
constexpr Case kCases[] = {{1, 1}, {3, 5}, {7, 17}, {33, 130}, {2, 257}, {301, 200}};
// Multiples of 8, for which a GPU uses 16-byte accesses, and flat tensors that end within such an access; more than one block.
constexpr Case kWidths[] = {{1, 3}, {2, 8}, {5, 24}, {3, 31}, {2, 33}, {1, 127}, {2, 255}, {1, 1023}, {3, 1024}, {2, 4104}};

// A handful of roundings and an exponential of a couple of ulp.
constexpr double kTolerance = 1e-6;

Operation swiglu(const Case& c) {
  return {"swiglu_forward",
          {input("gate_up", {c.rows, 2 * c.columns}), assigned("y", {c.rows, c.columns})},
          [](Context& ctx, const std::vector<Tensor>& t) { swiglu_forward(ctx, t[0], t[1]); }};
}
Operation swiglu_gradient(const Case& c) {
  return {"swiglu_backward",
          {input("dy", {c.rows, c.columns}), input("gate_up", {c.rows, 2 * c.columns}), assigned("dgate_up", {c.rows, 2 * c.columns})},
          [](Context& ctx, const std::vector<Tensor>& t) { swiglu_backward(ctx, t[0], t[1], t[2]); }};
}
Operation geglu(const Case& c, Gelu form) {
  return {form == Gelu::kErf ? "geglu_erf_forward" : "geglu_forward",
          {input("gate_up", {c.rows, 2 * c.columns}), assigned("y", {c.rows, c.columns})},
          [=](Context& ctx, const std::vector<Tensor>& t) { geglu_forward(ctx, t[0], t[1], form); }};
}
Operation geglu_gradient(const Case& c, Gelu form) {
  return {form == Gelu::kErf ? "geglu_erf_backward" : "geglu_backward",
          {input("dy", {c.rows, c.columns}), input("gate_up", {c.rows, 2 * c.columns}), assigned("dgate_up", {c.rows, 2 * c.columns})},
          [=](Context& ctx, const std::vector<Tensor>& t) { geglu_backward(ctx, t[0], t[1], t[2], form); }};
}
Operation gelu(const Case& c, Gelu form = Gelu::kTanh) {
  return {form == Gelu::kErf ? "gelu_erf_forward" : "gelu_forward",
          {input("x", {c.rows, c.columns}), assigned("y", {c.rows, c.columns})},
          [=](Context& ctx, const std::vector<Tensor>& t) { gelu_forward(ctx, t[0], t[1], form); }};
}
Operation gelu_gradient(const Case& c, Gelu form = Gelu::kTanh) {
  return {form == Gelu::kErf ? "gelu_erf_backward" : "gelu_backward",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), assigned("dx", {c.rows, c.columns})},
          [=](Context& ctx, const std::vector<Tensor>& t) { gelu_backward(ctx, t[0], t[1], t[2], form); }};
}
std::vector<Operation> operations(const Case& c) {
  std::vector<Operation> all = {swiglu(c), swiglu_gradient(c)};
  for (const Gelu form : {Gelu::kTanh, Gelu::kErf})
    for (Operation& operation : std::vector{gelu(c, form), gelu_gradient(c, form), geglu(c, form), geglu_gradient(c, form)})
      all.push_back(std::move(operation));
  return all;
}

}  // namespace

TEST_CASE("activations: engines agree") {
  for (const Case& c : kCases) {
    for (const Operation& operation : operations(c)) check_engines(operation, kTolerance);
  }
  for (const Case& c : kWidths) {
    for (const Operation& operation : operations(c)) check_engines(operation, kTolerance);
  }
}

TEST_CASE("activations: in place") {
  const Case c = {33, 130};
  Operation gates = swiglu_gradient(c), units = gelu(c), slopes = gelu_gradient(c), exact = gelu(c, Gelu::kErf);
  gates.run = [](Context& ctx, const std::vector<Tensor>& t) {
    copy(ctx, t[1], t[2]);
    swiglu_backward(ctx, t[0], t[2], t[2]);
  };
  units.run = [](Context& ctx, const std::vector<Tensor>& t) {
    copy(ctx, t[0], t[1]);
    gelu_forward(ctx, t[1], t[1], Gelu::kTanh);
  };
  exact.run = [](Context& ctx, const std::vector<Tensor>& t) {
    copy(ctx, t[0], t[1]);
    gelu_forward(ctx, t[1], t[1], Gelu::kErf);
  };
  slopes.run = [](Context& ctx, const std::vector<Tensor>& t) {
    copy(ctx, t[0], t[2]);
    gelu_backward(ctx, t[2], t[1], t[2], Gelu::kTanh);
  };
  for (const Operation& operation : {gates, units, slopes, exact}) check_engines(operation, kTolerance);
  for (const Gelu form : {Gelu::kTanh, Gelu::kErf}) {
    Operation gelu_gates = geglu_gradient(c, form);
    gelu_gates.run = [=](Context& ctx, const std::vector<Tensor>& t) {
      copy(ctx, t[1], t[2]);
      geglu_backward(ctx, t[0], t[2], t[2], form);
    };
    check_engines(gelu_gates, kTolerance);
  }
}

TEST_CASE("activations: operands of different alignment") {
  constexpr Case kAligned = {3, 24};
  for (const Operation& operation : operations(kAligned)) {
    check_misaligned(operation, kTolerance);
  }
}

TEST_CASE("activations: gradients") {
  for (const Case& c : kCases) {
    check_gradients(swiglu(c), "y", swiglu_gradient(c), "dy", {{"gate_up", "dgate_up"}});
    for (const Gelu form : {Gelu::kTanh, Gelu::kErf}) {
      check_gradients(gelu(c, form), "y", gelu_gradient(c, form), "dy", {{"x", "dx"}});
      check_gradients(geglu(c, form), "y", geglu_gradient(c, form), "dy", {{"gate_up", "dgate_up"}});
    }
  }
}

TEST_CASE("activations: large inputs neither overflow nor give NaN") {
  const std::vector<double> far = {-1000, -90, -20, 20, 90, 1000};
  Operation gates = swiglu({6, 1}), gate_slopes = swiglu_gradient({6, 1});
  for (size_t i = 0; i < far.size(); ++i) {
    gates.operands[0].values[2 * i] = gate_slopes.operands[1].values[2 * i] = far[i];
    gates.operands[0].values[2 * i + 1] = gate_slopes.operands[1].values[2 * i + 1] = 1;
  }
  for (const Operation& operation : {gates, gate_slopes}) check_engines(operation, kTolerance);
  for (const Gelu form : {Gelu::kTanh, Gelu::kErf}) {
    Operation units = gelu({6, 1}, form), unit_slopes = gelu_gradient({6, 1}, form);
    units.operands[0].values = unit_slopes.operands[1].values = far;
    Operation gelu_gates = geglu({6, 1}, form), gelu_gate_slopes = geglu_gradient({6, 1}, form);
    gelu_gates.operands[0].values = gates.operands[0].values;
    gelu_gate_slopes.operands[1].values = gates.operands[0].values;
    for (const Operation& operation : {units, unit_slopes, gelu_gates, gelu_gate_slopes}) check_engines(operation, kTolerance);
  }
}

TEST_CASE("activations propagate a NaN to its own element only") {
  const Case c = {1, 40};
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int64_t place : {0, 33, 39}) {
        const auto check = [&](Operation operation, size_t index, size_t result) {
          INFO(operation.name << " " << name_of(dtype) << " on " << name_of(static_cast<Isa>(level)));
          operation.operands[index].values[static_cast<size_t>(place)] = std::nan("");
          const std::vector<double> y = run(operation, Device::kCpu, dtype, 1, Alignment::kElement, static_cast<Isa>(level))[result];
          for (int64_t i = 0; i < c.columns; ++i) CHECK(std::isnan(y[static_cast<size_t>(i)]) == (i == place));
        };
        check(swiglu(c), 0, 1);
        check(swiglu_gradient(c), 1, 2);
        for (const Gelu form : {Gelu::kTanh, Gelu::kErf}) {
          check(gelu(c, form), 0, 1);
          check(gelu_gradient(c, form), 1, 2);
          check(geglu(c, form), 0, 1);
        }
      }
    }
  }
}

TEST_CASE("activations match values computed by hand") {
  Operation gate = swiglu({1, 1});
  gate.operands[0].values = {2, 3};  // silu(2) * 3
  CHECK(run(gate, Device::kReference, DType::kF64)[1][0] == Approx(6 / (1 + std::exp(-2.0))).epsilon(1e-14));
  Operation gelu_gate = geglu({1, 1}, Gelu::kTanh);
  gelu_gate.operands[0].values = {-1, 3};  // three times GELU(-1)
  CHECK(normalised_error(run(gelu_gate, Device::kReference, DType::kF64)[1], {-0.4764240281751697}) < 1e-15);
  Operation unit = gelu({1, 3});
  unit.operands[0].values = {0, 1, -1};
  // Values of torch.nn.functional.gelu(x, approximate="tanh").
  CHECK(normalised_error(run(unit, Device::kReference, DType::kF64)[1], {0, 0.8411919906082768, -0.15880800939172324}) < 1e-15);
  Operation exact = gelu({1, 4}, Gelu::kErf), slope = gelu_gradient({1, 4}, Gelu::kErf);
  exact.operands[0].values = slope.operands[1].values = {0, 1, -1, -5};
  slope.operands[0].values = {1, 1, 1, 1};
  // x Phi(x) and Phi(x) + x phi(x), by the values of the normal distribution in tables of 15 digits.
  const double below_1 = 0.841344746068543, density_1 = 0.241970724519143, below_minus_5 = 2.86651571879194e-7, density_5 = 1.48671951473430e-6;
  CHECK(normalised_error(run(exact, Device::kReference, DType::kF64)[1], {0, below_1, below_1 - 1, -5 * below_minus_5}) < 1e-15);
  CHECK(normalised_error(run(slope, Device::kReference, DType::kF64)[2],
                         {0.5, below_1 + density_1, 1 - below_1 - density_1, below_minus_5 - 5 * density_5}) < 1e-15);
  const std::vector<double> fast = run(exact, Device::kCpu, DType::kF32)[1];
  CHECK(fast[3] == Approx(-5 * below_minus_5).epsilon(2e-6));  // small values are accurate by themselves
}
