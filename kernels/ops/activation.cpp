#include "kernels/ops/activation.h"

#include "kernels/cpu/activation.h"
#include "kernels/cuda/activation.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/activation.h"

namespace trireme {

void swiglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y) {
  const int64_t rows = y.dim(0), columns = y.dim(1);
  const DType dtype = y.dtype();
  Operation operation(ctx, "swiglu_forward", {{"gate_up", gate_up, {rows, 2 * columns}, dtype}, {"y", y, {rows, columns}, dtype}});
  operation.run(
      dtype, [&] { cuda::swiglu_forward(ctx, gate_up, y); }, FastCpu{[&] { cpu::swiglu_forward(ctx, gate_up, y); }, true},
      [&]<class T>(T) { reference::swiglu_forward(gate_up.data<T>(), y.data<T>(), rows, columns); });
}

void swiglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  const DType dtype = dy.dtype();
  Operation operation(
      ctx, "swiglu_backward",
      {{"dy", dy, {rows, columns}, dtype}, {"gate_up", gate_up, {rows, 2 * columns}, dtype}, {"dgate_up", dgate_up, {rows, 2 * columns}, dtype}});
  operation.run(
      dtype, [&] { cuda::swiglu_backward(ctx, dy, gate_up, dgate_up); }, FastCpu{[&] { cpu::swiglu_backward(ctx, dy, gate_up, dgate_up); }, true},
      [&]<class T>(T) { reference::swiglu_backward(dy.data<T>(), gate_up.data<T>(), dgate_up.data<T>(), rows, columns); });
}

void geglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y, Gelu form) {
  const bool erf = form == Gelu::kErf;
  const int64_t rows = y.dim(0), columns = y.dim(1);
  const DType dtype = y.dtype();
  Operation operation(ctx, erf ? "geglu_erf_forward" : "geglu_forward",
                      {{"gate_up", gate_up, {rows, 2 * columns}, dtype}, {"y", y, {rows, columns}, dtype}});
  operation.run(
      dtype, [&] { cuda::geglu_forward(ctx, gate_up, y, form); }, FastCpu{[&] { cpu::geglu_forward(ctx, gate_up, y, form); }, true},
      [&]<class T>(T) { reference::geglu_forward(erf ? reference::gelu_erf : reference::gelu_tanh, gate_up.data<T>(), y.data<T>(), rows, columns); });
}

void geglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up, Gelu form) {
  const bool erf = form == Gelu::kErf;
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  const DType dtype = dy.dtype();
  Operation operation(
      ctx, erf ? "geglu_erf_backward" : "geglu_backward",
      {{"dy", dy, {rows, columns}, dtype}, {"gate_up", gate_up, {rows, 2 * columns}, dtype}, {"dgate_up", dgate_up, {rows, 2 * columns}, dtype}});
  operation.run(
      dtype, [&] { cuda::geglu_backward(ctx, dy, gate_up, dgate_up, form); },
      FastCpu{[&] { cpu::geglu_backward(ctx, dy, gate_up, dgate_up, form); }, true},
      [&]<class T>(T) {
        reference::geglu_backward(erf ? reference::gelu_erf : reference::gelu_tanh, dy.data<T>(), gate_up.data<T>(), dgate_up.data<T>(), rows,
                                  columns);
      });
}

void gelu_forward(Context& ctx, const Tensor& x, const Tensor& y, Gelu form) {
  const bool erf = form == Gelu::kErf;
  Operation operation(ctx, erf ? "gelu_erf_forward" : "gelu_forward", {{"x", x, x.shape(), x.dtype()}, {"y", y, x.shape(), x.dtype()}});
  operation.run(
      x.dtype(), [&] { cuda::gelu_forward(ctx, x, y, form); }, FastCpu{[&] { cpu::gelu_forward(ctx, x, y, form); }, true},
      [&]<class T>(T) { reference::gelu_forward(erf ? reference::gelu_erf : reference::gelu_tanh, x.data<T>(), y.data<T>(), x.numel()); });
}

void gelu_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dx, Gelu form) {
  const bool erf = form == Gelu::kErf;
  Operation operation(ctx, erf ? "gelu_erf_backward" : "gelu_backward",
                      {{"dy", dy, x.shape(), x.dtype()}, {"x", x, x.shape(), x.dtype()}, {"dx", dx, x.shape(), x.dtype()}});
  operation.run(
      x.dtype(), [&] { cuda::gelu_backward(ctx, dy, x, dx, form); }, FastCpu{[&] { cpu::gelu_backward(ctx, dy, x, dx, form); }, true},
      [&]<class T>(T) {
        reference::gelu_backward(erf ? reference::gelu_erf : reference::gelu_tanh, dy.data<T>(), x.data<T>(), dx.data<T>(), x.numel());
      });
}

}  // namespace trireme
