#include "kernels/ops/delay_compensation.h"

#include "kernels/cpu/parallel.h"
#include "kernels/ops/dispatch.h"

namespace trireme {
namespace {

/// Calls body(i) for each of `count` elements.
template <class Body>
void each_on_host(const Context& ctx, int64_t count, const Body& body) {
  const auto range = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  };
  cpu::for_elements(ctx, count, range);
}

template <class T>
void compensate_on_host(const Context& ctx, double lambda, const Tensor& w, const Tensor& then, const Tensor& g) {
  each_on_host(ctx, g.numel(), [lambda, now = w.data<T>(), old = then.data<T>(), to = g.data<T>()](int64_t i) {
    const auto gradient = static_cast<double>(to[i]);
    to[i] = static_cast<T>(gradient + lambda * gradient * gradient * (static_cast<double>(now[i]) - static_cast<double>(old[i])));
  });
}

template <class T>
void add_scaled_on_host(const Context& ctx, double factor, const Tensor& x, const Tensor& sum) {
  each_on_host(ctx, sum.numel(), [factor, from = x.data<T>(), to = sum.data<T>()](int64_t i) {
    to[i] = static_cast<T>(static_cast<double>(to[i]) + factor * static_cast<double>(from[i]));
  });
}

void no_cuda_kernel_of_a_server() { throw InternalError("parameter servers have no CUDA kernels"); }

}  // namespace

void compensate_delay(Context& ctx, double lambda, const Tensor& w, const Tensor& then, const Tensor& g) {
  Operation operation(
      ctx, "compensate_delay",
      {{"w", w, g.shape(), g.dtype()}, {"then", then, g.shape(), g.dtype()}, {"g", g, g.shape(), g.dtype(), Passes::kReadAndWritten}});
  operation.run(g.dtype(), no_cuda_kernel_of_a_server, FastCpu{[&] { compensate_on_host<float>(ctx, lambda, w, then, g); }},
                [&]<class T>(T) { compensate_on_host<T>(ctx, lambda, w, then, g); });
}

void add_scaled(Context& ctx, double factor, const Tensor& x, const Tensor& sum) {
  Operation operation(ctx, "add_scaled", {{"x", x, sum.shape(), sum.dtype()}, {"sum", sum, sum.shape(), sum.dtype(), Passes::kReadAndWritten}});
  operation.run(sum.dtype(), no_cuda_kernel_of_a_server, FastCpu{[&] { add_scaled_on_host<float>(ctx, factor, x, sum); }},
                [&]<class T>(T) { add_scaled_on_host<T>(ctx, factor, x, sum); });
}

}  // namespace trireme
