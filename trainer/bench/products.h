#pragma once
// The matrix products of a model by themselves: the ceiling a training step is held against.
#include <string>
#include <vector>

#include "trainer/bench/measure.h"
#include "trainer/config/config.h"

namespace trireme::bench {

/// One linear layer: y [rows, outputs] = x [rows, inputs] w^T.
struct Product {
  std::string name;
  int64_t rows = 0, inputs = 0, outputs = 0;
  int64_t layers = 1;  ///< how often a micro-batch meets it
  double flops() const { return 2.0 * static_cast<double>(rows) * static_cast<double>(inputs) * static_cast<double>(outputs); }
};

/// The linear layers of `model` (resolved) as one of `tensor_ranks` computes them: qkv, out, up, down, head.
std::vector<Product> products_of(const ModelConfig& model, int64_t rows, int tensor_ranks);

/// kernels/ops/matmul.h without a bias: a plain call of the library.
struct ProductTiming {
  Timing forward, backward_input, backward_weight;
  double seconds() const { return forward.median + backward_input.median + backward_weight.median; }
};
ProductTiming time_product(const Context& like, DType dtype, const Product& product, const Effort& effort);

/// FLOP/s of this rank on the three products of every layer, each as often as a micro-batch meets it, one after the other and nothing between.
double ceiling_of(const Context& like, DType dtype, const std::vector<Product>& products, const Effort& effort);

}  // namespace trireme::bench
