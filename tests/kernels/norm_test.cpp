#include "kernels/ops/norm.h"

#include <cmath>

#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t rows, columns;
};
constexpr Case kCases[] = {{1, 1}, {3, 5}, {7, 17}, {33, 130}, {2, 257}, {129, 31}};
constexpr Case kManyRows = {301, 200};  // large enough for several threads
constexpr double kEpsilon = 1e-5;

// Statistics over at most 257 fp32 terms. Layer normalisation of a single column divides rounding errors by sqrt(epsilon), hence not tighter.
constexpr double kTolerance = 4e-6;

/// A row of one column is its own mean, so its dx cancels to nearly zero: errors count against the terms, which are of order one.
Operand activation_gradient(const Case& c) {
  Operand dx = assigned("dx", {c.rows, c.columns});
  dx.floor = 1;
  return dx;
}

Operation rmsnorm(const Case& c) {
  return {"rmsnorm_forward",
          {input("x", {c.rows, c.columns}), input("w", {c.columns}), assigned("y", {c.rows, c.columns}), assigned("rstd", {c.rows})},
          [](Context& ctx, const std::vector<Tensor>& t) { rmsnorm_forward(ctx, t[0], t[1], kEpsilon, t[2], t[3]); }};
}
Operation rmsnorm_input(const Case& c) {
  return {
      "rmsnorm_backward_input",
      {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("w", {c.columns}), input("rstd", {c.rows}), activation_gradient(c)},
      [](Context& ctx, const std::vector<Tensor>& t) { rmsnorm_backward_input(ctx, t[0], t[1], t[2], t[3], t[4]); }};
}
Operation rmsnorm_weight(const Case& c) {
  return {"rmsnorm_backward_weight",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("rstd", {c.rows}), added_to("dw", {c.columns})},
          [](Context& ctx, const std::vector<Tensor>& t) { rmsnorm_backward_weight(ctx, t[0], t[1], t[2], t[3]); }};
}
Operation layernorm(const Case& c) {
  return {"layernorm_forward",
          {input("x", {c.rows, c.columns}), input("w", {c.columns}), input("b", {c.columns}), assigned("y", {c.rows, c.columns}),
           assigned("mean", {c.rows}), assigned("rstd", {c.rows})},
          [](Context& ctx, const std::vector<Tensor>& t) { layernorm_forward(ctx, t[0], t[1], t[2], kEpsilon, t[3], t[4], t[5]); }};
}
Operation layernorm_input(const Case& c) {
  return {"layernorm_backward_input",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("w", {c.columns}), input("mean", {c.rows}),
           input("rstd", {c.rows}), activation_gradient(c)},
          [](Context& ctx, const std::vector<Tensor>& t) { layernorm_backward_input(ctx, t[0], t[1], t[2], t[3], t[4], t[5]); }};
}
Operation layernorm_weight(const Case& c) {
  return {"layernorm_backward_weight",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("mean", {c.rows}), input("rstd", {c.rows}),
           added_to("dw", {c.columns}), added_to("db", {c.columns})},
          [](Context& ctx, const std::vector<Tensor>& t) { layernorm_backward_weight(ctx, t[0], t[1], t[2], t[3], t[4], t[5]); }};
}

void check_case(const Case& c) {
  check_engines(rmsnorm(c), kTolerance);
  check_engines(following(rmsnorm_input(c), rmsnorm(c)), kTolerance);
  check_engines(following(rmsnorm_weight(c), rmsnorm(c)), kTolerance);
  check_engines(layernorm(c), kTolerance);
  check_engines(following(layernorm_input(c), layernorm(c)), kTolerance);
  check_engines(following(layernorm_weight(c), layernorm(c)), kTolerance);
}

}  // namespace

TEST_CASE("normalisations: engines agree") {
  for (const Case& c : kCases) check_case(c);
  check_case(kManyRows);
}

TEST_CASE("normalisations: gradients") {
  for (const Case& c : kCases) {
    if (c.columns == 1) continue;  // near x = 0 one column bends within the step of the difference
    check_gradients(rmsnorm(c), "y", rmsnorm_input(c), "dy", {{"x", "dx"}});
    check_gradients(rmsnorm(c), "y", rmsnorm_weight(c), "dy", {{"w", "dw"}});
    check_gradients(layernorm(c), "y", layernorm_input(c), "dy", {{"x", "dx"}});
    check_gradients(layernorm(c), "y", layernorm_weight(c), "dy", {{"w", "dw"}, {"b", "db"}});
  }
}

TEST_CASE("a normalised row by hand") {
  Operation operation = layernorm({1, 2});
  operation.operands[0].values = {1, 5};  // mean 3, variance 4
  operation.operands[1].values = {1, 10};
  operation.operands[2].values = {0.5, 0};
  const Values values = run(operation, Device::kReference, DType::kF64);
  CHECK(normalised_error(values[3], {-0.5, 10}) < 1e-5);  // epsilon moves the sixth digit
  CHECK(values[4] == std::vector<double>{3});
  CHECK(values[5][0] == Approx(1 / std::sqrt(4 + kEpsilon)).epsilon(1e-14));
}
