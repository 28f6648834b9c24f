// The numerical accountant against exact values, against brackets that were computed independently, and against the RDP accountant.
#include "trainer/privacy/loss_distribution.h"

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <vector>

#include "tests/support/catch.h"

namespace trireme::privacy {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

struct BracketRow {
  std::vector<PrivateSteps> history;
  double delta;
  Bracket known;
};

double above(double x) { return std::erfc(x / std::numbers::sqrt2) / 2; }

/// delta of one step at `epsilon` of either sign, in closed form: P(loss > epsilon) - exp(epsilon) Q(loss > epsilon).
double delta_of_step(double rate, double noise, bool removed, double epsilon) {
  const auto at_loss = [&](double ratio) {  // the x where ln((1 - rate) + rate exp((x - 1/2) / noise^2)) is `ratio`
    const double inner = (std::exp(ratio) - (1 - rate)) / rate;
    return inner <= 0 ? -kUnbounded : noise * noise * std::log(inner) + 0.5;
  };
  const auto normal = [&](double x) { return above(x / noise); };
  const auto mixture = [&](double x) { return (1 - rate) * above(x / noise) + rate * above((x - 1) / noise); };
  if (removed) {
    const double x = at_loss(epsilon);
    return mixture(x) - std::exp(epsilon) * normal(x);
  }
  const double x = at_loss(-epsilon);
  return (1 - normal(x)) - std::exp(epsilon) * (1 - mixture(x));
}

/// delta of two steps: the integral over what the first one releases.
double delta_of_two(double rate, double noise, bool removed, double epsilon) {
  double sum = 0;
  const double low = -12 * noise, high = 1 + 12 * noise, step = (high - low) / 20000;
  for (int i = 0; i <= 20000; ++i) {
    const double x = low + i * step, scale = 1 / (noise * std::sqrt(2 * std::numbers::pi));
    const double without = scale * std::exp(-x * x / (2 * noise * noise)), with = scale * std::exp(-(x - 1) * (x - 1) / (2 * noise * noise));
    const double mixed = (1 - rate) * without + rate * with, ratio = std::log(mixed / without);
    sum += step * (removed ? mixed : without) * delta_of_step(rate, noise, removed, epsilon - (removed ? ratio : -ratio));
  }
  return sum;
}

double smallest_epsilon(const std::function<double(double)>& delta_at, double delta) {
  double low = 0, high = 50;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (delta_at(middle) <= delta ? high : low) = middle;
  }
  return high;
}

}  // namespace

TEST_CASE("privacy loss distribution: brackets agree with the known ones, and RDP is never below them") {
  const std::vector<BracketRow> rows{
      {{{0.01, 1.0, 1000}}, 1e-5, {1.8246, 1.8318}},          {{{0.04, 1.5, 2250}}, 1e-5, {6.7366, 6.8010}},
      {{{150.0 / 60000, 1.3, 6000}}, 1e-5, {0.6257, 0.6543}}, {{{0.001, 1.0, 30000}}, 1e-7, {1.0619, 1.1334}},
      {{{0.01, 0.7, 120}}, 1e-5, {2.4590, 2.4635}},           {{{256.0 / 60000, 1.1, 14063}}, 1e-5, {2.3565, 2.4068}},
      {{{0.001024, 0.6, 5000}}, 1e-6, {2.739, 2.835}},        {{{0.01, 0.8, 10000}}, 1e-5, {9.911, 10.197}},
      {{{0.01, 2.0, 10000}}, 1e-5, {2.091, 2.234}},
  };
  for (const BracketRow& row : rows) {
    CAPTURE(row.history[0].sampling_rate, row.history[0].noise, row.history[0].steps);
    const Bracket bracket = tight_epsilon(row.history, row.delta);
    CAPTURE(bracket.lower, bracket.upper);
    CHECK(bracket.lower <= row.known.upper);
    CHECK(bracket.upper >= row.known.lower);
    CHECK(bracket.upper <= row.known.upper);  // the grid is finer than that of the known brackets
    CHECK(bracket.upper - bracket.lower < 0.06);
    CHECK(rdp_epsilon(row.history, row.delta).value > bracket.upper);
  }
}

TEST_CASE("privacy loss distribution: the Gaussian mechanism without sampling has its analytic epsilon") {
  const auto check = [](double noise, int64_t steps, double exact) {
    CAPTURE(noise, steps);
    const Bracket bracket = tight_epsilon(std::vector<PrivateSteps>{{1, noise, steps}}, 1e-5);
    CHECK(bracket.lower <= exact);
    CHECK(bracket.upper >= exact);
    CHECK(bracket.upper - exact < 1e-4);
    CHECK(exact - bracket.lower < 2e-3);
  };
  check(1, 1, 4.377178096);
  check(10, 100, 4.377178096);
  check(2, 1, 1.993091404);
  check(5, 1, 0.725521751);
}

TEST_CASE("privacy loss distribution: one and two subsampled steps agree with closed forms and with an integral") {
  for (const auto& [rate, noise] : {std::pair(0.3, 0.8), std::pair(0.05, 0.6), std::pair(0.9, 2.0)})
    for (const int64_t steps : {1, 2}) {
      CAPTURE(rate, noise, steps);
      double exact = 0;
      for (const bool removed : {false, true})
        exact = std::max(exact,
                         smallest_epsilon([&, rate = rate, noise = noise](
                                              double epsilon) { return (steps == 1 ? delta_of_step : delta_of_two)(rate, noise, removed, epsilon); },
                                          1e-4));
      const Bracket bracket = tight_epsilon(std::vector<PrivateSteps>{{rate, noise, steps}}, 1e-4);
      CHECK(bracket.lower <= exact);
      CHECK(bracket.upper >= exact);
      CHECK(bracket.upper - exact < 2e-4);
      CHECK(exact - bracket.lower < 2e-3);
    }
}

TEST_CASE("privacy loss distribution: kinds of steps compose, in any order and split") {
  const Bracket together = tight_epsilon(std::vector<PrivateSteps>{{0.01, 1.0, 500}, {0.02, 2.0, 500}}, 1e-5);
  const Bracket split = tight_epsilon(std::vector<PrivateSteps>{{0.01, 1.0, 200}, {0.02, 2.0, 500}, {0.01, 1.0, 300}}, 1e-5);
  CHECK(split.upper == together.upper);
  CHECK(split.lower == together.lower);
  CHECK(together.upper < 1.896841343);
  CHECK(together.upper > tight_epsilon(std::vector<PrivateSteps>{{0.01, 1.0, 500}}, 1e-5).upper);
  // Half of the steps with another noise that is hardly another one.
  const Bracket one = tight_epsilon(std::vector<PrivateSteps>{{0.01, 1.0, 1000}}, 1e-5);
  const Bracket near = tight_epsilon(std::vector<PrivateSteps>{{0.01, 1.0, 500}, {0.01, 1.0 + 1e-9, 500}}, 1e-5);
  CHECK(near.upper == Approx(one.upper).margin(1e-4));
}

TEST_CASE("privacy loss distribution: extreme steps have a bracket that is no narrower than it may be") {
  const auto bracket = [](double rate, double noise, int64_t steps, double delta = 1e-5) {
    return tight_epsilon(std::vector<PrivateSteps>{{rate, noise, steps}}, delta);
  };
  CHECK(tight_epsilon({}, 1e-5).upper == 0);
  CHECK(bracket(0, 0, 10).upper == 0);
  CHECK(bracket(0.01, 0, 10).lower == kUnbounded);
  CHECK(bracket(0.01, 1e-3, 10).upper == kUnbounded);
  CHECK(bracket(1e-12, 1, 1).upper == 0);               // delta covers the sample's inclusion
  const Bracket small = bracket(0.01, 1, 1000, 1e-20);  // the transform rounds at 1e-16
  CHECK(small.upper < rdp_epsilon(std::vector<PrivateSteps>{{0.01, 1, 1000}}, 1e-20).value);
  CHECK(small.upper > 6);
  for (const double rate : {1e-6, 0.5})
    for (const double noise : {0.05, 1e6})
      for (const int64_t steps : {int64_t{1}, std::numeric_limits<int64_t>::max()}) {
        CAPTURE(rate, noise, steps);
        const Bracket extreme = bracket(rate, noise, steps);
        CHECK(extreme.lower >= 0);
        CHECK(extreme.upper >= extreme.lower);  // false for NaN
      }
}

}  // namespace trireme::privacy
