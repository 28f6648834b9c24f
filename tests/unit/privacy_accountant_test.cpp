// The accountant of differentially private training against known answers: a table that was computed with 50 digits, two of whose rows TensorFlow
// Privacy gives too.
#include "trainer/privacy/accountant.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/catch.h"

namespace trireme::privacy {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Row {
  std::vector<PrivateSteps> history;
  double delta;
  double classic;
  int classic_order;
  double improved;
  int improved_order;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table{
      {{{0.01, 1.0, 1000}}, 1e-5, 2.538347545, 8, 2.107753075, 8},
      {{{0.04, 1.5, 2250}}, 1e-5, 8.079656967, 4, 7.329876774, 4},
      {{{150.0 / 60000, 1.3, 6000}}, 1e-5, 0.941870567, 19, 0.724223403, 19},
      {{{0.001, 1.0, 30000}}, 1e-7, 1.709287337, 13, 1.415498850, 13},
      {{{0.01, 0.7, 120}}, 1e-5, 4.149187868, 4, 3.399407675, 4},
      {{{256.0 / 60000, 1.1, 14063}}, 1e-5, 3.009211173, 9, 2.597079520, 8},
      {{{1, 1.0, 1}}, 1e-5, 5.302585093, 6, 4.752728337, 5},
      {{{0.001024, 0.6, 5000}}, 1e-6, 4.824450767, 4, 4.074670575, 4},
      {{{0.01, 0.8, 10000}}, 1e-5, 11.890144697, 3, 10.935373445, 3},
      {{{0.01, 2.0, 10000}}, 1e-5, 2.735445433, 10, 2.353092678, 9},
      {{{0.01, 1.0, 500}, {0.02, 2.0, 500}}, 1e-5, 2.327435813, 8, 1.896841343, 8},
  };
  return table;
}

/// The older conversion, which the accountant does not use: epsilon = RDP + ln(1/delta) / (a - 1).
Epsilon classic_epsilon(const std::vector<PrivateSteps>& history, double delta) {
  Epsilon least{kInfinity, 0};
  for (int order = kFirstOrder; order <= kLastOrder; ++order) {
    double rdp = 0;
    for (const PrivateSteps& steps : history) rdp += static_cast<double>(steps.steps) * rdp_of_step(steps.sampling_rate, steps.noise, order);
    const double value = rdp - std::log(delta) / (order - 1);
    if (value < least.value) least = {value, order};
  }
  return least;
}

constexpr double kDigits = 0.5000001e-9;  ///< half of the last digit of the table

}  // namespace

TEST_CASE("privacy accountant: epsilon of the table's runs, to all its digits and at its orders") {
  for (const Row& row : rows()) {
    CAPTURE(row.history[0].sampling_rate, row.history[0].noise);
    const Epsilon improved = rdp_epsilon(row.history, row.delta);
    CHECK(std::abs(improved.value - row.improved) < kDigits);
    CHECK(improved.order == row.improved_order);
    const Epsilon classic = classic_epsilon(row.history, row.delta);
    CHECK(std::abs(classic.value - row.classic) < kDigits);
    CHECK(classic.order == row.classic_order);
  }
}

TEST_CASE("privacy accountant: RDP of one step at single orders") {
  CHECK(rdp_of_step(0.01, 1, 2) == Approx(1.71813422074548e-4).epsilon(1e-14));
  CHECK(rdp_of_step(0.01, 1, 4) == Approx(3.63154048910757e-4).epsilon(1e-14));
  CHECK(rdp_of_step(0.01, 1, 8) == Approx(8.93643907606e-4).epsilon(1e-12));
  CHECK(rdp_of_step(0.01, 1, 16) == Approx(3.08785078369624).epsilon(1e-14));
  CHECK(rdp_of_step(0.01, 1, 32) == Approx(11.2462759370481).epsilon(1e-14));
  CHECK(rdp_of_step(0.01, 1, 64) == Approx(27.3217318745518).epsilon(1e-14));
  // Order 2 has a closed form, ln(1 + q^2 (exp(1/s^2) - 1)), which a small rate must not lose to rounding.
  for (const double rate : {1e-9, 1e-6, 1e-3, 0.3, 0.999})
    for (const double noise : {0.3, 1.0, 20.0})
      CHECK(rdp_of_step(rate, noise, 2) == Approx(std::log1p(rate * rate * std::expm1(1 / (noise * noise)))).epsilon(1e-13));
}

TEST_CASE("privacy accountant: steps of several kinds, in any order and any split, have one epsilon") {
  const std::vector<PrivateSteps> split{{0.01, 1.0, 200}, {0.02, 2.0, 500}, {0.01, 1.0, 300}};
  CHECK(rdp_epsilon(split, 1e-5).value == Approx(1.896841343).epsilon(1e-9));
  RdpCurve step, sum;
  step.add({0.01, 1.0, 1});
  sum.add(step, 1000);
  CHECK(sum.epsilon(1e-5).value == Approx(2.107753075).epsilon(1e-9));
  // Without subsampling, T steps with noise s are one step with noise s / sqrt(T).
  CHECK(rdp_epsilon(std::vector<PrivateSteps>{{1, 10, 100}}, 1e-5).value == Approx(rdp_epsilon(std::vector<PrivateSteps>{{1, 1, 1}}, 1e-5).value));
}

TEST_CASE("privacy accountant: extreme steps have an epsilon that is a number") {
  const auto epsilon = [](double rate, double noise, int64_t steps) {
    return rdp_epsilon(std::vector<PrivateSteps>{{rate, noise, steps}}, 1e-5).value;
  };
  CHECK(rdp_epsilon({}, 1e-5).value == 0);
  CHECK(epsilon(0.01, 1, 0) == 0);
  CHECK(epsilon(0, 1, 1000) == 0);
  CHECK(epsilon(0, 0, 1000) == 0);
  CHECK(epsilon(0.01, 0, 0) == 0);
  CHECK(epsilon(0.01, 0, 1) == kInfinity);
  CHECK(epsilon(1, 0, 1) == kInfinity);
  CHECK(epsilon(1, 1e-200, 1) == kInfinity);
  for (const double rate : {1e-300, 1e-12, 1e-3, 0.5, 1.0})
    for (const double noise : {1e-200, 1e-3, 0.1, 1.0, 1e3, 1e200})
      for (const int64_t steps : {int64_t{1}, int64_t{1'000'000}, std::numeric_limits<int64_t>::max()}) {
        CAPTURE(rate, noise, steps);
        CHECK(epsilon(rate, noise, steps) >= 0);  // false for NaN
      }
  CHECK(epsilon(1e-3, 1.0, std::numeric_limits<int64_t>::max()) > 1e9);
  // More noise, fewer steps or a smaller rate never cost more.
  CHECK(epsilon(0.01, 1.1, 1000) < epsilon(0.01, 1.0, 1000));
  CHECK(epsilon(0.01, 1.0, 999) < epsilon(0.01, 1.0, 1000));
  CHECK(epsilon(0.0099, 1.0, 1000) < epsilon(0.01, 1.0, 1000));
}

TEST_CASE("privacy accountant: noise_for is the least noise within the budget, rounded up") {
  const auto check = [](double target, double rate, int64_t steps, double delta, const std::vector<PrivateSteps>& history) {
    CAPTURE(target, rate, steps, delta);
    const double noise = noise_for(target, rate, steps, delta, history);
    const auto total = [&](double with) {
      std::vector<PrivateSteps> all = history;
      all.push_back({rate, with, steps});
      return rdp_epsilon(all, delta).value;
    };
    CHECK(total(noise) <= target);
    CHECK(total(noise - 1 / kNoiseSteps) > target);
    CHECK(noise == std::round(noise * kNoiseSteps) / kNoiseSteps);
    return noise;
  };
  CHECK(check(2.107753076, 0.01, 1000, 1e-5, {}) == 1.0);
  CHECK(check(2.107753074, 0.01, 1000, 1e-5, {}) == 1.0001);
  CHECK(check(1.896841344, 0.02, 500, 1e-5, {{0.01, 1.0, 500}}) == 2.0);
  check(0.5, 0.001, 100000, 1e-7, {});
  check(50, 0.01, 100, 1e-5, {});
  check(8, 1, 10, 1e-6, {{1, 5, 3}});
  CHECK(noise_for(1, 0.01, 1000, 1e-5, std::vector<PrivateSteps>{{0.01, 1.0, 1000}}) == kInfinity);  // the history alone has 2.1
  CHECK(noise_for(1e-3, 0.01, 1000, 1e-5) == kInfinity);
  CHECK(noise_for(1, 0.01, 0, 1e-5) == 0);
  CHECK(noise_for(1, 0, 1000, 1e-5) == 0);
}

TEST_CASE("privacy accountant: affordable_steps is the last number of steps within the budget") {
  const auto epsilon = [](const std::vector<PrivateSteps>& history, PrivateSteps next, int64_t steps) {
    std::vector<PrivateSteps> all = history;
    next.steps = steps;
    all.push_back(next);
    return rdp_epsilon(all, 1e-5).value;
  };
  for (const std::vector<PrivateSteps>& history : {std::vector<PrivateSteps>{}, std::vector<PrivateSteps>{{0.02, 2.0, 300}}}) {
    const PrivateSteps next{0.01, 1.0, 1'000'000};
    const int64_t steps = affordable_steps(history, next, 1e-5, 2.0);
    CHECK(steps > 100);
    CHECK(epsilon(history, next, steps) <= 2.0);
    CHECK(epsilon(history, next, steps + 1) > 2.0);
  }
  CHECK(affordable_steps({}, {0.01, 1.0, 1000}, 1e-5, 2.107753076) == 1000);
  CHECK(affordable_steps({}, {0.01, 1.0, 1000}, 1e-5, 2.107753074) == 999);
  CHECK(affordable_steps({}, {0.01, 1.0, 10}, 1e-5, 100) == 10);
  CHECK(affordable_steps({}, {0.01, 0, 10}, 1e-5, 100) == 0);
  CHECK(affordable_steps({}, {0, 0, 10}, 1e-5, 100) == 10);
  CHECK(affordable_steps({}, {0.01, 1.0, 0}, 1e-5, 100) == 0);
  CHECK(affordable_steps(std::vector<PrivateSteps>{{0.01, 1.0, 1000}}, {0.01, 1.0, 1000}, 1e-5, 1.0) == 0);
  CHECK(affordable_steps({}, {1e-9, 1e3, std::numeric_limits<int64_t>::max()}, 1e-5, 1.0) > 1'000'000'000);
}

}  // namespace trireme::privacy
