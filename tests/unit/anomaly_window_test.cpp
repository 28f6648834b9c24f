// observe.anomalies: the limits of loss and gradient norm, and what they are computed from.
#include "trainer/run/anomaly_window.h"

#include <cmath>
#include <limits>

#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "trainer/run/exchange_log.h"
#include "trainer/run/rejected_steps.h"

using namespace trireme;
using Catch::Matchers::Contains;

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

StepResult step_of(double loss, double grad_norm) {
  StepResult result;
  result.loss = loss;
  result.grad_norm = grad_norm;
  result.targets = 7;
  return result;
}

/// A window after `steps` with these figures.
AnomalyWindow window_of(const AnomalyConfig& config, const std::vector<StepFigures>& steps) {
  AnomalyWindow window(config, {});
  for (const StepFigures& step : steps) window.add(step_of(step.loss, step.grad_norm));
  return window;
}

std::vector<StepFigures> steady(int64_t steps) { return std::vector<StepFigures>(static_cast<size_t>(steps), {2, 1}); }

}  // namespace

TEST_CASE("anomalies: no step is judged before the window is full") {
  const AnomalyConfig config;
  CHECK(window_of(config, steady(127)).limits() == StepLimits());
  CHECK(window_of(config, steady(128)).limits().loss < 3);
  const AnomalyConfig small{.window = 8};
  CHECK(window_of(small, steady(7)).limits() == StepLimits());
  CHECK(window_of(small, steady(8)).limits().loss < 3);
}

TEST_CASE("anomalies: policies that reject steps reject a loss that is not finite from the first step on") {
  for (const AnomalyPolicy policy : {AnomalyPolicy::kWarn, AnomalyPolicy::kSkip, AnomalyPolicy::kRerun, AnomalyPolicy::kStop}) {
    const AnomalyConfig config{.policy = policy};
    CHECK(window_of(config, {}).limits().finite_loss == (policy != AnomalyPolicy::kWarn));
    CHECK(window_of(config, steady(128)).limits().finite_loss == (policy != AnomalyPolicy::kWarn));
  }
}

TEST_CASE("anomalies: exchanges that only one execution of a step has are differences") {
  const std::string group = "world";
  const std::vector<int> ranks = {0, 1};
  const auto exchange = [&](int64_t number, bool outgoing, uint64_t digest) {
    return Exchange{&group, &ranks, "all_reduce", outgoing, number, -1, digest};
  };
  const std::vector<Exchange> shorter = {exchange(4, true, 7), exchange(4, false, 8)};
  std::vector<Exchange> longer = shorter;
  CHECK(compare(shorter, longer, 0).first.empty());
  longer.push_back(exchange(5, true, 9));
  for (const ExchangeDifference& difference : {compare(shorter, longer, 0), compare(longer, shorter, 0)}) {
    CHECK(difference.first == "all_reduce 2 over world (ranks 0, 1)");
    CHECK(difference.first_is_sent);
    CHECK(difference.sent == std::vector<std::string>{difference.first});
  }
  longer[1].digest = 0;
  CHECK(compare(shorter, longer, 0).first == "all_reduce 1 over world (ranks 0, 1)");
  CHECK_FALSE(compare(shorter, longer, 0).first_is_sent);
}

TEST_CASE("anomalies: exchanges are numbered by peer and direction, and by group even if two groups have one name") {
  const std::string pipeline = "pipeline", tensor = "tensor";
  const std::vector<int> four = {0, 1, 2, 3}, left = {0, 1}, right = {1, 2};
  uint64_t digest = 0;
  const auto message = [&](bool outgoing, int64_t number, int peer) {
    return Exchange{&pipeline, &four, "exchange", outgoing, number, peer, ++digest};
  };
  const auto all_reduce = [&](const std::vector<int>& ranks, bool outgoing, int64_t number) {
    return Exchange{&tensor, &ranks, "all_reduce", outgoing, number, -1, ++digest};
  };
  const std::vector<Exchange> first = {
      message(true, 5, 2),   message(true, 9, 3),       message(true, 6, 2),         message(true, 10, 3),       message(false, 30, 2),
      message(false, 31, 2), all_reduce(left, true, 7), all_reduce(right, true, 20), all_reduce(left, false, 8), all_reduce(right, false, 22)};
  const std::vector<std::string> names = {"message 1 from rank 1 to rank 2",       "message 1 from rank 1 to rank 3",
                                          "message 2 from rank 1 to rank 2",       "message 2 from rank 1 to rank 3",
                                          "message 1 from rank 2 to rank 1",       "message 2 from rank 2 to rank 1",
                                          "all_reduce 1 over tensor (ranks 0, 1)", "all_reduce 1 over tensor (ranks 1, 2)",
                                          "all_reduce 2 over tensor (ranks 0, 1)", "all_reduce 3 over tensor (ranks 1, 2)"};
  for (size_t changed = 0; changed < first.size(); ++changed) {
    std::vector<Exchange> second = first;
    second[changed].digest = 99;
    const ExchangeDifference difference = compare(first, second, 1);
    CHECK(difference.first == names[changed]);
    CHECK(difference.first_is_sent == first[changed].outgoing);
    CHECK(difference.sent == (first[changed].outgoing ? std::vector<std::string>{names[changed]} : std::vector<std::string>{}));
    if (changed == 0) continue;
    second[9].digest = second[3].digest = 98;
    second[0].digest = 97;
    CHECK(compare(first, second, 1).first == names[0]);
    CHECK(compare(first, second, 1).sent.size() == (first[changed].outgoing && changed != 3 ? 3 : 2));
  }
}

TEST_CASE("anomalies: the newest eight of a window have a limit of their own, and a rank with a wide spread one by its deviation") {
  // The newest eight are 80, 70, ..., 10, whose upper median is 50; of the newest seven it would be 40, and of nine, with a 1, 40 as well.
  std::vector<StepFigures> steps(120, {1, 1});
  for (int i = 8; i > 0; --i) steps.push_back({1.0 + i, 10.0 * i});
  const StepLimits limits = window_of({}, steps).limits();
  CHECK(limits.grad_norm == Approx(50 * std::exp(6 * 0.3)));
  CHECK(limits.loss == Approx(6 * std::exp(6 * 0.05)));

  // Logarithms -4, -3, ..., 4, with the median 0 and a deviation of 2, so the limit is above the largest loss times exp(3 * 0.05).
  RankWindow window({.policy = AnomalyPolicy::kRerun, .window = 9, .z = 3});
  for (const int i : {4, -4, 0, 1, -1, 2, -2, 3, -3}) {
    CHECK(window.add_to({}).rank_loss == kNoLimit);
    StepResult result = step_of(2, 1);
    result.local_loss = 5 * std::exp(i);
    result.local_targets = 5;
    window.add(result);
  }
  CHECK(window.add_to({}).rank_loss == Approx(std::exp(3 * 1.4826 * 2)));
}

TEST_CASE("anomalies: a limit lies z robust deviations of the logarithm above the median") {
  // Logarithms -4, -3, ..., 4 of the norm: median 0, absolute deviations 0, 1, 1, 2, 2, 3, 3, 4, 4 with the median 2.
  std::vector<StepFigures> steps;
  for (int i = -4; i <= 4; ++i) steps.push_back({std::exp(0.5 * i), std::exp(i)});
  const StepLimits limits = window_of({.window = 9, .z = 3}, steps).limits();
  CHECK(limits.grad_norm == Approx(std::exp(3 * 1.4826 * 2)));
  CHECK(limits.loss == Approx(std::exp(3 * 1.4826)));
}

TEST_CASE("anomalies: equal values in the window have the spread of the floor") {
  const StepLimits limits = window_of({}, steady(128)).limits();
  CHECK(limits.loss == Approx(2 * std::exp(6 * 0.05)));
  CHECK(limits.grad_norm == Approx(std::exp(6 * 0.3)));
}

TEST_CASE("anomalies: the window has the last accepted steps that have a loss and a gradient") {
  AnomalyWindow window = window_of({.window = 8}, {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6}, {7, 7}, {8, 8}, {9, 9}});
  CHECK(window.state().size() == 8);
  CHECK(window.state().front() == StepFigures{2, 2});
  CHECK(window.state().back() == StepFigures{9, 9});
  const std::vector<StepFigures> before = window.state();
  StepResult rejected = step_of(3, 3), without_target = step_of(3, 3);
  rejected.accepted = false;
  without_target.targets = 0;
  for (const StepResult& result : {rejected, without_target, step_of(kNan, 3), step_of(3, 0), step_of(0, 3)}) window.add(result);
  CHECK(window.state() == before);
}

TEST_CASE("anomalies: a resumed window has the limits of the one before, and a shorter one keeps its newest steps") {
  AnomalyWindow through({.window = 64}, {});
  for (uint64_t i = 0; i < 100; ++i) through.add(step_of(std::exp(random_normal(1, i)), std::exp(random_normal(2, i))));
  CHECK(AnomalyWindow({.window = 64}, through.state()).limits() == through.limits());
  const AnomalyWindow shorter({.window = 40}, through.state());
  CHECK(shorter.state() == std::vector<StepFigures>(through.state().end() - 40, through.state().end()));
}

TEST_CASE("anomalies: a value at its limit is none, and one that is not finite always is") {
  const StepLimits limits{3, 2};
  CHECK_FALSE(anomaly_in(step_of(3, 2), limits));
  CHECK(anomaly_in(step_of(3.1, 2), limits).loss);
  CHECK_FALSE(anomaly_in(step_of(3.1, 2), limits).grad_norm);
  CHECK(anomaly_in(step_of(3, 2.1), limits).grad_norm);
  for (const double bad : {kNan, kNoLimit, -kNoLimit}) {
    CHECK(anomaly_in(step_of(bad, 1), {}).loss);
    CHECK(anomaly_in(step_of(1, bad), {}).grad_norm);
  }
  StepResult overflow = step_of(1, kNoLimit);
  overflow.overflow = true;
  CHECK_FALSE(anomaly_in(overflow, limits));
  StepLimits judged = limits;  // the device has judged the step, and its decision counts
  judged.finite_loss = true;
  StepResult rejected = step_of(3, 2);
  rejected.accepted = false;
  CHECK(anomaly_in(rejected, judged).loss);
  CHECK_FALSE(anomaly_in(rejected, judged).grad_norm);
  CHECK_FALSE(anomaly_in(step_of(3.1, 2), judged));
  rejected.grad_norm = kNoLimit;
  CHECK_FALSE(anomaly_in(rejected, judged).loss);
  CHECK(anomaly_in(rejected, judged).grad_norm);
  const StepResult both = step_of(3.5, kNan);
  CHECK(text_of(anomaly_in(both, limits), both, limits) == "the loss 3.5 is above 3 and the gradient norm is not finite");
}

TEST_CASE("anomalies: a rank is judged by its own accepted steps that have a target") {
  const auto of_rank = [](double loss, int64_t targets) {
    StepResult result = step_of(2, 1);
    result.local_loss = loss;
    result.local_targets = targets;
    return result;
  };
  const AnomalyConfig config{.policy = AnomalyPolicy::kRerun, .window = 8};
  RankWindow window(config);
  for (int step = 0; step < 7; ++step) window.add(of_rank(12, 4));
  StepResult rejected = of_rank(12, 4);
  rejected.accepted = false;
  for (const StepResult& result : {rejected, of_rank(0, 0), of_rank(kNan, 4)}) window.add(result);
  CHECK(window.add_to({}).rank_loss == kNoLimit);
  window.add(of_rank(12, 4));
  const StepLimits limits = window.add_to({.loss = 7, .grad_norm = 8, .finite_loss = true});
  CHECK(limits.rank_loss == Approx(3 * std::exp(6 * 0.05)));
  CHECK((limits.loss == 7 && limits.grad_norm == 8 && limits.finite_loss && limits.reject_outliers));
  window.add(of_rank(24, 4));  // one sample of a rare kind
  CHECK(window.add_to({}).rank_loss == Approx(6 * std::exp(6 * 0.05)));
  for (int step = 0; step < 8; ++step) window.add(of_rank(24, 4));  // the older steps leave the window
  CHECK(window.add_to({}).rank_loss == Approx(6 * std::exp(6 * 0.05)));
  for (const AnomalyPolicy policy : {AnomalyPolicy::kWarn, AnomalyPolicy::kSkip, AnomalyPolicy::kStop})
    CHECK_FALSE(RankWindow({.policy = policy}).add_to({}).reject_outliers);
}

TEST_CASE("anomalies: a rank that stands out is one, whether the step was accepted or not") {
  StepResult result = step_of(2, 1);
  result.outliers = 2;
  const StepLimits limits{.loss = 3, .grad_norm = 2}, judged{.loss = 3, .grad_norm = 2, .finite_loss = true, .reject_outliers = true};
  for (const bool accepted : {true, false}) {
    result.accepted = accepted;
    for (const StepLimits& each : {limits, judged}) {
      CHECK(anomaly_in(result, each).only_ranks());
      CHECK(text_of(anomaly_in(result, each), result, each) == "2 ranks stand out from their own earlier steps");
    }
  }
  StepLimits skips = judged;  // a rank that stands out rejects no step, so it was the loss, which the device rounds otherwise
  skips.reject_outliers = false;
  CHECK(anomaly_in(result, skips).loss);
  result.loss = 4;
  result.outliers = 1;
  result.accepted = false;
  CHECK_FALSE(anomaly_in(result, judged).only_ranks());
  CHECK(text_of(anomaly_in(result, judged), result, judged) == "the loss 4 is above 3 and 1 rank stands out from its own earlier steps");
}

TEST_CASE("anomalies: skipped steps count as rejected, with their reason") {
  RejectedSteps steps(2);
  StepResult result = step_of(9, 9);
  result.accepted = false;
  result.over_limit = true;
  for (const int64_t step : {4, 5}) steps.add(step, result);
  CHECK(steps.limit_reached());
  CHECK_THAT(steps.text(), Contains("the last of them step 5, because its loss or gradient norm is anomalous"));
}

TEST_CASE("anomalies: growth over many steps is none, a jump is one") {
  std::vector<StepFigures> growing;
  for (int i = 0; i < 128; ++i) growing.push_back({2, std::exp(0.05 * i)});  // the last norm is 600 times the first
  const StepLimits limits = window_of({}, growing).limits();
  CHECK(limits.grad_norm > std::exp(0.05 * 128));
  CHECK(limits.grad_norm < std::exp(0.05 * 128 + 20));
  std::vector<StepFigures> risen(120, {2, 1});  // a new level, which the newest eight steps have
  risen.insert(risen.end(), 8, {2, 100});
  CHECK(window_of({}, risen).limits().grad_norm == Approx(100 * std::exp(6 * 0.3)));
}
