#include "kernels/cpu/bias.h"

#include "kernels/cpu/isa.h"

namespace trireme::cpu {

void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y) {
  const int64_t columns = y.dim(1);
  dispatch_type(y.dtype(), [&]<class T>(T) {
    const BiasForward<T> arguments{.bias = bias.data<T>(), .columns = columns, .y = y.data<T>()};
    run_kernel(ctx, typed_kernels<T>(ctx).bias_forward, arguments, y.dim(0), grain_of(columns));
  });
}

void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  dispatch_type(dy.dtype(), [&]<class T>(T) {
    const BiasBackward<T> arguments{.dy = dy.data<T>(), .rows = rows, .columns = columns, .dbias = dbias.data<float>()};
    run_kernel(ctx, typed_kernels<T>(ctx).bias_backward, arguments, columns, column_grain(rows));
  });
}

}  // namespace trireme::cpu
