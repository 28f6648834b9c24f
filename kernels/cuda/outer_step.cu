#include "kernels/cuda/outer_step.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops/outer_rule.h"

namespace trireme::cuda {
namespace {

constexpr int kOuterBlock = 256;

/// Runs once in a round, so single elements are fast enough.
__global__ void __launch_bounds__(kOuterBlock)
    outer_kernel(OuterStep step, int64_t count, float* sum, float* weights, float* theta, float* momentum, float* drift) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    float gradient = sum[i], weight = weights[i], shared = theta[i], velocity = momentum[i], distance;  // loaded once, as the tensors might overlap
    outer_rule(step, gradient, weight, shared, velocity, distance);
    sum[i] = gradient, weights[i] = weight, theta[i] = shared, momentum[i] = velocity, drift[i] = distance;
  }
}

}  // namespace

void outer_step(Context& ctx, const OuterStep& step, const Tensor& sum, const Tensor& weights, const Tensor& theta, const Tensor& momentum,
                const Tensor& drift) {
  TRIREME_CHECK(sum.dtype() == DType::kF32, "master weights on a GPU are fp32, not ", name_of(sum.dtype()));
  if (sum.numel() == 0) return;
  launch(ctx, outer_kernel, {stride_grid(ctx, sum.numel(), kOuterBlock), dim3(kOuterBlock)}, step, sum.numel(), sum.data<float>(),
         weights.data<float>(), theta.data<float>(), momentum.data<float>(), drift.data<float>());
}

}  // namespace trireme::cuda
