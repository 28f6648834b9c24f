#include "trainer/plan/analysis/reliability.h"

#include <cmath>
#include <random>
#include <vector>

#include "tests/support/catch.h"

namespace trireme {
namespace {

/// Simulates a job with exponentially distributed failures. After each failure it waits for `restart`, then alternates training and saving. A
/// checkpoint becomes usable `lag` after training has resumed from saving it. Returns the share of time that was effective training.
double simulate(double mtbf, double stall, double restart, double lag, double interval, int failures) {
  std::mt19937_64 random(20240501);
  std::exponential_distribution<double> until_failure(1 / mtbf);
  double elapsed = 0, kept = 0;
  for (int i = 0; i < failures; ++i) {
    const double lived = until_failure(random);
    elapsed += lived;
    const double trained = lived - restart - lag;
    if (trained > 0) kept += std::floor(trained / (interval + stall)) * interval;
  }
  return kept / elapsed;
}

/// Minimum of a parabola fitted to the simulated losses over log(interval), because single runs are noisy and the curve is flat there.
double simulated_optimum(double mtbf, double stall, double restart, double lag, double around) {
  constexpr int kSide = 10;
  double sx2 = 0, sx4 = 0, sy = 0, sxy = 0, sx2y = 0, n = 0;
  for (int i = -kSide; i <= kSide; ++i) {
    const double x = 0.4 * i / kSide;
    const double y = 1 - simulate(mtbf, stall, restart, lag, around * std::exp(x), 200000);
    sx2 += x * x, sx4 += x * x * x * x, sy += y, sxy += x * y, sx2y += x * x * y, n += 1;
  }
  const double slope = sxy / sx2, curvature = (n * sx2y - sx2 * sy) / (n * sx4 - sx2 * sx2);
  return around * std::exp(-slope / (2 * curvature));
}

TEST_CASE("intervals in Daly's figures") {
  // Daly 2006, figures 3 to 5: stall of 5 minutes, mean times between failures of 24 h, 6 h and 15 minutes: 117, 57 and 9.1 minutes.
  CHECK(daly_interval(5, 24 * 60) == Approx(117).margin(0.5));
  CHECK(daly_interval(5, 6 * 60) == Approx(57).margin(0.5));
  CHECK(daly_interval(5, 15) == Approx(9.1).margin(0.05));
  CHECK(daly_interval(40, 15) == 15);
  CHECK(young_interval(5, 24 * 60) == 120);
}

TEST_CASE("interval and lost time of a job that fails as often as Llama 3's, and of a sixteenth of its nodes") {
  struct Answer {
    double stall, interval, lost;
  };
  const auto check = [](double mtbf, const std::vector<Answer>& answers) {
    for (const Answer& is : answers) {
      CAPTURE(mtbf, is.stall);
      const double interval = young_interval(is.stall, mtbf);
      CHECK(interval == Approx(is.interval).margin(0.5));
      CHECK(1 - effective_share({mtbf, is.stall, 0}, interval) == Approx(is.lost).margin(0.0005));
      // Daly's next orders matter for long saves only, and a failure costs its downtime besides.
      CHECK(daly_interval(is.stall, mtbf) == Approx(interval).epsilon(0.06));
      CHECK(1 - effective_share({mtbf, is.stall, 60}, interval) == Approx(is.lost + 60 / mtbf).margin(0.0005));
    }
  };
  constexpr double kHour = 3600;
  check(3.09 * kHour, {{1, 149, 0.0134}, {5, 334, 0.0300}, {30, 817, 0.0734}, {120, 1634, 0.147}});
  check(16 * 3.09 * kHour, {{1, 597, 0.0034}, {5, 1334, 0.0075}, {30, 3268, 0.0184}, {120, 6536, 0.0367}});
}

TEST_CASE("the closed-form interval is the simulated optimum") {
  struct Row {
    double mtbf, stall, restart, lag;
  };
  // Seconds: 16,384 GPUs with a stall of seconds, the same with saves that block training for five minutes, and a job that fails often.
  const Row row = GENERATE(Row{11135, 3, 300, 60}, Row{11135, 300, 300, 0}, Row{1800, 180, 60, 20});
  CAPTURE(row.mtbf, row.stall);
  const double daly = daly_interval(row.stall, row.mtbf);
  const double simulated = simulated_optimum(row.mtbf, row.stall, row.restart, row.lag, daly);
  CAPTURE(daly, simulated);
  CHECK(daly == Approx(simulated).epsilon(0.03));
  CHECK(effective_share_exponential({row.mtbf, row.stall, row.restart + row.lag}, daly) ==
        Approx(simulate(row.mtbf, row.stall, row.restart, row.lag, daly, 1000000)).epsilon(0.005));
}

TEST_CASE("for long saves Young's interval is too long and Daly's is not") {
  const double simulated = simulated_optimum(1800, 180, 60, 0, 690);
  CHECK(std::abs(daly_interval(180, 1800) / simulated - 1) < 0.03);
  CHECK(young_interval(180, 1800) / simulated - 1 > 0.1);
}

TEST_CASE("the first-order share equals the simulated one for short intervals and downtimes") {
  const Failures failures{11135, 3, 60};
  const double interval = young_interval(failures.stall, failures.mtbf);
  const double share = effective_share(failures, interval);
  CHECK(share ==
        Approx(1 - 2 * failures.stall / interval - failures.downtime / failures.mtbf).margin(1e-9));  // half of the loss is saves, half is replay
  CHECK(1 - share == Approx(1 - simulate(failures.mtbf, failures.stall, 60, 0, interval, 1000000)).epsilon(0.03));
  CHECK(share == Approx(effective_share_exponential(failures, interval)).margin(0.001));
}

TEST_CASE("Llama 3's failures leave more than 90 % effective training time") {
  // Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs, more than 90 % effective time.
  const double mtbf = 54 * 86400.0 / 419;
  CHECK(mtbf / 3600 == Approx(3.09).margin(0.005));
  const double node_mtbf = mtbf * 16384 / 8;
  CHECK(node_mtbf / 86400 == Approx(264).margin(0.5));
  // Section 3.3.1: storage writes 2 TB/s. 12 bytes for each of 405e9 parameters, synchronous saves, ten minutes per restart.
  const double stall = 12 * 405e9 / 2e12;
  const Failures failures{mtbf, stall, 600};
  const double interval = daly_interval(stall, mtbf);
  CHECK(effective_share(failures, interval) > 0.90);
  CHECK(effective_share_exponential(failures, interval) > 0.90);
  // 15 more minutes of downtime per failure would contradict the published figure.
  CHECK(effective_share({mtbf, stall, 600 + 900}, interval) < 0.90);
  CHECK(effective_share({60, stall, 600 + 900}, interval) == 0);  // clamped to 0
}

}  // namespace
}  // namespace trireme
