#include "trainer/model/attention.h"

#include "kernels/ops/rope.h"

namespace trireme {

Tensor Attention::forward(Context& ctx, const Pass& pass, const Tensor& x, Saved& saved) const {
  const AttentionShape s = shape(pass);
  saved.qkv = qkv.forward(ctx, x);
  if (rope.defined()) rope_forward(ctx, rope.rows(0, s.sequence), heads + kv_heads, saved.qkv);
  saved.out = Tensor::empty(ctx, {pass.rows, heads * head_size}, x.dtype(), MemoryCategory::kActivations);
  saved.lse = Tensor::empty(ctx, {s.batch, heads, s.sequence}, accumulator_of(x.dtype()), MemoryCategory::kActivations);
  attention_forward(ctx, saved.qkv, s, saved.out, saved.lse);
  return output.forward(ctx, saved.out);
}

Tensor Attention::backward_input(Context& ctx, const Pass& pass, const Tensor& dy, Saved& saved) const {
  const AttentionShape s = shape(pass);
  const auto [dout, dy_all] = output.backward_input(ctx, dy);
  saved.dy_all = dy_all;
  saved.dqkv = Tensor::empty(ctx, saved.qkv.shape(), dy.dtype(), MemoryCategory::kActivations);
  attention_backward(ctx, dout, saved.qkv, saved.out, saved.lse, s, saved.dqkv);
  if (rope.defined()) rope_backward(ctx, rope.rows(0, s.sequence), heads + kv_heads, saved.dqkv);
  saved.qkv.reset();
  return qkv.backward_input(ctx, saved.dqkv);
}

void Attention::backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const {
  output.backward_weight(ctx, saved.out, saved.dy_all);
  qkv.backward_weight(ctx, x, saved.dqkv);
}

}  // namespace trireme
