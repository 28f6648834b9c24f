// The norm of query and key heads (trainer/model/norm.h). Its operations have their own tests; these tests cover the composition.
#include <cmath>

#include "kernels/ops/elementwise.h"
#include "tests/kernels/harness.h"
#include "tests/support/catch.h"
#include "trainer/model/norm.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t rows, first_column, heads, head_size, tail;
};
constexpr Case kCases[] = {{1, 0, 1, 2, 0}, {5, 0, 3, 6, 13}, {4, 18, 2, 6, 12}, {3, 7, 5, 10, 1}};
constexpr Case kModels[] = {{9, 0, 6, 64, 256}, {9, 384, 2, 64, 128}, {40, 1024, 8, 128, 1024}};
constexpr double kEpsilon = 1e-6;

// As in norm_test.cpp.
constexpr double kTolerance = 4e-6;

int64_t columns_of(const Case& c) { return c.first_column + c.heads * c.head_size + c.tail; }

HeadNorm norm_of(const Case& c, Param& weight) { return {{&weight, nullptr, kEpsilon}, c.first_column, c.heads, c.head_size}; }

Operation forward(const Case& c) {
  return {
      "head norm", {free_rows(in_place("qkv", {c.rows, columns_of(c)})), input("w", {c.head_size})}, [c](Context& ctx, const std::vector<Tensor>& t) {
        Param weight;
        weight.value = t[1];
        HeadNorm::Saved saved;
        norm_of(c, weight).forward(ctx, t[0], saved);
      }};
}

Operation backward(const Case& c) {
  Operand dqkv = in_place("dqkv", {c.rows, columns_of(c)});
  dqkv.floor = 1;  // a head of few elements may cancel
  return {"head norm, backward",
          {input("qkv before", {c.rows, columns_of(c)}, forward(c).operand("qkv").values), input("w", {c.head_size}), dqkv,
           wide(added_to("dw", {c.head_size}))},
          [c](Context& ctx, const std::vector<Tensor>& t) {
            Param weight;
            weight.value = t[1];
            weight.grad = t[3];
            weight.specs.emplace_back();  // trainable
            const HeadNorm norm = norm_of(c, weight);
            const Tensor qkv = Tensor::empty(ctx, t[0].shape(), t[0].dtype(), MemoryCategory::kWorkspace);
            copy(ctx, t[0], qkv);
            HeadNorm::Saved saved;
            norm.forward(ctx, qkv, saved);
            norm.backward_input(ctx, t[2], saved);
            norm.norm.backward_weight(ctx, saved.x, saved.norm);
          }};
}

}  // namespace

TEST_CASE("head norm: engines agree") {
  const auto check = [](const Case& c) {
    check_engines(forward(c), kTolerance);
    check_engines(backward(c), kTolerance);
  };
  for (const Case& c : kCases) check(c);
  for (const Case& c : kModels) check(c);
}

TEST_CASE("head norm: gradients of the input and of the weight that all heads share") {
  for (const Case& c : kCases) check_gradients(forward(c), "qkv", backward(c), "dqkv", {{"qkv", "dqkv"}, {"w", "dw"}});
  check_gradients(forward(kModels[1]), "qkv", backward(kModels[1]), "dqkv", {{"qkv", "dqkv"}, {"w", "dw"}});
}

TEST_CASE("head norm: each head is divided by its own root mean square, and other columns are unchanged") {
  Operation operation = forward({1, 1, 2, 2, 1});
  operation.operands[0].values = {9, 3, 4, 0, -2, 7};
  operation.operands[1].values = {10, 1};
  for (const Device device : devices()) {
    const std::vector<double> after = run(operation, device, DType::kF32)[0];
    // 3 and 4 have the mean square 12.5, 0 and -2 have 2; weights are indexed by the position in the head.
    CHECK(normalised_error(after, {9, 30 / std::sqrt(12.5), 4 / std::sqrt(12.5), 0, -std::sqrt(2.0), 7}) < 1e-6);
  }
}
