// The bias as a separate operation of kernels/ops/matmul.h, for layers with a sum over ranks between product and bias.
#include "kernels/ops/matmul.h"
#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t rows, outputs;
};
// Row counts for one, two and many partial sums of the gradient.
constexpr Case kCases[] = {{0, 5}, {1, 1}, {3, 7}, {33, 8}, {60, 40}, {128, 64}, {129, 301}, {1000, 24}, {300, 2056}};

// Sums of at most 1000 fp32 numbers.
constexpr double kTolerance = 2e-6;

Operation forward(const Case& c) {
  return {"bias_forward",
          {free_rows(in_place("y", {c.rows, c.outputs})), input("bias", {c.outputs})},
          [](Context& ctx, const std::vector<Tensor>& t) { bias_forward(ctx, t[1], t[0]); }};
}
Operation backward(const Case& c) {
  return {"bias_backward",
          {free_rows(input("dy", {c.rows, c.outputs})), wide(added_to("dbias", {c.outputs}))},
          [](Context& ctx, const std::vector<Tensor>& t) { bias_backward(ctx, t[0], t[1]); }};
}

}  // namespace

TEST_CASE("bias: engines agree") {
  for (const Case& c : kCases) {
    check_engines(forward(c), kTolerance);
    check_engines(backward(c), kTolerance);
  }
}

TEST_CASE("bias: gradients") {
  for (const Case& c : {kCases[2], kCases[3], kCases[5]}) check_gradients(forward(c), "y", backward(c), "dy", {{"bias", "dbias"}});
}
