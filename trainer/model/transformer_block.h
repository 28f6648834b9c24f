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
    Tensor x, attention_input;  ///< the block's input, normalised
    Norm::Saved attention_norm;
    Attention::Saved attention;
    Tensor middle, mlp_input;  ///< the residual stream between the branches, normalised
    Norm::Saved mlp_norm;
    Mlp::Saved mlp;
  };
  Tensor forward(Context& ctx, const Pass& pass, const Tensor& x, Saved& saved) const;
  Tensor backward_input(Context& ctx, const Pass& pass, const Tensor& dy, Saved& saved) const;
  void backward_weight(Context& ctx, const Saved& saved) const;
};

}  // namespace trireme
