#include "trainer/privacy/loss_distribution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "kernels/core/check.h"

namespace trireme::privacy {
namespace {

using Complex = std::complex<double>;

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
constexpr int kGridBits = 18;
constexpr size_t kGrid = size_t{1} << kGridBits;  ///< points of the grid of the sum
constexpr double kCoarsePoints = 16384;           ///< points for one step, where only the size of the grid is wanted
constexpr double kMostPoints = 4.0 * kGrid;       ///< of one step
constexpr double kRounding = 1e-15;               ///< of one value of a transform
constexpr double kLargestLoss = 600;              ///< of one step: exp() of it is a double
constexpr double kShare = 1e-5;                   ///< of delta that each kind of cut-off may take
constexpr double kWrapped = 1e-10;                ///< probability of the tilted sum outside of its window

enum class Direction : uint8_t { kRemove, kAdd };
constexpr std::array kDirections{Direction::kRemove, Direction::kAdd};

/// Probability of [from, to] under a normal distribution.
double normal_mass(double from, double to, double mean, double deviation) {
  const double scale = deviation * std::numbers::sqrt2, low = (from - mean) / scale, high = (to - mean) / scale;
  if (low > 0) return (std::erfc(low) - std::erfc(high)) / 2;
  if (high < 0) return (std::erfc(-high) - std::erfc(-low)) / 2;
  return (std::erf(high) - std::erf(low)) / 2;
}

/// One step in one direction. The released value x, in units of the clip norm, is N = normal(0, noise) without the sample, and with it the mixture
/// M = (1 - rate) N + rate normal(1, noise). kRemove compares P = M with Q = N, kAdd P = N with Q = M.
struct SubsampledGaussian {
  double rate, noise;
  Direction direction;
  double reach;  ///< number of standard deviations at which x is cut off

  double lowest() const { return -noise * reach; }
  double highest() const { return noise * reach + (direction == Direction::kRemove ? 1 : 0); }
  double exponent(double x) const { return (x - 0.5) / (noise * noise); }
  /// ln(P(x) / Q(x)): it increases with x for kRemove and decreases for kAdd.
  double loss(double x) const {
    const double ratio = rate == 1 ? exponent(x) : std::log1p(rate * std::expm1(exponent(x)));
    return direction == Direction::kRemove ? ratio : -ratio;
  }
  /// The x with this loss, within the cut-off.
  double at(double of_loss) const {
    const double ratio = direction == Direction::kRemove ? of_loss : -of_loss;
    const double inner = std::expm1(ratio) / rate;
    const double exponent = rate == 1 ? ratio : inner <= -1 ? -kUnbounded : std::log1p(inner);
    return std::clamp(noise * noise * exponent + 0.5, lowest(), highest());
  }
  double density(double x) const {
    const double at_zero = std::exp(-x * x / (2 * noise * noise)) / (noise * std::sqrt(2 * std::numbers::pi));
    return direction == Direction::kRemove ? at_zero * ((1 - rate) + rate * std::exp(exponent(x))) : at_zero;
  }
  double mixture(double from, double to) const { return (1 - rate) * normal_mass(from, to, 0, noise) + rate * normal_mass(from, to, 1, noise); }
  double lowest_loss() const { return std::min(loss(lowest()), loss(highest())); }
  double highest_loss() const { return std::max(loss(lowest()), loss(highest())); }
  bool is_covered() const { return std::max(std::abs(exponent(lowest())), std::abs(exponent(highest()))) < kLargestLoss; }

  /// The probability under P of the x in [from, to], and its part that is not matched by exp(loss) times the probability under Q.
  std::pair<double, double> mass(double from, double to, double of_loss) const {
    const double width = to - from;
    if (width <= 0) return {0, 0};
    if (width > 1e-3 * noise) {
      const double normal = normal_mass(from, to, 0, noise), mixed = mixture(from, to);
      const auto [p, q] = direction == Direction::kRemove ? std::pair(mixed, normal) : std::pair(normal, mixed);
      return {p, p - std::exp(of_loss) * q};
    }
    // The difference would lose its digits. Gauss-Legendre with three points is exact to rounding for so short an interval.
    double p = 0, excess = 0;
    for (const auto& [node, weight] : {std::pair(0.0, 8.0 / 18), std::pair(-std::sqrt(0.6), 5.0 / 18), std::pair(std::sqrt(0.6), 5.0 / 18)}) {
      const double x = from + width * (0.5 + 0.5 * node), part = weight * width * density(x);
      p += part;
      excess -= part * std::expm1(of_loss - loss(x));
    }
    return {p, excess};
  }
};

/// The loss of one step on the grid of multiples of `spacing`.
struct GridLoss {
  int64_t first = 0;
  std::vector<double> mass;
  double cut = 0;  ///< probability that was cut off at either end: losses above the grid, which are left out, and below it, which are rounded up

  /// ln E[exp(tilt * loss)].
  double log_moment(double tilt, double spacing) const {
    double largest = -kUnbounded;
    for (size_t i = 0; i < mass.size(); ++i)
      if (mass[i] > 0) largest = std::max(largest, tilt * spacing * static_cast<double>(first + static_cast<int64_t>(i)));
    double sum = 0;
    for (size_t i = 0; i < mass.size(); ++i)
      if (mass[i] > 0) sum += mass[i] * std::exp(tilt * spacing * static_cast<double>(first + static_cast<int64_t>(i)) - largest);
    return largest + std::log(sum);
  }
  /// Mean and variance under the tilted probabilities mass * exp(tilt * loss).
  std::pair<double, double> moments(double tilt, double spacing) const {
    const double log_total = log_moment(tilt, spacing);
    double mean = 0, square = 0;
    for (const bool second : {false, true})
      for (size_t i = 0; i < mass.size(); ++i) {
        if (mass[i] == 0) continue;
        const double loss = spacing * static_cast<double>(first + static_cast<int64_t>(i)), p = mass[i] * std::exp(tilt * loss - log_total);
        second ? square += p * (loss - mean) * (loss - mean) : mean += p * loss;
      }
    return {mean, square};
  }
};

GridLoss on_grid(const SubsampledGaussian& step, double spacing) {
  GridLoss grid;
  grid.first = static_cast<int64_t>(std::floor(step.lowest_loss() / spacing));
  const int64_t last = std::max(grid.first + 1, static_cast<int64_t>(std::ceil(step.highest_loss() / spacing)));
  grid.mass.assign(static_cast<size_t>(last - grid.first + 1), 0.0);
  const double share = -std::expm1(-spacing);
  double from = step.direction == Direction::kRemove ? step.lowest() : step.highest();
  for (int64_t i = grid.first; i < last; ++i) {
    const double loss = spacing * static_cast<double>(i), to = step.at(loss + spacing);
    const auto [mass, excess] = step.mass(std::min(from, to), std::max(from, to), loss);
    const double upper = std::clamp(excess / share, 0.0, mass);
    grid.mass[i - grid.first] += mass - upper;
    grid.mass[i + 1 - grid.first] += upper;
    from = to;
  }
  const double tail = std::erfc(step.reach / std::numbers::sqrt2) / 2;  // an upper bound for the mixture too
  grid.mass[1] += tail;
  grid.cut = tail;
  return grid;
}

/// The discrete Fourier transform in place; kGrid values.
void transform(std::vector<Complex>& values, bool inverse) {
  static const std::vector<Complex> roots = [] {
    std::vector<Complex> table(kGrid / 2);
    for (size_t k = 0; k < table.size(); ++k) table[k] = std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(kGrid));
    return table;
  }();
  for (size_t i = 1, j = 0; i < kGrid; ++i) {
    size_t bit = kGrid >> 1;
    for (; (j & bit) != 0; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(values[i], values[j]);
  }
  const double sign = inverse ? -1 : 1;
  for (size_t length = 2; length <= kGrid; length *= 2) {
    const size_t half = length / 2, stride = kGrid / length;
    for (size_t begin = 0; begin < kGrid; begin += length)
      for (size_t k = 0; k < half; ++k) {
        const double re = roots[k * stride].real(), im = sign * roots[k * stride].imag();
        const Complex even = values[begin + k], odd = values[begin + k + half];
        const Complex turned{odd.real() * re - odd.imag() * im, odd.real() * im + odd.imag() * re};
        values[begin + k] = even + turned;
        values[begin + k + half] = even - turned;
      }
  }
  if (inverse)
    for (Complex& value : values) value /= static_cast<double>(kGrid);
}

Complex power(Complex base, double exponent) {
  const double log_size = 0.5 * std::log(std::norm(base)) * exponent;
  if (!(log_size > -700)) return 0;
  return std::polar(std::exp(log_size), std::arg(base) * exponent);
}

/// The sum over all steps in one direction, under probabilities that are multiplied by exp(tilt * loss - log_moment): its bulk then lies near the
/// epsilon that is looked for, which keeps the digits of small probabilities.
struct Sum {
  double tilt = 0;
  double low = 0, high = 0;                       ///< window of the tilted sum
  double down = 0, up = 0;                        ///< tilts, in addition, of Chernoff's bounds that gave the window
  double log_moment = 0;                          ///< ln E[exp(tilt * sum)]
  double log_moment_down = 0, log_moment_up = 0;  ///< ln E[exp(down * sum)] and of `up`, of the tilted sum
  double wrapped = 0;                             ///< probability of the tilted sum outside of the window
  double rounding = 0;                            ///< of all tilted probabilities together
  double cut = 0;                                 ///< probability that any step was cut off at one end
};

/// Chooses tilt and window from steps on a coarse grid: `losses` and `spacings` by kind of steps.
Sum plan_sum(std::span<const PrivateSteps> kinds, std::span<const GridLoss> losses, std::span<const double> spacings, double delta) {
  const auto log_moment = [&](double tilt) {
    double sum = 0;
    for (size_t kind = 0; kind < kinds.size(); ++kind) sum += static_cast<double>(kinds[kind].steps) * losses[kind].log_moment(tilt, spacings[kind]);
    return sum;
  };
  Sum sum;
  double best = kUnbounded;
  for (double tilt = 1e-4; tilt < 2000; tilt *= 1.4) {
    const double epsilon = (log_moment(tilt) - std::log(delta)) / tilt;
    if (epsilon < best) best = epsilon, sum.tilt = tilt;
  }
  double mean = 0, variance = 0;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const auto [one_mean, one_variance] = losses[kind].moments(sum.tilt, spacings[kind]);
    mean += static_cast<double>(kinds[kind].steps) * one_mean;
    variance += static_cast<double>(kinds[kind].steps) * one_variance;
  }
  const double deviation = std::sqrt(variance), at_tilt = log_moment(sum.tilt);
  double above = kUnbounded, under = kUnbounded;
  for (const double multiple : {1.0, 2.0, 4.0, 6.0, 8.0})
    for (const double side : {1.0, -1.0}) {
      const double shift = side * multiple / deviation;
      const double reach = (log_moment(sum.tilt + shift) - at_tilt - shift * mean - std::log(kWrapped)) / std::abs(shift);
      if (side > 0 && reach < above) above = reach, sum.up = shift;
      if (side < 0 && reach < under) under = reach, sum.down = shift;
    }
  sum.low = mean - under;
  sum.high = mean + above;
  return sum;
}

/// Bracket of one direction from the circular distribution of its tilted sum, `mass(index)`.
template <class Mass>
Bracket bracket(const Sum& sum, double spacing, double steps, double delta, Mass mass) {
  const int64_t lowest = std::max<int64_t>(0, static_cast<int64_t>(std::floor(sum.low / spacing)));
  const int64_t highest = static_cast<int64_t>(std::floor(sum.low / spacing)) + static_cast<int64_t>(kGrid) - 1;
  const double gap = steps * spacing * spacing / 8 + spacing * std::sqrt(steps / 2 * -std::log(kShare * delta));
  const double decay = std::exp(-spacing);
  Bracket found{0, kUnbounded};
  double beyond = 0, matched = 0;  // probability of losses above the current one, and the part of it that Q matches
  for (int64_t i = highest; i >= lowest; --i) {
    const double loss = spacing * static_cast<double>(i), untilt = std::exp(sum.log_moment - sum.tilt * loss);
    const double value = beyond - matched, doubt = untilt * (sum.wrapped + sum.rounding) + sum.cut;
    if (value + doubt <= delta) found.upper = loss;
    if (value - doubt - sum.cut - kShare * delta > delta) {
      found.lower = std::max(0.0, loss - gap);
      break;
    }
    const double p = std::max(0.0, mass(i)) * untilt;
    beyond += p;
    matched = (matched + p) * decay;
  }
  if (found.upper < found.lower || std::isnan(found.upper)) found.upper = kUnbounded;
  return found;
}

/// Steps of the same sampling rate and noise together, without those that release nothing; none if steps have no noise.
std::optional<std::vector<PrivateSteps>> kinds_of(std::span<const PrivateSteps> history) {
  std::vector<PrivateSteps> kinds;
  for (const PrivateSteps& steps : history) {
    TRIREME_CHECK(steps.sampling_rate >= 0 && steps.sampling_rate <= 1 && steps.noise >= 0, "sampling rate ", steps.sampling_rate);
    if (steps.steps == 0 || steps.sampling_rate == 0) continue;
    if (steps.noise == 0) return {};
    const auto same = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const PrivateSteps& kind) { return kind.sampling_rate == steps.sampling_rate && kind.noise == steps.noise; });
    if (same == kinds.end())
      kinds.push_back(steps);
    else
      same->steps += steps.steps;
  }
  return kinds;
}

/// The sums of all kinds of steps in both directions, on one grid.
class Convolution {
 public:
  Convolution(std::span<const PrivateSteps> kinds, double delta) : kinds_(kinds), delta_(delta) {
    for (const PrivateSteps& kind : kinds) steps_ += static_cast<double>(kind.steps);
    reach_ = std::sqrt(2 * std::log(steps_ / (kShare * delta)));
  }
  Bracket worst();

 private:
  SubsampledGaussian mechanism(const PrivateSteps& kind, size_t direction) const {
    return {kind.sampling_rate, kind.noise, kDirections[direction], reach_};
  }
  bool plan();                              ///< sums_ and spacing_; false if steps cannot be bounded
  bool multiply(const PrivateSteps& kind);  ///< products_ by the steps of a kind; false if they do not fit on the grid
  void combine();                           ///< values_: the distributions of both sums
  Bracket bracket_of(size_t direction);

  std::span<const PrivateSteps> kinds_;
  double delta_, steps_ = 0, reach_ = 0, spacing_ = 0;
  std::array<Sum, kDirections.size()> sums_;
  // Two real distributions are the real and the imaginary part of one transform.
  static constexpr size_t kHalf = kGrid / 2;
  std::array<std::vector<Complex>, kDirections.size()> products_{std::vector<Complex>(kHalf + 1, 1.0), std::vector<Complex>(kHalf + 1, 1.0)};
  std::vector<Complex> values_ = std::vector<Complex>(kGrid);
};

bool Convolution::plan() {
  double width = 0;
  for (size_t d = 0; d < kDirections.size(); ++d) {
    std::vector<GridLoss> losses;
    std::vector<double> spacings;
    for (const PrivateSteps& kind : kinds_) {
      const SubsampledGaussian step = mechanism(kind, d);
      if (!step.is_covered()) return false;
      spacings.push_back((step.highest_loss() - step.lowest_loss()) / kCoarsePoints);
      losses.push_back(on_grid(step, spacings.back()));
    }
    sums_[d] = plan_sum(kinds_, losses, spacings, delta_);
    width = std::max(width, sums_[d].high - sums_[d].low);
  }
  spacing_ = width / static_cast<double>(kGrid - 2);
  return spacing_ > 0 && spacing_ <= kLargestLoss;
}

bool Convolution::multiply(const PrivateSteps& kind) {
  const double steps = static_cast<double>(kind.steps);
  std::fill(values_.begin(), values_.end(), 0.0);
  for (size_t d = 0; d < kDirections.size(); ++d) {
    Sum& sum = sums_[d];
    const SubsampledGaussian step = mechanism(kind, d);
    if ((step.highest_loss() - step.lowest_loss()) / spacing_ > kMostPoints) return false;
    const GridLoss loss = on_grid(step, spacing_);
    const double log_moment = loss.log_moment(sum.tilt, spacing_);
    for (size_t i = 0; i < loss.mass.size(); ++i) {
      const int64_t index = loss.first + static_cast<int64_t>(i);
      const double p = loss.mass[i] * std::exp(sum.tilt * spacing_ * static_cast<double>(index) - log_moment);
      values_[static_cast<uint64_t>(index) % kGrid] += d == 0 ? Complex(p, 0) : Complex(0, p);
    }
    sum.log_moment += steps * log_moment;
    sum.log_moment_up += steps * (loss.log_moment(sum.tilt + sum.up, spacing_) - log_moment);
    sum.log_moment_down += steps * (loss.log_moment(sum.tilt + sum.down, spacing_) - log_moment);
    sum.cut += steps * loss.cut;
  }
  transform(values_, false);
  for (size_t k = 0; k <= kHalf; ++k) {
    const Complex here = values_[k], mirrored = std::conj(values_[(kGrid - k) % kGrid]);
    products_[0][k] *= power((here + mirrored) / 2.0, steps);
    products_[1][k] *= power((here - mirrored) / Complex(0, 2), steps);
  }
  return true;
}

void Convolution::combine() {
  for (size_t k = 0; k <= kHalf; ++k) {
    values_[k] = products_[0][k] + Complex(0, 1) * products_[1][k];
    if (k > 0 && k < kHalf) values_[kGrid - k] = std::conj(products_[0][k]) + Complex(0, 1) * std::conj(products_[1][k]);
  }
  transform(values_, true);
}

Bracket Convolution::bracket_of(size_t direction) {
  Sum& sum = sums_[direction];
  // The window of the grid begins at `low`; Chernoff's bounds say how much of the sum is outside of it.
  sum.wrapped = std::exp(sum.log_moment_up - sum.up * (sum.low + spacing_ * static_cast<double>(kGrid - 2))) +
                std::exp(sum.log_moment_down - sum.down * sum.low);
  double spectrum = 0;
  for (const Complex& value : products_[direction]) spectrum += 2 * std::abs(value);
  sum.rounding = spectrum * (steps_ + 8) * kRounding;
  return bracket(sum, spacing_, steps_, delta_, [&](int64_t index) {
    const Complex value = values_[static_cast<uint64_t>(index) % kGrid];
    return direction == 0 ? value.real() : value.imag();
  });
}

Bracket Convolution::worst() {
  if (!plan() || !std::ranges::all_of(kinds_, [&](const PrivateSteps& kind) { return multiply(kind); })) return {0, kUnbounded};
  combine();
  Bracket worst{0, 0};
  for (size_t d = 0; d < kDirections.size(); ++d) {
    const Bracket one = bracket_of(d);
    worst = {std::max(worst.lower, one.lower), std::max(worst.upper, one.upper)};
  }
  return worst;
}

}  // namespace

Bracket tight_epsilon(std::span<const PrivateSteps> history, double delta) {
  TRIREME_CHECK(delta > 0 && delta < 1, "delta ", delta);
  const std::optional<std::vector<PrivateSteps>> kinds = kinds_of(history);
  if (!kinds) return {kUnbounded, kUnbounded};
  if (kinds->empty()) return {0, 0};
  return Convolution(*kinds, delta).worst();
}

}  // namespace trireme::privacy
