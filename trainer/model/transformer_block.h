#pragma once
#include "trainer/model/attention.h"
#include "trainer/model/mlp.h"
#include "trainer/model/norm.h"

namespace trireme {

/// x := x + drop(attention(norm(x))); x := x + drop(mlp(norm(x))).   x [M',D], M' = this rank's rows of the residual stream.
struct TransformerBlock {
  Norm attention_norm;
  Attention attention;
  Norm mlp_norm;
  Mlp mlp;
  std::string name;  ///< "blocks.3": names its dropout masks

  struct Saved {
    Tensor x;  ///< the block's input
    Norm::Saved attention_norm;
    Attention::Saved attention;
    Tensor middle;  ///< the residual stream between the branches
    Norm::Saved mlp_norm;
    Mlp::Saved mlp;
    Tensor attention_input, mlp_input;  ///< x and middle normalised, made again in backward_input and kept for backward_weight
  };
  Tensor forward(Context& ctx, const Pass& pass, const Tensor& x, Saved& saved) const;
  Tensor backward_input(Context& ctx, const Pass& pass, const Tensor& dy, Saved& saved) const;
  void backward_weight(Context& ctx, Saved& saved) const;
  /// Both, one branch after the other: what the MLP keeps for its weight gradients is gone before the attention's backward.
  Tensor backward(Context& ctx, const Pass& pass, Tensor dy, Saved& saved) const;

 private:
  Tensor backward_mlp_input(Context& ctx, const Pass& pass, const Tensor& dy, Saved& saved) const;
  void backward_mlp_weight(Context& ctx, Saved& saved) const;
  Tensor backward_attention_input(Context& ctx, const Pass& pass, const Tensor& dmiddle, Saved& saved) const;
  void backward_attention_weight(Context& ctx, Saved& saved) const;
};

}  // namespace trireme
