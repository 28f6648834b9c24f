#pragma once
// What a series of steps reveals about one sample: (epsilon, delta)-differential privacy for neighbours that differ by one added or removed sample.
//
// A step includes each sample with probability `sampling_rate`, independently (Poisson sampling), and adds Gaussian noise with a standard deviation of
// `noise` times the clip norm to the sum of the clipped gradients. Its Renyi differential privacy (RDP) at order a is (Mironov, Talwar and Zhang 2019,
// arXiv:1908.10530)
//   RDP(a) = ln(A) / (a - 1),  A = sum over k of C(a, k) (1 - q)^(a - k) q^k exp((k^2 - k) / (2 s^2)),
// and RDP adds up over steps. A total RDP at order a gives (Canonne, Kamath and Steinke 2020, arXiv:2004.00010, proposition 12)
//   epsilon = RDP + ln(1 - 1/a) - ln(delta a) / (a - 1),
// of which the least over the orders is taken.
#include <array>
#include <cstdint>
#include <span>

namespace trireme::privacy {

/// Steps of one kind: the Poisson-subsampled Gaussian mechanism. A noise of 0 gives no privacy.
struct PrivateSteps {
  double sampling_rate = 0;  ///< 0 to 1
  double noise = 0;          ///< noise multiplier, 0 or more
  int64_t steps = 0;
  bool operator==(const PrivateSteps&) const = default;
};

inline constexpr int kFirstOrder = 2;
inline constexpr int kLastOrder = 256;

/// RDP of one step at one order from kFirstOrder to kLastOrder; infinite without noise or where it is larger than any double.
double rdp_of_step(double sampling_rate, double noise, int order);

struct Epsilon {
  double value = 0;  ///< 0 or more; may be infinite, never NaN
  int order = kFirstOrder;
};

/// RDP at all orders. A run that reports epsilon after each step adds the curve of a step to that of the steps before it.
class RdpCurve {
 public:
  RdpCurve() = default;
  explicit RdpCurve(std::span<const PrivateSteps> history);
  void add(const PrivateSteps& steps);
  void add(const RdpCurve& curve, int64_t times);
  /// `delta`: above 0 and below 1. Steps that reveal nothing have an epsilon of 0.
  Epsilon epsilon(double delta) const;

 private:
  std::array<double, kLastOrder + 1> rdp_{};  ///< by order
};

Epsilon rdp_epsilon(std::span<const PrivateSteps> history, double delta);

/// Noise multipliers that noise_for() returns are multiples of 1 / kNoiseSteps.
inline constexpr double kNoiseSteps = 10000;

/// The least multiple of 1 / kNoiseSteps with which `history` and then `steps` steps have an epsilon of at most `target_epsilon`. Infinite if there is
/// none up to a million: `history` has used up the budget, or orders up to kLastOrder cannot show an epsilon as small as that.
double noise_for(double target_epsilon, double sampling_rate, int64_t steps, double delta, std::span<const PrivateSteps> history = {});

/// How many of the steps `next` can follow `history` with an epsilon of at most `target_epsilon`: 0 to next.steps.
int64_t affordable_steps(std::span<const PrivateSteps> history, const PrivateSteps& next, double delta, double target_epsilon);

}  // namespace trireme::privacy
