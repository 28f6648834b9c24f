#pragma once
// The weight gradients of a layer as values: what each of its parameters is multiplied with, known after the input gradient. What W does with them, and
// what the clipping of samples does between I and W, are functions of these values, so a layer says once what its weights' gradients are.
#include <set>
#include <variant>
#include <vector>

#include "parallel/tensor/linear.h"
#include "parallel/tensor/sample_squares.h"
#include "trainer/model/norm.h"

namespace trireme {

/// dw = dy^T x of a linear layer, and of its adapters.
struct ProductGradient {
  const Linear* linear;
  Tensor x;   ///< as forward got it: of this rank's rows, if `linear` splits outputs
  Tensor dy;  ///< of all rows
};
/// The gradient of a norm's weight and bias, from the rows of x.
struct NormGradient {
  const Norm* norm;
  Tensor x;  ///< [M',D], or [M*heads,H]
  Norm::Saved saved;
  int64_t heads = 0;  ///< of a HeadNorm, over all rows; 0: the residual stream, of which this rank has its rows
};
/// Those of one layer, in the order in which W adds them. Tensors of other ranks' rows are gathered before the first is added.
using WeightGradients = std::vector<std::variant<ProductGradient, NormGradient>>;

/// W: adds them to the gradients of the parameters.
void add_weight_gradients(Context& ctx, const WeightGradients& gradients);

/// Adds the squares of what W would add, of each sample.
void add_sample_squares(Context& ctx, const WeightGradients& gradients, SampleSquares& squares);

/// Multiplies what W would add by each sample's factor, by way of what it reads. A tensor that several layers keep, like the gradient of parallel branches,
/// is multiplied once.
class SampleScaling {
 public:
  /// factors [B] f64, of `sequence` rows each; `first_row`: of the residual stream on this rank.
  SampleScaling(Context& ctx, int64_t sequence, int64_t first_row, const Tensor& factors)
      : ctx_(ctx), sequence_(sequence), first_row_(first_row), factors_(factors) {}
  void scale(const WeightGradients& gradients);

 private:
  void scale_rows(const Tensor& dy, int64_t per_sample, int64_t first_row);
  void scale_product(const ProductGradient& gradient);
  void scale_norm(const NormGradient& gradient);

  Context& ctx_;
  int64_t sequence_, first_row_;
  Tensor factors_;
  std::set<const void*> scaled_;
};

}  // namespace trireme
