#pragma once
// Matrix products of a model in isolation: the ceiling for a training step.
#include <string>
#include <vector>

#include "trainer/bench/measure.h"
#include "trainer/config/config.h"

namespace trireme::bench {

/// One linear layer: y [rows, outputs] = x [rows, inputs] w^T.
struct Product {
  std::string name;
  int64_t rows = 0, inputs = 0, outputs = 0;
  int64_t layers = 1;  ///< number of layers with this product
  double flops() const { return 2.0 * static_cast<double>(rows) * static_cast<double>(inputs) * static_cast<double>(outputs); }
};

/// The linear layers of `model` (resolved) on one of `tensor_ranks` tensor ranks: qkv, out, up, down, head.
std::vector<Product> products_of(const ModelConfig& model, int64_t rows, int tensor_ranks);

/// Timings of kernels/ops/matmul.h without bias, i.e. plain library calls.
struct ProductTiming {
  Timing forward, backward_input, backward_weight;
  double seconds() const { return forward.median + backward_input.median + backward_weight.median; }
};
ProductTiming time_product(const Context& like, DType dtype, const Product& product, const Effort& effort);

/// FLOP/s of this rank on the three products (forward, dx, dw) of every layer of a micro-batch, with nothing else in between.
double gemm_ceiling(const Context& like, DType dtype, const std::vector<Product>& products, const Effort& effort);

}  // namespace trireme::bench
