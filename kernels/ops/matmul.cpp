#include "kernels/ops/matmul.h"

#include "kernels/cpu/bias.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cuda/matmul.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/matmul.h"

namespace trireme {

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) {
  const int64_t rows = x.dim(0), inputs = x.dim(1), outputs = w.dim(0);
  const DType dtype = x.dtype();
  Operation operation(ctx, "linear_forward", {{"x", x, {rows, inputs}, dtype}, {"w", w, {outputs, inputs}, dtype}, {"y", y, {rows, outputs}, dtype}});
  operation.optional({"bias", bias, {outputs}, dtype});
  operation.product(rows, outputs, inputs);
  operation.run(
      dtype, [&] { cuda::linear_forward(ctx, x, w, bias, y); }, FastCpu{[&] { cpu::linear_forward(ctx, x, w, bias, y); }, true},
      [&]<class T>(T) {
        reference::linear_forward(x.data<T>(), w.data<T>(), y.data<T>(), rows, inputs, outputs);
        if (bias.defined()) reference::bias_forward(bias.data<T>(), y.data<T>(), rows, outputs);
      });
}

void linear_gelu_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& hidden, const Tensor& y) {
  if (ctx.device != Device::kCuda) {
    linear_forward(ctx, x, w, bias, hidden);
    return gelu_forward(ctx, hidden, y, Gelu::kTanh);
  }
  const int64_t rows = x.dim(0), inputs = x.dim(1), outputs = w.dim(0);
  const DType dtype = x.dtype();
  Operation operation(ctx, "linear_gelu_forward",
                      {{"x", x, {rows, inputs}, dtype},
                       {"w", w, {outputs, inputs}, dtype},
                       {"bias", bias, {outputs}, dtype},
                       {"hidden", hidden, {rows, outputs}, dtype},
                       {"y", y, {rows, outputs}, dtype}});
  operation.product(rows, outputs, inputs);
  operation.run(
      dtype, [&] { cuda::linear_gelu_forward(ctx, x, w, bias, hidden, y); }, [](auto) {});
}

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  const int64_t rows = dy.dim(0), inputs = w.dim(1), outputs = dy.dim(1);
  const DType dtype = dy.dtype();
  Operation operation(ctx, "linear_backward_input",
                      {{"dy", dy, {rows, outputs}, dtype}, {"w", w, {outputs, inputs}, dtype}, {"dx", dx, {rows, inputs}, dtype}});
  operation.product(rows, inputs, outputs);
  operation.run(
      dtype, [&] { cuda::linear_backward_input(ctx, dy, w, dx); }, FastCpu{[&] { cpu::linear_backward_input(ctx, dy, w, dx); }, true},
      [&]<class T>(T) { reference::linear_backward_input(dy.data<T>(), w.data<T>(), dx.data<T>(), rows, inputs, outputs); });
}

void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw, bool add) {
  const int64_t rows = x.dim(0), inputs = x.dim(1), outputs = dy.dim(1);
  const DType dtype = x.dtype();
  Operation operation(ctx, "linear_backward_weight",
                      {{"dy", dy, {rows, outputs}, dtype},
                       {"x", x, {rows, inputs}, dtype},
                       {"dw", dw, {outputs, inputs}, accumulator_of(dtype), add ? Passes::kReadAndWritten : Passes::kOnce}});
  operation.product(outputs, inputs, rows, add);
  operation.run(
      dtype, [&] { cuda::linear_backward_weight(ctx, dy, x, dw, add); }, FastCpu{[&] { cpu::linear_backward_weight(ctx, dy, x, dw, add); }, true},
      [&]<class T>(T) { reference::linear_backward_weight(dy.data<T>(), x.data<T>(), dw.data<Accumulator<T>>(), rows, inputs, outputs, add); });
}

void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y) {
  const int64_t rows = y.dim(0), outputs = y.dim(1);
  const DType dtype = y.dtype();
  Operation operation(ctx, "bias_forward", {{"bias", bias, {outputs}, dtype}, {"y", y, {rows, outputs}, dtype, Passes::kReadAndWritten}});
  operation.run(
      dtype, [&] { cuda::bias_forward(ctx, bias, y); }, FastCpu{[&] { cpu::bias_forward(ctx, bias, y); }, true},
      [&]<class T>(T) { reference::bias_forward(bias.data<T>(), y.data<T>(), rows, outputs); });
}

void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias) {
  const int64_t rows = dy.dim(0), outputs = dy.dim(1);
  const DType dtype = dy.dtype();
  Operation operation(ctx, "bias_backward", {{"dy", dy, {rows, outputs}, dtype}, {"dbias", dbias, {outputs}, accumulator_of(dtype)}});
  operation.run(
      dtype, [&] { cuda::bias_backward(ctx, dy, dbias); }, FastCpu{[&] { cpu::bias_backward(ctx, dy, dbias); }, true},
      [&]<class T>(T) { reference::bias_backward(dy.data<T>(), dbias.data<Accumulator<T>>(), rows, outputs); });
}

std::string gemm_library(const Context& ctx) {
  if constexpr (kCudaBuilt) {
    if (ctx.device == Device::kCuda) return cuda::library_versions(*ctx.gpu);
  }
  if constexpr (kFastCpu) {
    if (ctx.device == Device::kCpu) return cpu::gemm_library();
  }
  return "reference";
}

void limit_gemm_library(const Context& ctx) {
  if constexpr (kFastCpu) {
    if (ctx.device == Device::kCpu) cpu::limit_library(ctx.isa);
  }
}

}  // namespace trireme
