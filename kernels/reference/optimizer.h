#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/ops/optimizer.h"

namespace trireme::reference {

inline void mark_outlier(const double* scalars, double* sums) { sums[kOutliers] = sums[kLosses] > scalars[kRankLossLimit] ? 1 : 0; }

inline void finalize_step_scalars(const AdamW& hyper, const LossScaling& scaling, const double* sums, double clip, double* norm, double* scalars) {
  const double scale = scalars[kLossScale];
  *norm = std::sqrt(sums[kSquares]) / scale;
  const bool finite = std::isfinite(*norm);
  const bool norm_within = !(*norm > scalars[kNormLimit]);
  const bool loss_within = std::isinf(scalars[kLossLimit]) || std::abs(sums[kLosses]) <= scalars[kLossLimit];
  const bool ranks_within = sums[kOutliers] <= scalars[kOutlierLimit];
  scalars[kAccepted] = finite && norm_within && loss_within && ranks_within ? 1 : 0;
  scalars[kGradScale] = (clip > 0 && *norm > clip ? clip / *norm : 1) / scale;
  scalars[kAcceptedSteps] += scalars[kAccepted];
  scalars[kBiasCorrection1] = 1 - std::pow(hyper.beta1, scalars[kAcceptedSteps]);
  scalars[kBiasCorrection2] = 1 - std::pow(hyper.beta2, std::fmin(scalars[kAcceptedSteps], hyper.second_moment_steps));
  const double clean = finite ? scalars[kCleanSteps] + scalars[kAccepted] : 0;
  const bool grows = clean >= static_cast<double>(scaling.growth_interval);
  scalars[kLossScale] = !finite ? std::fmax(scale / 2, scaling.minimum) : grows ? std::fmin(scale * 2, scaling.maximum) : scale;
  scalars[kCleanSteps] = grows ? 0 : clean;
}

/// g' = g * grad_scale;   w -= lr decay w;   m = b1 m + (1-b1) g';   v = b2 v + (1-b2) g'^2;   w -= lr (m/c1) / (sqrt(v/c2) + epsilon)
template <class T>
void adamw_step(const AdamW& hyper, double decay, const double* scalars, T* w, const T* g, T* m, T* v, int64_t count) {
  if (scalars[kAccepted] == 0) return;
  const double learning_rate = scalars[kLearningRate], beta2 = current_beta2(hyper, scalars);
  for (int64_t i = 0; i < count; ++i) {
    const double gradient = g[i] * scalars[kGradScale];
    const double first = hyper.beta1 * m[i] + (1 - hyper.beta1) * gradient;
    const double second = beta2 * v[i] + (1 - beta2) * gradient * gradient;
    const double update = first / scalars[kBiasCorrection1] / (std::sqrt(second / scalars[kBiasCorrection2]) + hyper.epsilon);
    w[i] = static_cast<T>(w[i] * (1 - learning_rate * decay) - learning_rate * update);
    m[i] = static_cast<T>(first);
    v[i] = static_cast<T>(second);
  }
}

template <class T>
double sum_of_squares(const T* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

}  // namespace trireme::reference
