#include "kernels/ops/matmul.h"

#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t rows, inputs, outputs;
};
constexpr Case kCases[] = {{0, 5, 3},     {1, 1, 1},     {3, 5, 7},     {7, 17, 3},  {2, 1, 130},
                           {33, 130, 65}, {129, 64, 31}, {5, 301, 257}, {6, 16, 24}, {40, 72, 64}};

// Sums of at most 301 fp32 products of normal numbers: sqrt(301) roundings of 6e-8 are about 1e-6 of the result.
constexpr double kTolerance = 2e-6;

constexpr bool kBitsDependOnThreads = true;

/// A library adds the bias to the product in fp32, another engine adds it to a product stored in bf16: another half unit in the last of 8 bits.
constexpr double kStoredProduct = 0x1p-8;

Operation forward(const Case& c) {
  return {"linear_forward",
          {input("x", {c.rows, c.inputs}), input("w", {c.outputs, c.inputs}), assigned("y", {c.rows, c.outputs})},
          [](Context& ctx, const std::vector<Tensor>& t) { linear_forward(ctx, t[0], t[1], {}, t[2]); },
          kBitsDependOnThreads};
}
Operation forward_with_bias(const Case& c) {
  return {"linear_forward with bias",
          {input("x", {c.rows, c.inputs}), input("w", {c.outputs, c.inputs}), input("bias", {c.outputs}), assigned("y", {c.rows, c.outputs})},
          [](Context& ctx, const std::vector<Tensor>& t) { linear_forward(ctx, t[0], t[1], t[2], t[3]); },
          kBitsDependOnThreads,
          kStoredProduct};
}
Operation forward_with_gelu(const Case& c) {
  return {"linear_gelu_forward",
          {input("x", {c.rows, c.inputs}), input("w", {c.outputs, c.inputs}), input("bias", {c.outputs}), assigned("hidden", {c.rows, c.outputs}),
           assigned("y", {c.rows, c.outputs})},
          [](Context& ctx, const std::vector<Tensor>& t) { linear_gelu_forward(ctx, t[0], t[1], t[2], t[3], t[4]); },
          kBitsDependOnThreads,
          3 * kStoredProduct};  // the product, then the sum with the bias; GELU' is at most 1.13
}
Operation backward_input(const Case& c) {
  return {"linear_backward_input",
          {input("dy", {c.rows, c.outputs}), input("w", {c.outputs, c.inputs}), assigned("dx", {c.rows, c.inputs})},
          [](Context& ctx, const std::vector<Tensor>& t) { linear_backward_input(ctx, t[0], t[1], t[2]); },
          kBitsDependOnThreads};
}
Operation backward_weight(const Case& c) {
  return {"linear_backward_weight",
          {input("dy", {c.rows, c.outputs}), input("x", {c.rows, c.inputs}), wide(added_to("dw", {c.outputs, c.inputs}))},
          [](Context& ctx, const std::vector<Tensor>& t) { linear_backward_weight(ctx, t[0], t[1], t[2]); },
          kBitsDependOnThreads};
}
Operation first_backward_weight(const Case& c) {
  return {"linear_backward_weight without a sum",
          {input("dy", {c.rows, c.outputs}), input("x", {c.rows, c.inputs}), wide(assigned("dw", {c.outputs, c.inputs}))},
          [](Context& ctx, const std::vector<Tensor>& t) { linear_backward_weight(ctx, t[0], t[1], t[2], false); },
          kBitsDependOnThreads};
}
Operation bias(const Case& c) {
  return {"bias_forward",
          {input("bias", {c.outputs}), free_rows(added_to("y", {c.rows, c.outputs}))},
          [](Context& ctx, const std::vector<Tensor>& t) { bias_forward(ctx, t[0], t[1]); }};
}
Operation bias_gradient(const Case& c) {
  return {"bias_backward",
          {free_rows(input("dy", {c.rows, c.outputs})), wide(added_to("dbias", {c.outputs}))},
          [](Context& ctx, const std::vector<Tensor>& t) { bias_backward(ctx, t[0], t[1]); }};
}

}  // namespace

TEST_CASE("linear layer: engines agree") {
  for (const Case& c : kCases) {
    for (const Operation& operation : {forward(c), forward_with_bias(c), forward_with_gelu(c), backward_input(c), backward_weight(c),
                                       first_backward_weight(c), bias(c), bias_gradient(c)}) {
      check_engines(operation, kTolerance);
    }
  }
  check_engines(bias_gradient({300, 1, 200}), kTolerance);  // large enough for several threads
}

TEST_CASE("linear layer: the first weight gradient equals its sum with zeros") {
  for (const Case& c : kCases) {
    for (const Device device : devices()) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        INFO(c.rows << " x " << c.inputs << " x " << c.outputs << " in " << name_of(dtype) << " on " << static_cast<int>(device));
        Operation sum = backward_weight(c);
        sum.operands[2].values.assign(static_cast<size_t>(c.outputs * c.inputs), 0);
        CHECK((run(first_backward_weight(c), device, dtype)[2] == run(sum, device, dtype)[2]));
      }
    }
  }
}

TEST_CASE("linear layer: engines agree for operands that are packed or converted piece by piece") {
  // More outputs than are converted at once (1 Mi elements of 200 + 56), and not a multiple of a block. fp32 sums of 5003 products.
  const Case pieces{200, 56, 5003};
  for (const Operation& operation : {forward_with_bias(pieces), backward_input(pieces), backward_weight(pieces)})
    check_engines(operation, 4 * kTolerance);
  // Weight gradients around the number of outputs from which bf16 activations are packed, in sizes that are no multiple of a tile.
  for (const int64_t outputs : {255, 256, 259}) check_engines(backward_weight({33, 70, outputs}), kTolerance);
}

TEST_CASE("linear layer: gradients") {
  for (const Case& c : kCases) {
    check_gradients(forward(c), "y", backward_input(c), "dy", {{"x", "dx"}});
    check_gradients(forward(c), "y", backward_weight(c), "dy", {{"w", "dw"}});
    check_gradients(forward_with_bias(c), "y", backward_weight(c), "dy", {{"w", "dw"}});
    check_gradients(forward_with_bias(c), "y", bias_gradient(c), "dy", {{"bias", "dbias"}});
    check_gradients(bias(c), "y", bias_gradient(c), "dy", {{"bias", "dbias"}});
  }
}

TEST_CASE("a matrix product matches values computed by hand") {
  Operation product = forward({2, 3, 2});
  product.operands[0].values = {1, 2, 3, 4, 5, 6};
  product.operands[1].values = {1, 0, -1, 2, 1, 0};
  CHECK(run(product, Device::kReference, DType::kF64)[2] == std::vector<double>{-2, 4, -2, 13});
}
