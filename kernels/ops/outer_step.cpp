#include "kernels/ops/outer_step.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cuda/outer_step.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/outer_rule.h"

namespace trireme {
namespace {

template <class T>
void outer_on_host(const Context& ctx, const OuterStep& step, const Tensor& sum, const Tensor& weights, const Tensor& theta, const Tensor& momentum,
                   const Tensor& drift) {
  const auto range = [&](int64_t begin, int64_t end) {
    T *const s = sum.data<T>(), *const w = weights.data<T>(), *const t = theta.data<T>(), *const m = momentum.data<T>(), *const d = drift.data<T>();
    for (int64_t i = begin; i < end; ++i) outer_rule(step, s[i], w[i], t[i], m[i], d[i]);
  };
  cpu::for_elements(ctx, sum.numel(), range);
}

}  // namespace

void outer_step(Context& ctx, const OuterStep& step, const Tensor& sum, const Tensor& weights, const Tensor& theta, const Tensor& momentum,
                const Tensor& drift) {
  Operation operation(ctx, "outer_step",
                      {{"sum", sum, sum.shape(), sum.dtype(), Passes::kReadAndWritten},
                       {"weights", weights, sum.shape(), sum.dtype(), Passes::kReadAndWritten},
                       {"theta", theta, sum.shape(), sum.dtype(), Passes::kReadAndWritten},
                       {"momentum", momentum, sum.shape(), sum.dtype(), Passes::kReadAndWritten},
                       {"drift", drift, sum.shape(), sum.dtype()}});
  operation.run(
      sum.dtype(), [&] { cuda::outer_step(ctx, step, sum, weights, theta, momentum, drift); },
      FastCpu{[&] { outer_on_host<float>(ctx, step, sum, weights, theta, momentum, drift); }},
      [&]<class T>(T) { outer_on_host<T>(ctx, step, sum, weights, theta, momentum, drift); });
}

}  // namespace trireme
