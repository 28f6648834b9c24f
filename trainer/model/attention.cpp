#include "trainer/model/attention.h"

#include <algorithm>
#include <utility>

#include "kernels/ops/columns.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/rope.h"

namespace trireme {

Tensor Attention::normalised(Context& ctx, Saved& saved) const {
  if (!has_norms()) return saved.qkv;
  const Tensor copied = Tensor::empty(ctx, saved.qkv.shape(), saved.qkv.dtype(), MemoryCategory::kActivations);
  copy(ctx, saved.qkv, copied);
  query_norm.forward(ctx, copied, saved.query_norm);
  key_norm.forward(ctx, copied, saved.key_norm);
  return copied;
}

void Attention::rotate(Context& ctx, const ForwardContext& pass,
                       void (*turn)(Context&, const Tensor&, int64_t, int64_t, const Tensor&, const Documents&), const Tensor& packed) const {
  if (rope.defined()) turn(ctx, rope.rows(pass.position, pass.sequence), heads + kv_heads, head_size, packed, pass.documents);
}

void Attention::remember(Context& ctx, const KeyValueCache& cache, const Tensor& packed, int64_t position) const {
  const int64_t columns = kv_heads * head_size, keys = heads * head_size, room = cache.keys.dim(0), rows = packed.dim(0);
  for (int64_t row = std::max<int64_t>(0, rows - room), count = 0; row < rows; row += count) {
    const int64_t slot = (position + row) % room;
    count = std::min(rows - row, room - slot);  // up to the end of the ring buffer
    copy_columns(ctx, packed.rows(row, count), keys, cache.keys.rows(slot, count), 0, columns);
    copy_columns(ctx, packed.rows(row, count), keys + columns, cache.values.rows(slot, count), 0, columns);
  }
}

void Attention::decode(Context& ctx, const ForwardContext& pass, const Tensor& packed, const Tensor& out) const {
  // Writing several tokens into a ring buffer no larger than the window would overwrite keys that the first of them still attends to.
  const int64_t room = pass.cache->keys.dim(0), at_once = pass.position + pass.rows <= room ? pass.rows : 1;
  for (int64_t row = 0; row < pass.rows; row += at_once) {
    remember(ctx, *pass.cache, packed.rows(row, at_once), pass.position + row);
    attention_decode(ctx, packed.rows(row, at_once), pass.cache->keys, pass.cache->values, pass.position + row, shape(1, at_once),
                     out.rows(row, at_once));
  }
}

void Attention::attend(Context& ctx, const ForwardContext& pass, const Tensor& packed, Saved& saved) const {
  saved.out = Tensor::empty(ctx, {pass.rows, heads * head_size}, packed.dtype(), MemoryCategory::kActivations);
  if (pass.position > 0) return decode(ctx, pass, packed, saved.out);
  if (pass.cache != nullptr) remember(ctx, *pass.cache, packed, 0);
  const AttentionShape whole = shape(pass);
  saved.lse = Tensor::empty(ctx, {whole.batch, heads, whole.sequence}, accumulator_of(packed.dtype()), MemoryCategory::kActivations);
  attention_forward(ctx, packed, whole, saved.out, saved.lse, pass.documents);
}

Tensor Attention::forward(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const {
  recompute_forward(ctx, pass, x, saved);
  return output.forward(ctx, saved.out);
}

void Attention::recompute_forward(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const {
  saved.qkv = qkv.forward(ctx, x);
  const Tensor packed = normalised(ctx, saved);
  saved.query_norm = {};  // recomputed in the backward
  saved.key_norm = {};
  rotate(ctx, pass, rope_forward, packed);
  attend(ctx, pass, packed, saved);
}

void Attention::backward_to_qkv(Context& ctx, const ForwardContext& pass, const Tensor& dy, Saved& saved) const {
  PendingRegionOp gathered = output.gather_gradient(ctx, dy);
  Tensor packed = normalised(ctx, saved);
  if (has_norms()) rotate(ctx, pass, rope_forward, packed);
  if (!saved.out.defined()) attend(ctx, pass, packed, saved);
  saved.dy_all = gathered.wait(ctx);
  const Tensor dout = output.backward_input(ctx, saved.dy_all).wait(ctx);
  saved.dqkv = Tensor::empty(ctx, saved.qkv.shape(), dy.dtype(), MemoryCategory::kActivations);
  attention_backward(ctx, dout, packed, saved.out, saved.lse, shape(pass), saved.dqkv, pass.documents);
  saved.lse.reset();
  packed.reset();
  saved.qkv.reset();
  rotate(ctx, pass, rope_backward, saved.dqkv);
}

Tensor Attention::backward_input(Context& ctx, const ForwardContext& pass, const Tensor& dy, Saved& saved) const {
  backward_to_qkv(ctx, pass, dy, saved);
  if (has_norms()) {
    query_norm.backward_input(ctx, saved.dqkv, saved.query_norm);
    key_norm.backward_input(ctx, saved.dqkv, saved.key_norm);
  }
  return qkv.backward_input(ctx, saved.dqkv).wait(ctx);
}

WeightGradients Attention::weight_gradients(const Tensor& x, const Saved& saved) const {
  WeightGradients gradients{ProductGradient{&output, saved.out, saved.dy_all}};
  if (has_norms()) {
    gradients.push_back(NormGradient{&query_norm.norm, saved.query_norm.x, saved.query_norm.norm, query_norm.heads});
    gradients.push_back(NormGradient{&key_norm.norm, saved.key_norm.x, saved.key_norm.norm, key_norm.heads});
  }
  gradients.push_back(ProductGradient{&qkv, x, saved.dqkv});
  return gradients;
}

Tensor Attention::backward(Context& ctx, const ForwardContext& pass, const Tensor& x, const Tensor& dy, Saved& saved) const {
  backward_to_qkv(ctx, pass, dy, saved);
  if (has_norms()) {
    query_norm.backward(ctx, saved.dqkv, saved.query_norm);
    key_norm.backward(ctx, saved.dqkv, saved.key_norm);
  }
  PendingRegionOp all = qkv.gather_input(ctx, x);
  PendingRegionOp dx = qkv.backward_input(ctx, saved.dqkv);
  qkv.backward_weight(ctx, std::move(all), saved.dqkv);
  output.backward_weight(ctx, output.gather_input(ctx, saved.out), saved.dy_all);
  return dx.wait(ctx);
}

}  // namespace trireme
