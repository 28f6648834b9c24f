#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "parallel/param.h"
#include "parallel/tensor/region.h"

namespace trireme {

/// Squared norms of the gradients of the single samples of a micro-batch. Layers add the squares of their parameters between the input gradient and the
/// weight gradient, from the activations and gradients that the weight gradient will read. No sample's gradient of the whole model exists at any time.
///
/// For a product dw = dy^T x with T rows of a sample, |dw|^2 = sum over rows t, u of (x_t . x_u)(dy_t . dy_u). add_product() uses it where it takes fewer
/// operations than dw itself, T (D + F) < D F, in fp32 and fp64. Otherwise it computes dw of one sample at a time, in fp32.
///
/// Memory: max(2 T^2, D F) elements; B elements for each element of a parameter whose gradient is partial over tensor ranks (norms under sequence
/// parallelism, one matrix of each adapter), because such gradients must be summed before they are squared.
/// Communication: `finish` all-reduces these over `tensor`: 2 (t-1)/t * B * n * 4 bytes for n such elements (8 bytes in fp64).
/// Sources: Li et al. 2022, arXiv:2110.05679, section 4; Bu et al. 2022, arXiv:2210.00038 (one backward).
class SampleSquares {
 public:
  /// `rows` = samples * sequence rows of the micro-batch, of which this rank has region.local_rows(rows) of the residual stream.
  /// `activations`: dtype of activations.
  SampleSquares(Context& ctx, const Region& region, int64_t samples, int64_t sequence, DType activations);

  int64_t samples() const { return squares_.dim(0); }
  int64_t sequence() const { return sequence_; }
  /// First row of the residual stream on this rank.
  int64_t first_row() const { return region_->first_row(samples() * sequence_); }
  /// [samples] f64: sum over what this rank counts. An element of the model is counted by one rank of a tensor group and pipeline.
  const Tensor& values() const { return squares_; }
  Tensor value(int64_t sample) const { return squares_.flat(sample, 1); }

  /// Adds |dw|^2 of the trainable weight dw = dy^T x.   dy [M,F], x [M,D]: all rows of the micro-batch.
  void add_product(Context& ctx, const Param& weight, const Tensor& dy, const Tensor& x);

  /// The rows of a tensor that are on this rank, `per_sample` for each sample, from row `first` of the micro-batch on.
  struct Rows {
    int64_t count = 0;
    int64_t per_sample = 1;
    int64_t first = 0;
  };
  Rows all_rows() const { return {samples() * sequence_, sequence_, 0}; }
  Rows residual_rows() const { return {region_->local_rows(samples() * sequence_), sequence_, first_row()}; }
  /// Adds the squares of the gradients that `add` adds from rows [begin, begin + count) of such a tensor to gradients of these parameters, in order.
  void add_rows(Context& ctx, const Rows& rows, const std::vector<const Param*>& params,
                const std::function<void(int64_t begin, int64_t count, const std::vector<Tensor>& gradients)>& add);

  /// Adds what is partial over tensor ranks. Collective over `tensor`.
  void finish(Context& ctx);

 private:
  /// Gradients [samples, elements] of a parameter, of which this rank has a part of the sum.
  struct PartialGradients {
    const Param* param;
    Tensor values;
  };
  const Region* region_;
  int64_t sequence_;
  DType gradient_;
  Tensor squares_;
  std::vector<PartialGradients> partial_;
};

}  // namespace trireme
