#include "trainer/bench/products.h"

#include <algorithm>
#include <tuple>

#include "kernels/ops/matmul.h"
#include "trainer/model/part_profile.h"

namespace trireme::bench {

std::vector<Product> products_of(const ModelConfig& model, int64_t rows, int tensor_ranks) {
  PartProfiles profiles(model);
  std::vector<Product> products;
  for (const Part& part : profiles.parts())
    for (const OperationRecord& operation :
         profiles.of(part, {.tensor = tensor_ranks, .sequences = rows, .length = 1, .logits_chunk = rows}).evaluation.operations) {
      if (operation.kind != OperationKind::kProduct) continue;
      const Product product{operation.layer, operation.m, operation.k, operation.n, 1};
      const auto known = std::ranges::find_if(products, [&](const Product& other) {
        return std::tie(other.name, other.rows, other.inputs, other.outputs) == std::tie(product.name, product.rows, product.inputs, product.outputs);
      });
      if (known == products.end()) {
        products.push_back(product);
      } else {
        ++known->layers;
      }
    }
  return products;
}

ProductTiming time_product(const Context& like, DType dtype, const Product& product, const Effort& effort) {
  Workbench bench(like);
  Context& ctx = bench.ctx();
  const Tensor x = random_tensor(ctx, {product.rows, product.inputs}, dtype, 1);
  const Tensor w = random_tensor(ctx, {product.outputs, product.inputs}, dtype, 2);
  const Tensor y = random_tensor(ctx, {product.rows, product.outputs}, dtype, 3);
  const Tensor dw = random_tensor(ctx, {product.outputs, product.inputs}, accumulator_of(dtype), 4);
  ProductTiming timing;
  // Backward first, with y as random dy; the forward then overwrites y. No call reads its own result.
  timing.backward_weight = measure(ctx, effort, [&](int64_t) { linear_backward_weight(ctx, y, x, dw); });
  const Tensor dx = random_tensor(ctx, {product.rows, product.inputs}, dtype, 5);
  timing.backward_input = measure(ctx, effort, [&](int64_t) { linear_backward_input(ctx, y, w, dx); });
  timing.forward = measure(ctx, effort, [&](int64_t) { linear_forward(ctx, x, w, Tensor(), y); });
  return timing;
}

double gemm_ceiling(const Context& like, DType dtype, const std::vector<Product>& products, const Effort& effort) {
  double flops = 0, seconds = 0;
  for (const Product& product : products) {
    const auto layers = static_cast<double>(product.layers);
    seconds += layers * time_product(like, dtype, product, effort).seconds();
    flops += layers * 3 * product.flops();
  }
  return flops / seconds;
}

}  // namespace trireme::bench
