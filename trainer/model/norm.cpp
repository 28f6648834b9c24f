#include "trainer/model/norm.h"

#include "kernels/ops/columns.h"
#include "kernels/ops/norm.h"

namespace trireme {

void Norm::prepare(Context& ctx, const Tensor& x, Saved& saved) const {
  const auto statistic = [&] { return Tensor::empty(ctx, {x.dim(0)}, accumulator_of(x.dtype()), MemoryCategory::kActivations); };
  saved.rstd = statistic();
  if (bias) saved.mean = statistic();
}

Tensor Norm::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  prepare(ctx, x, saved);
  return recompute_forward(ctx, x, saved);
}

Tensor Norm::recompute_forward(Context& ctx, const Tensor& x, const Saved& saved) const {
  const Tensor y = Tensor::empty(ctx, x.shape(), x.dtype(), MemoryCategory::kActivations);
  if (bias) {
    layernorm_forward(ctx, x, weight->value, bias->value, epsilon, y, saved.mean, saved.rstd);
  } else {
    rmsnorm_forward(ctx, x, weight->value, epsilon, y, saved.rstd, offset);
  }
  return y;
}

Tensor Norm::forward_of_sum(Context& ctx, const Tensor& a, const Tensor& b, Tensor& sum, Saved& saved) const {
  sum = Tensor::empty(ctx, a.shape(), a.dtype(), MemoryCategory::kActivations);
  prepare(ctx, sum, saved);
  const Tensor y = Tensor::empty(ctx, a.shape(), a.dtype(), MemoryCategory::kActivations);
  if (bias) {
    add_layernorm_forward(ctx, a, b, weight->value, bias->value, epsilon, sum, y, saved.mean, saved.rstd);
  } else {
    add_rmsnorm_forward(ctx, a, b, weight->value, epsilon, sum, y, saved.rstd, offset);
  }
  return y;
}

Tensor Norm::backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& residual, Saved& saved) const {
  const Tensor dx = Tensor::empty(ctx, x.shape(), x.dtype(), MemoryCategory::kActivations);
  if (bias) {
    layernorm_backward_input(ctx, dy, x, weight->value, saved.mean, saved.rstd, residual, dx);
  } else {
    rmsnorm_backward_input(ctx, dy, x, weight->value, saved.rstd, residual, dx, offset);
  }
  saved.dy = dy;
  return dx;
}

std::vector<Param*> Norm::params() const { return bias ? std::vector{weight, bias} : std::vector{weight}; }

Norm::Saved Norm::Saved::rows(int64_t begin, int64_t count) const {
  return {mean.defined() ? mean.rows(begin, count) : Tensor(), rstd.rows(begin, count), dy.rows(begin, count)};
}

void Norm::backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const {
  if (!trainable()) return;
  std::vector<Tensor> gradients;
  for (Param* param : params()) gradients.push_back(gradient_of(ctx, *param, x.dtype()));
  backward_weight(ctx, x, saved, gradients);
}

bool Norm::trainable() const { return weight->trainable() || (bias && bias->trainable()); }

/// The tensor to which the kernels, which compute both gradients, add the one of `param`. If it is frozen nothing reads it.
Tensor Norm::gradient_of(Context& ctx, Param& param, DType activations) {
  return param.trainable() ? param.grad_to_add_to(ctx)
                           : Tensor::zeros(ctx, param.local_shape(), accumulator_of(activations), MemoryCategory::kWorkspace);
}

void Norm::backward_weight(Context& ctx, const Tensor& x, const Saved& saved, std::span<const Tensor> gradients) const {
  if (bias) {
    layernorm_backward_weight(ctx, saved.dy, x, saved.mean, saved.rstd, gradients[0], gradients[1]);
  } else {
    rmsnorm_backward_weight(ctx, saved.dy, x, saved.rstd, gradients[0]);
  }
}

Tensor Norm::backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& residual, const Saved& saved) const {
  if (!trainable()) {
    Saved unread = saved;
    return backward_input(ctx, dy, x, residual, unread);
  }
  const Tensor dx = Tensor::empty(ctx, x.shape(), x.dtype(), MemoryCategory::kActivations);
  if (bias) {
    layernorm_backward(ctx, dy, x, weight->value, saved.mean, saved.rstd, residual, dx, gradient_of(ctx, *weight, x.dtype()),
                       gradient_of(ctx, *bias, x.dtype()));
  } else {
    rmsnorm_backward(ctx, dy, x, weight->value, saved.rstd, residual, dx, weight->grad_to_add_to(ctx), offset);
  }
  return dx;
}

Tensor PostNorm::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  if (!exists()) return x;
  saved.x = x;
  return norm.forward(ctx, x, saved.norm);
}

Tensor PostNorm::backward_input(Context& ctx, const Tensor& dy, Saved& saved) const {
  return exists() ? norm.backward_input(ctx, dy, saved.x, Tensor(), saved.norm) : dy;
}

Tensor PostNorm::backward(Context& ctx, const Tensor& dy, Saved& saved) const {
  if (!exists()) return dy;
  const Tensor dx = norm.backward(ctx, dy, saved.x, Tensor(), saved.norm);
  saved = {};
  return dx;
}

Tensor HeadNorm::take(Context& ctx, const Tensor& packed) const {
  const Tensor columns = Tensor::empty(ctx, {packed.dim(0), heads * head_size}, packed.dtype(), MemoryCategory::kActivations);
  copy_columns(ctx, packed, first_column, columns, 0, columns.dim(1));
  return columns.view({packed.dim(0) * heads, head_size});
}

void HeadNorm::put(Context& ctx, const Tensor& values, const Tensor& packed) const {
  const Tensor columns = values.view({packed.dim(0), heads * head_size});
  copy_columns(ctx, columns, 0, packed, first_column, columns.dim(1));
}

void HeadNorm::forward(Context& ctx, const Tensor& qkv, Saved& saved) const {
  saved.x = take(ctx, qkv);
  put(ctx, norm.forward(ctx, saved.x, saved.norm), qkv);
}

void HeadNorm::backward_input(Context& ctx, const Tensor& dqkv, Saved& saved) const {
  put(ctx, norm.backward_input(ctx, take(ctx, dqkv), saved.x, Tensor(), saved.norm), dqkv);
}

void HeadNorm::backward(Context& ctx, const Tensor& dqkv, const Saved& saved) const {
  put(ctx, norm.backward(ctx, take(ctx, dqkv), saved.x, Tensor(), saved.norm), dqkv);
}

}  // namespace trireme
