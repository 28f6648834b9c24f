#pragma once
#include <span>
#include <vector>

#include "parallel/param.h"

namespace trireme {

/// RMSNorm, or LayerNorm when it has a bias, of the residual stream.   x, y [M',D].
struct Norm {
  Param* weight = nullptr;
  Param* bias = nullptr;  ///< null: RMSNorm
  double epsilon = 0;
  double offset = 0;  ///< RMSNorm: added to each weight

  struct Saved {
    Tensor mean, rstd;                               ///< [M']; mean only for LayerNorm
    Tensor dy;                                       ///< kept from backward_input for backward_weight
    Saved rows(int64_t begin, int64_t count) const;  ///< of rows [begin, begin + count)
  };
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  /// sum = a + b; returns its normalisation. One fused pass where the device supports it.
  Tensor forward_of_sum(Context& ctx, const Tensor& a, const Tensor& b, Tensor& sum, Saved& saved) const;
  /// Recomputes the result of forward from the same x, which is cheaper than keeping it until the backward.
  Tensor recompute_forward(Context& ctx, const Tensor& x, const Saved& saved) const;
  /// `residual`: the gradient of x that flows past the norm, added to the result; may be undefined.
  Tensor backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& residual, Saved& saved) const;
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const;
  /// Adds to `gradients` of the parameters params() instead of their own.
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved, std::span<const Tensor> gradients) const;
  std::vector<Param*> params() const;  ///< weight and, if there is one, bias
  /// Fused backward_input + backward_weight, bit-identical to calling both; keeps nothing.
  Tensor backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& residual, const Saved& saved) const;
  bool trainable() const;  ///< at least one of params() is

 private:
  static Tensor gradient_of(Context& ctx, Param& param, DType activations);
  void prepare(Context& ctx, const Tensor& x, Saved& saved) const;  ///< allocates the statistics
};

/// The norm of what a branch adds to the residual stream.   x, y [M',D]. Without a weight the block has none, and everything passes.
struct PostNorm {
  Norm norm{};

  struct Saved {
    Tensor x;  ///< the branch's result, before the norm
    Norm::Saved norm;
  };
  bool exists() const { return norm.weight != nullptr; }
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor backward_input(Context& ctx, const Tensor& dy, Saved& saved) const;
  Tensor backward(Context& ctx, const Tensor& dy, Saved& saved) const;  ///< fused, as Norm::backward; keeps nothing
};

/// QK norm: RMSNorm of each head in place, for `heads` heads of H elements from column `first_column` of packed queries, keys and values [M,C]. All
/// heads share the weight [H].
struct HeadNorm {
  Norm norm{};  ///< null weight: the model has no QK norm
  int64_t first_column = 0;
  int64_t heads = 0;      ///< on this rank
  int64_t head_size = 0;  ///< H

  struct Saved {
    Tensor x;  ///< [M*heads,H], input of the norm
    Norm::Saved norm;
  };
  void forward(Context& ctx, const Tensor& qkv, Saved& saved) const;
  void backward_input(Context& ctx, const Tensor& dqkv, Saved& saved) const;
  void backward(Context& ctx, const Tensor& dqkv, const Saved& saved) const;  ///< fused, as Norm::backward

 private:
  Tensor take(Context& ctx, const Tensor& packed) const;                     ///< a copy of the columns, [M*heads,H]
  void put(Context& ctx, const Tensor& values, const Tensor& packed) const;  ///< copies `values` to the columns
};

}  // namespace trireme
