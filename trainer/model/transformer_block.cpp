#include "trainer/model/transformer_block.h"

#include "kernels/ops/elementwise.h"

namespace trireme {
namespace {

/// The gradient that enters a residual branch: dy itself where nothing is dropped, for dy also flows past the branch.
Tensor into_branch(Context& ctx, const Pass& pass, const std::string& place, const Tensor& dy) {
  if (pass.dropout == 0) return dy;
  const Tensor dropped = Tensor::empty(ctx, dy.shape(), dy.dtype(), MemoryCategory::kActivations);
  copy(ctx, dy, dropped);
  pass.drop(ctx, place, dropped);
  return dropped;
}

}  // namespace

Tensor TransformerBlock::forward(Context& ctx, const Pass& pass, const Tensor& x, Saved& saved) const {
  saved.x = x;
  const Tensor a = attention.forward(ctx, pass, attention_norm.forward(ctx, x, saved.attention_norm), saved.attention);
  pass.drop(ctx, name + ".attention", a);
  const Tensor m = mlp.forward(ctx, mlp_norm.forward_of_sum(ctx, x, a, saved.middle, saved.mlp_norm), saved.mlp);
  pass.drop(ctx, name + ".mlp", m);
  const Tensor y = Tensor::empty(ctx, x.shape(), x.dtype(), MemoryCategory::kActivations);
  add(ctx, saved.middle, m, y);
  return y;
}

Tensor TransformerBlock::backward_mlp_input(Context& ctx, const Pass& pass, const Tensor& dy, Saved& saved) const {
  const Tensor dmlp = mlp.backward_input(ctx, into_branch(ctx, pass, name + ".mlp", dy), saved.mlp);
  saved.mlp_input = mlp_norm.forward_again(ctx, saved.middle, saved.mlp_norm);
  return mlp_norm.backward_input(ctx, dmlp, saved.middle, dy, saved.mlp_norm);
}

void TransformerBlock::backward_mlp_weight(Context& ctx, Saved& saved) const {
  mlp.backward_weight(ctx, saved.mlp_input, saved.mlp);
  mlp_norm.backward_weight(ctx, saved.middle, saved.mlp_norm);
  saved.mlp = {};
  saved.mlp_norm = {};
  saved.middle.reset();
  saved.mlp_input.reset();
}

Tensor TransformerBlock::backward_attention_input(Context& ctx, const Pass& pass, const Tensor& dmiddle, Saved& saved) const {
  const Tensor dattention = attention.backward_input(ctx, pass, into_branch(ctx, pass, name + ".attention", dmiddle), saved.attention);
  saved.attention_input = attention_norm.forward_again(ctx, saved.x, saved.attention_norm);
  return attention_norm.backward_input(ctx, dattention, saved.x, dmiddle, saved.attention_norm);
}

void TransformerBlock::backward_attention_weight(Context& ctx, Saved& saved) const {
  attention.backward_weight(ctx, saved.attention_input, saved.attention);
  attention_norm.backward_weight(ctx, saved.x, saved.attention_norm);
  saved.attention = {};
  saved.attention_norm = {};
  saved.x.reset();
  saved.attention_input.reset();
}

Tensor TransformerBlock::backward_input(Context& ctx, const Pass& pass, const Tensor& dy, Saved& saved) const {
  return backward_attention_input(ctx, pass, backward_mlp_input(ctx, pass, dy, saved), saved);
}

void TransformerBlock::backward_weight(Context& ctx, Saved& saved) const {
  backward_mlp_weight(ctx, saved);
  backward_attention_weight(ctx, saved);
}

Tensor TransformerBlock::backward(Context& ctx, const Pass& pass, Tensor dy, Saved& saved) const {
  const Tensor dmiddle = backward_mlp_input(ctx, pass, dy, saved);
  backward_mlp_weight(ctx, saved);
  dy.reset();
  const Tensor dx = backward_attention_input(ctx, pass, dmiddle, saved);
  backward_attention_weight(ctx, saved);
  return dx;
}

}  // namespace trireme
