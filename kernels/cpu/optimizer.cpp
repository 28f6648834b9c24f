#include "kernels/cpu/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/parallel.h"

namespace trireme::cpu {
namespace {

/// The scalars of a step, in the precision of the update.
struct AdamWStep {
  float grad_scale, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float decay;            ///< 1 - lr * weight_decay
  float step_size;        ///< lr / c1
  float root_correction;  ///< 1 / sqrt(c2)
  float epsilon;
};

void adamw_range(const AdamWStep step, int64_t count, float* w, const float* g, float* m, float* v) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * step.grad_scale;
    const float mean = step.beta1 * m[i] + step.one_minus_beta1 * grad;
    const float square = step.beta2 * v[i] + step.one_minus_beta2 * grad * grad;
    m[i] = mean;
    v[i] = square;
    w[i] = w[i] * step.decay - step.step_size * mean / (std::sqrt(square) * step.root_correction + step.epsilon);
  }
}

double squares(const float* x, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

AdamWStep step_of(const AdamW& hyper, double weight_decay, const double* scalar) {
  return {.grad_scale = static_cast<float>(scalar[kGradScale]),
          .beta1 = static_cast<float>(hyper.beta1),
          .beta2 = static_cast<float>(hyper.beta2),
          .one_minus_beta1 = static_cast<float>(1.0 - hyper.beta1),
          .one_minus_beta2 = static_cast<float>(1.0 - hyper.beta2),
          .decay = static_cast<float>(1.0 - scalar[kLearningRate] * weight_decay),
          .step_size = static_cast<float>(scalar[kLearningRate] / scalar[kBiasCorrection1]),
          .root_correction = static_cast<float>(1.0 / std::sqrt(scalar[kBiasCorrection2])),
          .epsilon = static_cast<float>(hyper.epsilon)};
}

double sum_of_squares(const Context& ctx, const Tensor& x) {
  constexpr int64_t kBlock = 4096;
  constexpr int64_t kRound = 1024;  // blocks between two joins of the threads: 4 M elements
  const float* const in = x.data<float>();
  const int64_t count = x.numel();
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  double total = 0;
  std::array<double, kRound> partial;
  for (int64_t first = 0; first < blocks; first += kRound) {
    const int64_t in_round = std::min(kRound, blocks - first);
    parallel_for(ctx, in_round, grain_of(kBlock), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t from = (first + b) * kBlock;
        partial[static_cast<size_t>(b)] = squares(in + from, std::min(kBlock, count - from));
      }
    });
    for (int64_t b = 0; b < in_round; ++b) total += partial[static_cast<size_t>(b)];
  }
  return total;
}

}  // namespace

void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const AdamWSlice> slices) {
  const double* const scalar = scalars.data<double>();
  if (scalar[kFinite] == 0) return;
  for (const AdamWSlice& slice : slices) {
    const AdamWStep step = step_of(hyper, slice.decay ? hyper.weight_decay : 0, scalar);
    float* const w = slice.w.data<float>();
    const float* const g = slice.g.data<float>();
    float* const m = slice.m.data<float>();
    float* const v = slice.v.data<float>();
    parallel_for(ctx, slice.w.numel(), kElementsPerThread,
                 [=](int64_t begin, int64_t end) { adamw_range(step, end - begin, w + begin, g + begin, m + begin, v + begin); });
  }
}

void sum_of_squares(Context& ctx, std::span<const Tensor> tensors, const Tensor& sum) {
  for (const Tensor& x : tensors) sum.data<double>()[0] += sum_of_squares(ctx, x);
}

}  // namespace trireme::cpu
