#include "trainer/model/transformer_block.h"

#include <utility>

#include "kernels/ops/elementwise.h"

namespace trireme {
namespace {

/// The gradient that enters a residual branch: dy without dropout, else a masked copy, because dy also flows past the branch.
Tensor into_branch(Context& ctx, const ForwardContext& pass, const std::string& place, const Tensor& dy) {
  if (pass.dropout == 0) return dy;
  const Tensor dropped = Tensor::empty(ctx, dy.shape(), dy.dtype(), MemoryCategory::kActivations);
  copy(ctx, dy, dropped);
  pass.drop(ctx, place, dropped);
  return dropped;
}

}  // namespace

Tensor TransformerBlock::kept(const Tensor& normalised, Tensor& in) const {
  if (keeps_norms_) in = normalised;
  return normalised;
}

TransformerBlock::BeforeMlp TransformerBlock::forward_to_mlp(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const {
  saved.x = x;
  const Tensor a = attention_post_norm.forward(
      ctx, attention.forward(ctx, pass, kept(attention_norm.forward(ctx, x, saved.attention_norm), saved.attention_input), saved.attention),
      saved.attention_post_norm);
  if (recompute == Recompute::kSelective) {
    saved.attention.out.reset();
    saved.attention.lse.reset();
  }
  pass.drop(ctx, name + ".attention", a);
  if (!is_parallel()) {
    const Tensor normalised = mlp_norm.forward_of_sum(ctx, x, a, saved.mlp_stream, saved.mlp_norm);
    return {saved.mlp_stream, kept(normalised, saved.mlp_input)};
  }
  add(ctx, x, a, a);
  saved.mlp_stream = x;
  return {a, kept(mlp_norm.forward(ctx, x, saved.mlp_norm), saved.mlp_input)};
}

Tensor TransformerBlock::forward(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const {
  BeforeMlp before = forward_to_mlp(ctx, pass, x, saved);
  const Tensor m = mlp_post_norm.forward(ctx, mlp.forward(ctx, std::exchange(before.mlp_input, Tensor()), saved.mlp), saved.mlp_post_norm);
  pass.drop(ctx, name + ".mlp", m);
  const Tensor y = is_parallel() ? before.h : Tensor::empty(ctx, x.shape(), x.dtype(), MemoryCategory::kActivations);
  add(ctx, before.h, m, y);
  if (recompute == Recompute::kFull) {
    saved = {};
    saved.x = x;
  }
  return y;
}

void TransformerBlock::recompute_forward(Context& ctx, const ForwardContext& pass, Saved& saved) const {
  if (recompute != Recompute::kFull) return;
  if (mlp_post_norm.exists()) {
    mlp_post_norm.forward(ctx, mlp.forward(ctx, forward_to_mlp(ctx, pass, saved.x, saved).mlp_input, saved.mlp), saved.mlp_post_norm);
    return;
  }
  if (!is_parallel()) return mlp.recompute_forward(ctx, forward_to_mlp(ctx, pass, saved.x, saved).mlp_input, saved.mlp);
  // No branch reads another's result, so attention's last product is not needed either.
  saved.mlp_stream = saved.x;
  attention.recompute_forward(ctx, pass, kept(attention_norm.forward(ctx, saved.x, saved.attention_norm), saved.attention_input), saved.attention);
  mlp.recompute_forward(ctx, kept(mlp_norm.forward(ctx, saved.x, saved.mlp_norm), saved.mlp_input), saved.mlp);
}

void TransformerBlock::recompute_mlp_input(Context& ctx, Saved& saved) const {
  if (!saved.mlp_input.defined()) saved.mlp_input = mlp_norm.recompute_forward(ctx, saved.mlp_stream, saved.mlp_norm);
}

void TransformerBlock::recompute_attention_input(Context& ctx, Saved& saved) const {
  if (!saved.attention_input.defined()) saved.attention_input = attention_norm.recompute_forward(ctx, saved.x, saved.attention_norm);
}

Tensor TransformerBlock::backward_input(Context& ctx, const ForwardContext& pass, const Tensor& dy, Saved& saved) const {
  recompute_forward(ctx, pass, saved);
  const Tensor dmlp =
      mlp.backward_input(ctx, mlp_post_norm.backward_input(ctx, into_branch(ctx, pass, name + ".mlp", dy), saved.mlp_post_norm), saved.mlp);
  recompute_mlp_input(ctx, saved);
  const Tensor dm = mlp_norm.backward_input(ctx, dmlp, saved.mlp_stream, dy, saved.mlp_norm);

  const Tensor& dh = is_parallel() ? dy : dm;
  const Tensor dbranch = attention_post_norm.backward_input(ctx, into_branch(ctx, pass, name + ".attention", dh), saved.attention_post_norm);
  const Tensor dattention = attention.backward_input(ctx, pass, dbranch, saved.attention);
  recompute_attention_input(ctx, saved);
  return attention_norm.backward_input(ctx, dattention, saved.x, dm, saved.attention_norm);
}

void TransformerBlock::weight_gradients(const Saved& saved, const std::function<void(const WeightGradients&)>& visit) const {
  const auto visit_post_norm = [&](const PostNorm& post, const PostNorm::Saved& of_post) {
    if (post.exists()) visit({NormGradient{&post.norm, of_post.x, of_post.norm}});
  };
  visit_post_norm(mlp_post_norm, saved.mlp_post_norm);
  visit(mlp.weight_gradients(saved.mlp_input, saved.mlp));
  visit({NormGradient{&mlp_norm, saved.mlp_stream, saved.mlp_norm}});
  visit_post_norm(attention_post_norm, saved.attention_post_norm);
  visit(attention.weight_gradients(saved.attention_input, saved.attention));
  visit({NormGradient{&attention_norm, saved.x, saved.attention_norm}});
}

Tensor TransformerBlock::backward(Context& ctx, const ForwardContext& pass, Tensor dy, Saved& saved) const {
  recompute_forward(ctx, pass, saved);
  recompute_mlp_input(ctx, saved);
  const Tensor dmlp =
      mlp.backward(ctx, saved.mlp_input, mlp_post_norm.backward(ctx, into_branch(ctx, pass, name + ".mlp", dy), saved.mlp_post_norm), saved.mlp);
  saved.mlp = {};
  saved.mlp_input.reset();
  const Tensor dm = mlp_norm.backward(ctx, dmlp, saved.mlp_stream, dy, saved.mlp_norm);
  saved.mlp_norm = {};
  saved.mlp_stream.reset();
  Tensor dh = is_parallel() ? dy : dm;
  dy.reset();

  recompute_attention_input(ctx, saved);
  const Tensor dbranch = attention_post_norm.backward(ctx, into_branch(ctx, pass, name + ".attention", dh), saved.attention_post_norm);
  dh.reset();
  const Tensor dattention = attention.backward(ctx, pass, saved.attention_input, dbranch, saved.attention);
  saved.attention = {};
  saved.attention_input.reset();
  const Tensor dx = attention_norm.backward(ctx, dattention, saved.x, dm, saved.attention_norm);
  saved = {};
  return dx;
}

}  // namespace trireme
