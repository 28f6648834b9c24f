#pragma once
#include <functional>
#include <string>

#include "trainer/model/attention.h"
#include "trainer/model/mlp.h"
#include "trainer/model/norm.h"
#include "trainer/model/weight_gradients.h"

namespace trireme {

/// What a block recomputes in its backward instead of keeping, besides norms and activation functions. Elements kept per token with GPT-2's
/// proportions: 10 D with kNone, 9 D with kSelective, D with kFull; if the results of norms and of the activation function are kept, 6 D more but
/// with kFull.
/// Source: Chen et al. 2016, arXiv:1604.06174; Korthikanti et al. 2022, arXiv:2205.05198, section 5.
enum class Recompute : uint8_t {
  kNone,
  kSelective,  ///< softmax attention, from the kept queries, keys and values
  kFull,       ///< everything from the block's input, except last products that no backward needs: the MLP's, and with parallel branches attention's.
               ///< Norms behind branches need them
};

/// y = h + drop(mlp(norm'(m))) with h = x + drop(attention(norm(x))); the MLP reads m = h, or m = x if residual is kParallel. Post-norms, if there are
/// any, normalise what attention and the MLP return.   x [M',D], M' = this rank's rows of the residual stream.
/// Communication: forward and backward cross the tensor-parallel region four times each; the weight gradients gather twice under sequence parallelism.
/// kFull repeats the forward's crossings but its last exit: one all-reduce, or two all-gathers and a reduce-scatter, which adds 2(t-1)/t or 3(t-1)/t *
/// M*D*size bytes per rank and micro-batch. With kParallel it repeats no exit: nothing, or two all-gathers of 2(t-1)/t * M*D*size bytes. With post-norms
/// it repeats all crossings.
/// kSelective adds no communication.
struct TransformerBlock {
  Norm attention_norm;
  Attention attention;
  PostNorm attention_post_norm;
  Norm mlp_norm;
  Mlp mlp;
  PostNorm mlp_post_norm;
  ResidualKind residual = ResidualKind::kSequential;
  std::string name;  ///< "blocks.3"; dropout masks depend on it
  Recompute recompute = Recompute::kNone;

  struct Saved {
    Tensor x;  ///< the block's input
    Norm::Saved attention_norm;
    Attention::Saved attention;
    PostNorm::Saved attention_post_norm;
    Tensor mlp_stream;  ///< m; with kParallel the same tensor as x
    Norm::Saved mlp_norm;
    Mlp::Saved mlp;
    PostNorm::Saved mlp_post_norm;
    Tensor attention_input, mlp_input;  ///< normalised x and m, kept from the forward or recomputed
  };
  Tensor forward(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const;
  /// Recomputes what was not kept, from the same values, in the same order, with the same dropout masks: bit-identical. The weight gradients reuse it.
  Tensor backward_input(Context& ctx, const ForwardContext& pass, const Tensor& dy, Saved& saved) const;
  /// Shows the weight gradients of each layer to `visit`, from the last layer to the first, after backward_input.
  void weight_gradients(const Saved& saved, const std::function<void(const WeightGradients&)>& visit) const;
  /// Fused backward_input and W, bit-identical to both one after the other, one branch after the other: what the MLP keeps for its weight gradients
  /// is freed before the attention's backward.
  Tensor backward(Context& ctx, const ForwardContext& pass, Tensor dy, Saved& saved) const;

  /// Whether results of norms and of the activation function are kept.
  void keep_elementwise(bool keep) { keeps_norms_ = mlp.keeps_activated = keep; }

 private:
  bool keeps_norms_ = false;

  /// Keeps the result of a norm in `in` if so configured.
  Tensor kept(const Tensor& normalised, Tensor& in) const;
  bool is_parallel() const { return residual == ResidualKind::kParallel; }
  /// Runs the attention branch and the norm of what the MLP reads.
  struct BeforeMlp {
    Tensor h;          ///< with kParallel a tensor that nothing else reads
    Tensor mlp_input;  ///< normalised m
  };
  BeforeMlp forward_to_mlp(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const;
  void recompute_forward(Context& ctx, const ForwardContext& pass, Saved& saved) const;  ///< only for kFull
  void recompute_mlp_input(Context& ctx, Saved& saved) const;                            ///< unless it was kept
  void recompute_attention_input(Context& ctx, Saved& saved) const;
};

}  // namespace trireme
