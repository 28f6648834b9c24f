#include "trainer/privacy/accountant.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"

namespace trireme::privacy {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// ln(n!) for n up to kLastOrder.
const std::array<double, kLastOrder + 1>& log_factorials() {
  static const auto table = [] {
    std::array<double, kLastOrder + 1> values{};
    long double sum = 0;
    for (int n = 2; n <= kLastOrder; ++n) values[n] = static_cast<double>(sum += std::log(static_cast<long double>(n)));
    return values;
  }();
  return table;
}

/// ln(exp(x) - 1) for x > 0.
double log_expm1(double x) { return x < 30 ? std::log(std::expm1(x)) : x + std::log1p(-std::exp(-x)); }

/// ln(1 + exp(x)).
double log1p_exp(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

void check_rate(double sampling_rate, double noise) {
  TRIREME_CHECK(sampling_rate >= 0 && sampling_rate <= 1, "sampling rate ", sampling_rate);
  TRIREME_CHECK(noise >= 0, "noise ", noise);
}

bool within(const RdpCurve& history, const RdpCurve& step, int64_t steps, double delta, double target_epsilon) {
  RdpCurve all = history;
  all.add(step, steps);
  return all.epsilon(delta).value <= target_epsilon;
}

}  // namespace

/// The terms of A without the exponential add up to 1, so A - 1 is a sum of positive terms, from k = 2 on. It is small where the sampling rate is, and
/// its terms overflow at large orders: both are why their logarithms are added.
double rdp_of_step(double sampling_rate, double noise, int order) {
  check_rate(sampling_rate, noise);
  TRIREME_CHECK(order >= kFirstOrder && order <= kLastOrder, "order ", order);
  if (sampling_rate == 0) return 0;
  if (noise == 0) return kInfinity;
  const double variance = noise * noise;
  if (sampling_rate == 1) return order / (2 * variance);
  const auto& factorial = log_factorials();
  const double in = std::log(sampling_rate), out = std::log1p(-sampling_rate);
  std::array<double, kLastOrder + 1> terms;
  double largest = -kInfinity;
  for (int k = 2; k <= order; ++k) {
    const double exponent = 0.5 * k * (k - 1) / variance;
    terms[k] = factorial[order] - factorial[k] - factorial[order - k] + (order - k) * out + k * in + log_expm1(exponent);
    largest = std::max(largest, terms[k]);
  }
  if (largest == kInfinity) return kInfinity;
  if (largest == -kInfinity) return 0;
  double sum = 0;
  for (int k = 2; k <= order; ++k) sum += std::exp(terms[k] - largest);
  return log1p_exp(largest + std::log(sum)) / (order - 1);
}

RdpCurve::RdpCurve(std::span<const PrivateSteps> history) {
  for (const PrivateSteps& steps : history) add(steps);
}

void RdpCurve::add(const PrivateSteps& steps) {
  check_rate(steps.sampling_rate, steps.noise);
  TRIREME_CHECK(steps.steps >= 0, steps.steps, " steps");
  if (steps.steps == 0) return;
  for (int order = kFirstOrder; order <= kLastOrder; ++order)
    rdp_[order] += static_cast<double>(steps.steps) * rdp_of_step(steps.sampling_rate, steps.noise, order);
}

void RdpCurve::add(const RdpCurve& curve, int64_t times) {
  if (times == 0) return;  // 0 times infinity would not be a number
  for (int order = kFirstOrder; order <= kLastOrder; ++order) rdp_[order] += static_cast<double>(times) * curve.rdp_[order];
}

Epsilon RdpCurve::epsilon(double delta) const {
  TRIREME_CHECK(delta > 0 && delta < 1, "delta ", delta);
  if (std::all_of(rdp_.begin(), rdp_.end(), [](double rdp) { return rdp == 0; })) return {};
  Epsilon least{kInfinity, kFirstOrder};
  for (int order = kFirstOrder; order <= kLastOrder; ++order) {
    const double a = order;
    const double value = rdp_[order] + std::log1p(-1 / a) - (std::log(delta) + std::log(a)) / (a - 1);
    if (value < least.value) least = {value, order};
  }
  least.value = std::max(least.value, 0.0);
  return least;
}

Epsilon rdp_epsilon(std::span<const PrivateSteps> history, double delta) { return RdpCurve(history).epsilon(delta); }

double noise_for(double target_epsilon, double sampling_rate, int64_t steps, double delta, std::span<const PrivateSteps> history) {
  const RdpCurve before(history);
  const auto enough = [&](int64_t units) {
    RdpCurve step;
    step.add({sampling_rate, static_cast<double>(units) / kNoiseSteps, 1});
    return within(before, step, steps, delta, target_epsilon);
  };
  if (enough(0)) return 0;
  constexpr int64_t kMost = int64_t{1'000'000} * static_cast<int64_t>(kNoiseSteps);
  int64_t above = static_cast<int64_t>(kNoiseSteps);
  while (!enough(above)) {
    if (above >= kMost) return kInfinity;
    above = std::min(2 * above, kMost);
  }
  int64_t below = 0;
  while (above - below > 1) {
    const int64_t middle = below + (above - below) / 2;
    (enough(middle) ? above : below) = middle;
  }
  return static_cast<double>(above) / kNoiseSteps;
}

int64_t affordable_steps(std::span<const PrivateSteps> history, const PrivateSteps& next, double delta, double target_epsilon) {
  const RdpCurve before(history);
  RdpCurve step;
  step.add({next.sampling_rate, next.noise, 1});
  if (within(before, step, next.steps, delta, target_epsilon)) return next.steps;
  int64_t affordable = 0, too_many = next.steps;
  while (too_many - affordable > 1) {
    const int64_t middle = affordable + (too_many - affordable) / 2;
    (within(before, step, middle, delta, target_epsilon) ? affordable : too_many) = middle;
  }
  return affordable;
}

}  // namespace trireme::privacy
