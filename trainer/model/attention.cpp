#include "trainer/model/attention.h"

#include <algorithm>
#include <utility>

#include "kernels/ops/columns.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/samples.h"

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
  PendingRegionOp gathered = output.gather(ctx, dy);
  Tensor packed = normalised(ctx, saved);
  if (has_norms()) rotate(ctx, pass, rope_forward, packed);
  if (!saved.out.defined()) attend(ctx, pass, packed, saved);
  const auto [dout, dy_all] = output.backward_input(ctx, std::move(gathered));
  saved.dy_all = dy_all;
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
  return qkv.backward_input(ctx, saved.dqkv);
}

void Attention::backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const {
  PendingRegionOp all = qkv.gather(ctx, x);
  output.backward_weight(ctx, saved.out, saved.dy_all);
  if (has_norms()) {
    query_norm.backward_weight(ctx, saved.query_norm);
    key_norm.backward_weight(ctx, saved.key_norm);
  }
  qkv.backward_weight(ctx, std::move(all), saved.dqkv);
}

void Attention::add_sample_squares(Context& ctx, const Tensor& x, const Saved& saved, SampleSquares& squares) const {
  PendingRegionOp all = qkv.gather(ctx, x);
  output.add_sample_squares(ctx, saved.out, saved.dy_all, squares);
  if (has_norms()) {
    query_norm.add_sample_squares(ctx, saved.query_norm, squares);
    key_norm.add_sample_squares(ctx, saved.key_norm, squares);
  }
  qkv.add_sample_squares(ctx, std::move(all), saved.dqkv, squares);
}

void Attention::scale_samples(Context& ctx, int64_t sequence, const Tensor& factors, bool scaled, const Saved& saved) const {
  if (!scaled) scale_sample_rows(ctx, saved.dy_all, sequence, 0, factors);
  scale_sample_rows(ctx, saved.dqkv, sequence, 0, factors);
  clear_sample_rows(ctx, saved.out, sequence, 0, factors);
  if (!has_norms()) return;
  query_norm.scale_samples(ctx, sequence, factors, saved.query_norm);
  key_norm.scale_samples(ctx, sequence, factors, saved.key_norm);
}

Tensor Attention::backward(Context& ctx, const ForwardContext& pass, const Tensor& x, const Tensor& dy, Saved& saved) const {
  backward_to_qkv(ctx, pass, dy, saved);
  if (has_norms()) {
    query_norm.backward(ctx, saved.dqkv, saved.query_norm);
    key_norm.backward(ctx, saved.dqkv, saved.key_norm);
  }
  PendingRegionOp dx = qkv.backward(ctx, x, saved.dqkv);
  output.backward_weight(ctx, saved.out, saved.dy_all);
  return dx.wait(ctx);
}

}  // namespace trireme
