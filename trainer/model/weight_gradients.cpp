#include "trainer/model/weight_gradients.h"

#include <utility>

#include "kernels/core/operation_log.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/samples.h"

namespace trireme {
namespace {

/// Starts the gathers of all products of the layer, by place in the list.
std::vector<PendingRegionOp> gather_inputs(Context& ctx, const WeightGradients& gradients) {
  std::vector<PendingRegionOp> inputs;
  for (const auto& gradient : gradients) {
    const auto* const product = std::get_if<ProductGradient>(&gradient);
    inputs.push_back(product != nullptr ? product->linear->gather_input(ctx, product->x) : PendingRegionOp());
  }
  return inputs;
}

void add_squares(Context& ctx, const ProductGradient& gradient, PendingRegionOp x, SampleSquares& squares) {
  const Linear& linear = *gradient.linear;
  const LogLayer layer(ctx, linear.name);
  linear.weight_products(ctx, x.wait(ctx), gradient.dy,
                         [&](Param& weight, const Tensor& dy, const Tensor& read) { squares.add_product(ctx, weight, dy, read); });
  if (!linear.bias) return;
  squares.add_rows(ctx, squares.all_rows(), {linear.bias}, [&](int64_t begin, int64_t count, const std::vector<Tensor>& biases) {
    bias_backward(ctx, gradient.dy.rows(begin, count), biases.front());
  });
}

void add_squares(Context& ctx, const NormGradient& gradient, SampleSquares& squares) {
  const SampleSquares::Rows of_heads{gradient.x.dim(0), squares.sequence() * gradient.heads, 0};
  const SampleSquares::Rows rows = gradient.heads > 0 ? of_heads : squares.residual_rows();
  const Norm& norm = *gradient.norm;
  const std::vector<Param*> params = norm.params();
  squares.add_rows(ctx, rows, {params.begin(), params.end()}, [&](int64_t begin, int64_t count, const std::vector<Tensor>& weights) {
    norm.backward_weight(ctx, gradient.x.rows(begin, count), gradient.saved.rows(begin, count), weights);
  });
}

}  // namespace

void add_weight_gradients(Context& ctx, const WeightGradients& gradients) {
  std::vector<PendingRegionOp> inputs = gather_inputs(ctx, gradients);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (const auto* const product = std::get_if<ProductGradient>(&gradients[i])) {
      product->linear->backward_weight(ctx, std::move(inputs[i]), product->dy);
    } else {
      const auto& [norm, x, saved, unused] = std::get<NormGradient>(gradients[i]);
      norm->backward_weight(ctx, x, saved);
    }
  }
}

void add_sample_squares(Context& ctx, const WeightGradients& gradients, SampleSquares& squares) {
  std::vector<PendingRegionOp> inputs = gather_inputs(ctx, gradients);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (const auto* const product = std::get_if<ProductGradient>(&gradients[i]))
      add_squares(ctx, *product, std::move(inputs[i]), squares);
    else
      add_squares(ctx, std::get<NormGradient>(gradients[i]), squares);
  }
}

void SampleScaling::scale(const WeightGradients& gradients) {
  for (const auto& gradient : gradients) {
    const auto* const product = std::get_if<ProductGradient>(&gradient);
    product != nullptr ? scale_product(*product) : scale_norm(std::get<NormGradient>(gradient));
  }
}

void SampleScaling::scale_rows(const Tensor& dy, int64_t per_sample, int64_t first_row) {
  const bool is_new = ctx_.device == Device::kMeta || scaled_.insert(dy.raw()).second;  // on the meta device no tensor has an address
  if (is_new) scale_sample_rows(ctx_, dy, per_sample, first_row, factors_);
}

void SampleScaling::scale_product(const ProductGradient& gradient) {
  scale_rows(gradient.dy, sequence_, 0);
  clear_sample_rows(ctx_, gradient.x, sequence_, gradient.linear->split == LinearSplit::kOutputs ? first_row_ : 0, factors_);
}

void SampleScaling::scale_norm(const NormGradient& gradient) {
  const int64_t per_sample = gradient.heads > 0 ? sequence_ * gradient.heads : sequence_, first_row = gradient.heads > 0 ? 0 : first_row_;
  const Norm::Saved& saved = gradient.saved;
  scale_rows(saved.dy, per_sample, first_row);
  for (const Tensor& other : {gradient.x, saved.rstd, saved.mean})
    if (other.defined()) clear_sample_rows(ctx_, other, per_sample, first_row, factors_);
}

}  // namespace trireme
