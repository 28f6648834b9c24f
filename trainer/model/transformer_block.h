#pragma once
#include "trainer/model/attention.h"
#include "trainer/model/mlp.h"
#include "trainer/model/norm.h"

namespace trireme {

/// What a block computes again in its backward instead of keeping it. Norms and activation functions are always computed again. With S sequences, bytes an
/// element, GPT-2's proportions: kNone keeps 10 D a token, kSelective 9 D, kFull D.
/// Source: Chen et al. 2016, arXiv:1604.06174; Korthikanti et al. 2022, arXiv:2205.05198, section 5.
enum class Recompute : uint8_t {
  kNone,
  kSelective,  ///< attention, from queries, keys and values
  kFull,       ///< everything but its input, up to the last product of the forward, which no backward needs
};

/// x := x + drop(attention(norm(x))); x := x + drop(mlp(norm(x))).   x [M',D], M' = this rank's rows of the residual stream.
/// Communication: forward and backward cross the region four times each, and backward_weight gathers twice under sequence parallelism. kFull crosses
/// it again, for all of the forward but its last exit: one all-reduce, or two all-gathers and a reduce-scatter, so 2(t-1)/t or 3(t-1)/t * M*D*size
/// bytes per rank and micro-batch more. kSelective communicates nothing.
struct TransformerBlock {
  Norm attention_norm;
  Attention attention;
  Norm mlp_norm;
  Mlp mlp;
  std::string name;  ///< "blocks.3": names its dropout masks
  Recompute recompute = Recompute::kNone;

  struct Saved {
    Tensor x;  ///< the block's input
    Norm::Saved attention_norm;
    Attention::Saved attention;
    Tensor attention_residual;  ///< the residual stream between the branches
    Norm::Saved mlp_norm;
    Mlp::Saved mlp;
    Tensor attention_input, mlp_input;  ///< x and attention_residual normalised, made again in backward_input and kept for backward_weight
  };
  Tensor forward(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const;
  /// What was not kept is made again here, from the same values in the same order and with the same dropout masks: the same bits. backward_weight uses
  /// it too.
  Tensor backward_input(Context& ctx, const ForwardContext& pass, const Tensor& dy, Saved& saved) const;
  void backward_weight(Context& ctx, Saved& saved) const;
  /// Both, one branch after the other: what the MLP keeps for its weight gradients is gone before the attention's backward.
  Tensor backward(Context& ctx, const ForwardContext& pass, Tensor dy, Saved& saved) const;

 private:
  /// The attention's branch; the MLP's normalised input.
  Tensor forward_to_mlp(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const;
  void recompute_forward(Context& ctx, const ForwardContext& pass, Saved& saved) const;  ///< of kFull
};

}  // namespace trireme
