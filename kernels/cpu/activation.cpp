#include "kernels/cpu/activation.h"

#include "kernels/cpu/isa.h"

namespace trireme::cpu {

namespace {

/// `choose` returns one of the kernels of a type.
template <class Choose>
void gated_forward(Context& ctx, const Tensor& gate_up, const Tensor& y, const Choose& choose) {
  const int64_t columns = y.dim(1);
  dispatch_type(y.dtype(), [&]<class T>(T) {
    const GatedForward<T> arguments{.gate_up = gate_up.data<T>(), .columns = columns, .y = y.data<T>()};
    run_kernel(ctx, choose(typed_kernels<T>(ctx)), arguments, y.dim(0), grain_of(columns));
  });
}

template <class Choose>
void gated_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up, const Choose& choose) {
  const int64_t columns = dy.dim(1);
  dispatch_type(dy.dtype(), [&]<class T>(T) {
    const GatedBackward<T> arguments{.dy = dy.data<T>(), .gate_up = gate_up.data<T>(), .columns = columns, .dgate_up = dgate_up.data<T>()};
    run_kernel(ctx, choose(typed_kernels<T>(ctx)), arguments, dy.dim(0), grain_of(columns));
  });
}

}  // namespace

void swiglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y) {
  gated_forward(ctx, gate_up, y, [](const auto& kernels) { return kernels.swiglu_forward; });
}

void swiglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  gated_backward(ctx, dy, gate_up, dgate_up, [](const auto& kernels) { return kernels.swiglu_backward; });
}

void geglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y, Gelu form) {
  gated_forward(ctx, gate_up, y, [=](const auto& kernels) { return form == Gelu::kErf ? kernels.geglu_erf_forward : kernels.geglu_forward; });
}

void geglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up, Gelu form) {
  gated_backward(ctx, dy, gate_up, dgate_up,
                 [=](const auto& kernels) { return form == Gelu::kErf ? kernels.geglu_erf_backward : kernels.geglu_backward; });
}

void gelu_forward(Context& ctx, const Tensor& x, const Tensor& y, Gelu form) {
  dispatch_type(x.dtype(), [&]<class T>(T) {
    const GeluForward<T> arguments{.x = x.data<T>(), .y = y.data<T>()};
    const auto& kernels = typed_kernels<T>(ctx);
    run_kernel(ctx, form == Gelu::kErf ? kernels.gelu_erf_forward : kernels.gelu_forward, arguments, x.numel(), kElementsPerThread);
  });
}

void gelu_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dx, Gelu form) {
  dispatch_type(x.dtype(), [&]<class T>(T) {
    const GeluBackward<T> arguments{.dy = dy.data<T>(), .x = x.data<T>(), .dx = dx.data<T>()};
    const auto& kernels = typed_kernels<T>(ctx);
    run_kernel(ctx, form == Gelu::kErf ? kernels.gelu_erf_backward : kernels.gelu_backward, arguments, x.numel(), kElementsPerThread);
  });
}

}  // namespace trireme::cpu
