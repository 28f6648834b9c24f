#pragma once
// The arithmetic of kernels/ops/outer_step.h for one element, which every engine applies.
#include "kernels/ops/outer_step.h"
#include "kernels/ops/update_rules.h"

namespace trireme {

template <class T>
TRIREME_HOST_DEVICE void outer_rule(const OuterStep& step, T& sum, T& weight, T& theta, T& momentum, T& drift) {
  const double mean = static_cast<double>(sum) / step.islands;
  const double gradient = static_cast<double>(theta) - mean;
  const double velocity = step.momentum * static_cast<double>(momentum) + gradient;
  theta = static_cast<T>(mean + (1 - step.learning_rate) * gradient - step.learning_rate * step.momentum * velocity);
  momentum = static_cast<T>(velocity);
  const auto own = static_cast<double>(weight), shared = static_cast<double>(theta);
  drift = static_cast<T>(own - mean);
  weight = step.blend == 1 ? theta : static_cast<T>(shared + (1 - step.blend) * (own - shared));
  sum = static_cast<T>(gradient);
}

}  // namespace trireme
