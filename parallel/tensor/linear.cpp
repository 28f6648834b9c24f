#include "parallel/tensor/linear.h"

#include "kernels/core/operation_log.h"
#include "kernels/ops/columns.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/matmul.h"

namespace trireme {

Tensor Adapter::narrow(Context& ctx, const Tensor& x) const {
  const Tensor z = Tensor::empty(ctx, {x.dim(0), a->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  linear_forward(ctx, x, a->value, Tensor(), z);
  trireme::scale(ctx, z, scale, z);
  return z;
}

Tensor Adapter::narrow_gradient(Context& ctx, const Tensor& dy) const {
  const Tensor dz = Tensor::empty(ctx, {dy.dim(0), b->value.dim(1)}, dy.dtype(), MemoryCategory::kActivations);
  linear_backward_input(ctx, dy, b->value, dz);
  trireme::scale(ctx, dz, scale, dz);
  return dz;
}

Tensor Adapter::outputs_of(Context& ctx, const Tensor& dy_all) const {
  const int64_t outputs = b->value.dim(0);
  if (outputs == dy_all.dim(1)) return dy_all;
  const Tensor dy = Tensor::empty(ctx, {dy_all.dim(0), outputs}, dy_all.dtype(), MemoryCategory::kActivations);
  copy_columns(ctx, dy_all, first_output, dy, 0, outputs);
  return dy;
}

void Linear::add_adapters(Context& ctx, const Tensor& x, const Tensor& y) const {
  for (const Adapter& adapter : adapters) {
    const Tensor z = adapter.narrow(ctx, x);
    const Tensor added = Tensor::empty(ctx, {x.dim(0), adapter.b->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
    linear_forward(ctx, z, adapter.b->value, Tensor(), added);
    add_columns(ctx, added, y, adapter.first_output);
  }
}

Tensor Linear::forward(Context& ctx, const Tensor& x) const {
  const LogLayer layer(ctx, name);
  const Tensor all = splits_outputs() ? region->enter_forward(ctx, x).wait(ctx) : x;
  const Tensor product = Tensor::empty(ctx, {all.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  linear_forward(ctx, all, weight->value, splits_outputs() && bias ? bias->value : Tensor(), product);
  add_adapters(ctx, all, product);
  if (splits_outputs()) return product;
  const Tensor y = region->exit_forward(ctx, product).wait(ctx);
  if (bias) bias_forward(ctx, bias->value, y);
  return y;
}

Tensor Linear::forward_gelu(Context& ctx, const Tensor& x, Tensor& hidden) const {
  const LogLayer layer(ctx, name);
  const Tensor all = region->enter_forward(ctx, x).wait(ctx);
  hidden = Tensor::empty(ctx, {all.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  const Tensor y = Tensor::empty(ctx, hidden.shape(), x.dtype(), MemoryCategory::kActivations);
  linear_gelu_forward(ctx, all, weight->value, bias->value, hidden, y);
  return y;
}

PendingRegionOp Linear::gather_gradient(Context& ctx, const Tensor& dy) const {
  return splits_outputs() ? PendingRegionOp{dy, dy, Work()} : region->exit_backward(ctx, dy);
}

PendingRegionOp Linear::backward_input(Context& ctx, const Tensor& dy_all) const {
  const Tensor dx = Tensor::empty(ctx, {dy_all.dim(0), weight->value.dim(1)}, dy_all.dtype(), MemoryCategory::kActivations);
  {
    const LogLayer layer(ctx, name);
    linear_backward_input(ctx, dy_all, weight->value, dx);
    for (const Adapter& adapter : adapters) {
      const Tensor dz = adapter.narrow_gradient(ctx, adapter.outputs_of(ctx, dy_all));
      const Tensor added = Tensor::empty(ctx, dx.shape(), dx.dtype(), MemoryCategory::kActivations);
      linear_backward_input(ctx, dz, adapter.a->value, added);
      add(ctx, dx, added, dx);
    }
  }
  return splits_outputs() ? region->enter_backward(ctx, dx) : PendingRegionOp{dx, dx, Work()};
}

PendingRegionOp Linear::gather_input(Context& ctx, const Tensor& x) const {
  const bool read = weight->trainable() || !adapters.empty();
  return splits_outputs() && read ? region->enter_forward(ctx, x) : PendingRegionOp{x, x, Work()};
}

void Linear::weight_products(Context& ctx, const Tensor& x_all, const Tensor& dy_all,
                             const std::function<void(Param&, const Tensor&, const Tensor&)>& visit) const {
  if (weight->trainable()) visit(*weight, dy_all, x_all);
  for (const Adapter& adapter : adapters) {
    const Tensor dy = adapter.outputs_of(ctx, dy_all);
    visit(*adapter.a, adapter.narrow_gradient(ctx, dy), x_all);
    visit(*adapter.b, dy, adapter.narrow(ctx, x_all));
  }
}

void Linear::backward_weight(Context& ctx, PendingRegionOp x, const Tensor& dy_all) const {
  const LogLayer layer(ctx, name);
  weight_products(ctx, x.wait(ctx), dy_all, [&](Param& param, const Tensor& dy, const Tensor& read) {
    linear_backward_weight(ctx, dy, read, param.grad, param.must_add_to_grad());
  });
  if (bias && bias->trainable()) bias_backward(ctx, dy_all, bias->grad_to_add_to(ctx));
}

}  // namespace trireme
