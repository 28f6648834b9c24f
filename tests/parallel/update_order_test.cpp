// The rules of asynchronous updates: versions, staleness, waiting, and their known answers on problems of one number.
#include "parallel/asynchronous/update_order.h"

#include <cmath>
#include <map>
#include <numbers>
#include <random>
#include <set>

#include "kernels/core/check.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

using Starts = std::vector<Assignment>;

/// A round in which workers arrive in turn, as far as they are computing.
std::vector<Arrival> in_turn(const UpdateRules& rules, int64_t updates) {
  UpdateOrder order(rules, updates);
  std::vector<Arrival> arrivals;
  for (int worker = 0; !order.is_over(); worker = (worker + 1) % rules.workers)
    if (order.is_computing(worker)) arrivals.push_back(order.arrive(worker));
  return arrivals;
}

/// Gradient descent on a x^2 / 2 from 1 with learning rate 1, by workers in turn: the weights after each update.
std::vector<double> descend(double a, int workers, int updates, double delay_compensation = 0) {
  UpdateOrder order({.workers = workers, .staleness = 1}, updates);
  std::vector<double> weights{1};  // by version
  for (int worker = 0; !order.is_over(); worker = (worker + 1) % workers) {
    const Arrival arrival = order.arrive(worker);
    const double old = weights[static_cast<size_t>(arrival.of.version)], now = weights.back();
    double gradient = a * old;
    gradient += delay_compensation * gradient * gradient * (now - old);
    weights.push_back(now - gradient);
  }
  return weights;
}

/// The staleness that `workers` in turn have after the first round of them.
int delay_of(int workers) { return workers - 1; }

}  // namespace

TEST_CASE("asynchronous updates: the batches, versions and updates of three workers, by hand") {
  UpdateOrder order({.workers = 3, .apply_after = 2, .staleness = 1}, 3);
  CHECK(order.first() == Starts{{0, 0, 0}, {1, 1, 0}, {2, 2, 0}});
  Arrival arrival = order.arrive(1);
  CHECK((arrival.update == 0 && arrival.staleness == 0 && !arrival.applies && arrival.starts == Starts{{1, 3, 0}}));
  arrival = order.arrive(1);  // the second gradient of the update
  CHECK((arrival.of.batch == 3 && arrival.update == 0 && arrival.staleness == 0 && arrival.applies));
  CHECK(arrival.starts.empty());  // two gradients ahead of the others
  CHECK((order.version() == 1 && !order.is_computing(1)));
  arrival = order.arrive(0);
  CHECK((arrival.update == 1 && arrival.staleness == 1 && !arrival.applies && arrival.starts == Starts{{0, 4, 1}}));
  arrival = order.arrive(2);  // the slowest catches up, and both it and the first of the waiting start
  CHECK((arrival.update == 1 && arrival.staleness == 1 && arrival.applies && arrival.starts == Starts{{1, 5, 2}}));
  CHECK(!order.is_computing(2));  // six batches are all
  CHECK_THROWS_AS(order.arrive(2), InternalError);
  CHECK_THROWS_AS(order.arrive(3), InternalError);
  order.arrive(0);
  arrival = order.arrive(1);
  CHECK((arrival.update == 2 && arrival.staleness == 0 && arrival.applies && arrival.starts.empty()));
  CHECK(order.is_over());
}

TEST_CASE("asynchronous updates: one worker, and all workers without staleness, use the newest weights") {
  for (const int workers : {1, 2, 5}) {
    for (const Arrival& arrival : in_turn({.workers = workers, .apply_after = workers}, 4)) {
      CHECK(arrival.staleness == 0);
      CHECK(arrival.update == arrival.of.batch / workers);
    }
  }
}

TEST_CASE("asynchronous updates: workers in turn have staleness n - 1 after the first round") {
  for (const int workers : {1, 2, 3, 8}) {
    StalenessHistogram histogram;
    const int updates = 20 * workers;
    int64_t number = 0;
    for (const Arrival& arrival : in_turn({.workers = workers, .staleness = 1}, updates)) {
      CHECK(arrival.staleness == std::min<int64_t>(number++, workers - 1));
      histogram.add(arrival.staleness);
    }
    std::vector<int64_t> expected(static_cast<size_t>(workers), 1);
    expected.back() = updates - workers + 1;
    CHECK(histogram.counts() == expected);
  }
}

TEST_CASE("asynchronous updates: in any order no worker is further ahead than the bound, every batch is computed once, and all end") {
  std::minstd_rand random(1);
  for (const UpdateRules& rules : {UpdateRules{1, 1, 0}, UpdateRules{2, 1, 0}, UpdateRules{3, 2, 1}, UpdateRules{4, 1, 3}, UpdateRules{5, 5, 2}}) {
    int64_t stalest = 0;
    for (int trial = 0; trial < 200; ++trial) {
      const int updates = 12;
      UpdateOrder order(rules, updates);
      std::vector<int> arrived, clocks(static_cast<size_t>(rules.workers));
      std::map<int64_t, int> batches;
      // One worker is favoured, so that the others fall back.
      while (!order.is_over()) {
        std::vector<int> computing;
        for (int worker = 0; worker < rules.workers; ++worker)
          if (order.is_computing(worker)) computing.push_back(worker);
        REQUIRE(!computing.empty());  // else all would wait
        const int worker = computing[random() % 3 == 0 ? random() % computing.size() : 0];
        const Arrival arrival = order.arrive(worker);
        arrived.push_back(worker);
        ++batches[arrival.of.batch];
        ++clocks[static_cast<size_t>(worker)];
        stalest = std::max(stalest, arrival.staleness);
        for (const Assignment& start : arrival.starts) {
          CHECK(clocks[static_cast<size_t>(start.worker)] - *std::ranges::min_element(clocks) <= rules.staleness);
          CHECK(start.version == order.version());
        }
      }
      CHECK(std::ssize(batches) == updates * rules.apply_after);
      CHECK(!first_impossible_arrival(rules, updates, arrived));
    }
    // Each of the others sends at most 2 bound + 1 gradients while one is computed.
    CHECK(stalest <= (2 * rules.staleness + 1) * (rules.workers - 1));
    if (rules.workers > 1 && rules.apply_after == 1) CHECK(stalest > 0);
  }
}

TEST_CASE("asynchronous updates: an order of arrivals that cannot have been is found") {
  const UpdateRules rules{.workers = 2};
  CHECK(!first_impossible_arrival(rules, 4, {0, 1, 1, 0}));
  CHECK(!first_impossible_arrival(rules, 4, {0, 1}));            // a part of a round
  CHECK(first_impossible_arrival(rules, 4, {0, 0}) == 1);        // the bound makes it wait
  CHECK(first_impossible_arrival(rules, 4, {0, 1, 2, 0}) == 2);  // there are two workers
  CHECK(first_impossible_arrival(rules, 4, {0, 1, -1, 0}) == 2);
  CHECK(first_impossible_arrival(rules, 1, {1, 0}) == 0);     // the only batch is that of worker 0
  CHECK(first_impossible_arrival(rules, 2, {1, 0, 1}) == 2);  // after the round
}

TEST_CASE("asynchronous updates: with a backup a late gradient is left out, and another worker computes its batch, by hand") {
  const UpdateRules rules{.workers = 3, .apply_after = 2, .discards_late = true};
  UpdateOrder order(rules, 3);
  CHECK(order.first() == Starts{{0, 0, 0}, {1, 1, 0}, {2, 2, 0}});
  Arrival arrival = order.arrive(1);
  CHECK((arrival.counts && !arrival.applies && arrival.starts.empty()));  // it has had its part of the update
  arrival = order.arrive(0);
  CHECK((arrival.counts && arrival.applies && arrival.starts == Starts{{1, 2, 1}, {0, 3, 1}}));  // batch 2 again
  arrival = order.arrive(2);
  CHECK((!arrival.counts && !arrival.applies && arrival.of.batch == 2 && arrival.staleness == 1 && arrival.starts == Starts{{2, 4, 1}}));
  CHECK(order.arrive(2).counts);
  arrival = order.arrive(1);
  CHECK((arrival.counts && arrival.applies && arrival.update == 1 && arrival.starts == Starts{{2, 3, 2}, {1, 5, 2}}));
  arrival = order.arrive(0);
  CHECK((!arrival.counts && arrival.starts.empty()));  // six batches are all
  order.arrive(1);
  CHECK(order.arrive(2).applies);
  CHECK(order.is_over());
  CHECK(!first_impossible_arrival(rules, 3, {1, 0, 2, 2, 1, 0, 1, 2}));
  CHECK(first_impossible_arrival(rules, 3, {1, 1}) == 1);
  UpdateOrder last(rules, 2);
  for (const int worker : {0, 1, 0, 1}) last.arrive(worker);
  CHECK((!last.has_updates_left() && !last.is_over()));  // worker 2 still computes
  CHECK(!last.arrive(2).counts);
  CHECK(last.is_over());
}

TEST_CASE("asynchronous updates: with backups, in any order each batch counts once, by the newest weights, and all end") {
  std::minstd_rand random(1);
  for (const UpdateRules& rules :
       {UpdateRules{.workers = 2, .discards_late = true}, UpdateRules{.workers = 4, .apply_after = 3, .discards_late = true},
        UpdateRules{.workers = 5, .apply_after = 2, .discards_late = true}, UpdateRules{.workers = 3, .apply_after = 3, .discards_late = true}}) {
    int late = 0;
    for (int trial = 0; trial < 200; ++trial) {
      const int updates = 12;
      UpdateOrder order(rules, updates);
      std::vector<int> arrived;
      std::map<int64_t, int> batches;
      std::map<int64_t, std::set<int>> workers;  // by update
      while (!order.is_over()) {
        std::vector<int> computing;
        for (int worker = 0; worker < rules.workers; ++worker)
          if (order.is_computing(worker)) computing.push_back(worker);
        REQUIRE(!computing.empty());
        const int worker = computing[random() % 3 == 0 ? random() % computing.size() : 0];
        const Arrival arrival = order.arrive(worker);
        arrived.push_back(worker);
        CHECK(arrival.counts == (arrival.staleness == 0));
        late += !arrival.counts;
        if (!arrival.counts) continue;
        ++batches[arrival.of.batch];
        CHECK(workers[arrival.update].insert(worker).second);
      }
      CHECK(std::ssize(batches) == updates * rules.apply_after);
      for (const auto& [batch, times] : batches) CHECK(times == 1);
      for (const auto& [update, of] : workers) CHECK(std::ssize(of) == rules.apply_after);
      CHECK(!first_impossible_arrival(rules, updates, arrived));
    }
    CHECK((late > 0) == (rules.workers > rules.apply_after));
  }
}

TEST_CASE("asynchronous updates: workers of elastic averaging wait for nobody, and each exchanges its share of a round") {
  UpdateOrder order(exchange_rules(2), 4);
  CHECK(order.first() == Starts{{0, 0, 0}, {1, 1, 0}});
  Arrival arrival = order.arrive(1);
  CHECK((arrival.of.version == 0 && arrival.staleness == 0 && arrival.applies && arrival.starts == Starts{{1, 2, 1}}));
  arrival = order.arrive(1);  // its last one
  CHECK((arrival.of.version == 1 && arrival.staleness == 0 && arrival.starts.empty() && !order.is_computing(1)));
  arrival = order.arrive(0);  // two exchanges of the other one since the beginning
  CHECK((arrival.of.version == 0 && arrival.staleness == 2 && arrival.starts == Starts{{0, 3, 3}}));
  arrival = order.arrive(0);
  CHECK((arrival.staleness == 0 && arrival.starts.empty() && order.is_over()));
  CHECK(!first_impossible_arrival(exchange_rules(3), 6, {2, 2, 0, 1, 1, 0}));
  CHECK(first_impossible_arrival(exchange_rules(3), 6, {2, 2, 0, 2}) == 3);
  CHECK_THROWS_AS(UpdateOrder(exchange_rules(3), 4), InternalError);
}

TEST_CASE("asynchronous updates: elastic averaging in turn is stable where it is said to be") {
  // The growth in one round of `workers`, which descend on x^2 / 2: the largest eigenvalue of their product. `before`: as in the paper, where gradient
  // and exchange are those of the weights before both; else an exchange follows the step.
  const auto growth = [](size_t workers, double rate, double a, bool before) {
    std::vector<double> x(workers);
    double centre = 0, logarithm = 0;
    for (size_t i = 0; i < workers; ++i) x[i] = 1.0 + 0.3 * static_cast<double>(i);
    constexpr int kRounds = 40000, kSkipped = 20000;
    for (int round = 0; round < kRounds; ++round) {
      for (double& one : x) {
        const double old = one;
        if (!before) one -= rate * one;
        const double d = a * (one - centre);
        one -= d + (before ? rate * old : 0);
        centre += d;
      }
      double norm = std::abs(centre);
      for (const double one : x) norm = std::max(norm, std::abs(one));
      if (norm == 0) return 0.0;
      for (double& one : x) one /= norm;
      centre /= norm;
      if (round >= kSkipped) logarithm += std::log(norm);
    }
    return std::exp(logarithm / (kRounds - kSkipped));
  };
  for (const size_t workers : {1U, 2U, 3U, 8U}) {
    for (const double rate : {0.1, 0.5, 1.0, 1.5, 1.9}) {
      const double limit = (4 - 2 * rate) / (4 - rate);
      for (const double part : {0.1, 0.5, 0.99}) {
        CHECK(growth(workers, rate, part * limit, true) < 1);
        CHECK(growth(workers, rate, part, false) < 1);  // any moving rate up to 1
      }
      if (workers % 2 == 1) CHECK(growth(workers, rate, 1.01 * limit, true) > 1);
    }
    CHECK(growth(workers, 2.01, 0.05, true) > 1);
  }
}

TEST_CASE("asynchronous updates: delayed gradient descent is stable below 2 sin(pi / (4 tau + 2)) and unstable above it") {
  for (const int workers : {1, 2, 3, 4, 5, 9, 17}) {
    const int tau = delay_of(workers);
    const double limit = 2 * std::sin(std::numbers::pi / (4 * tau + 2));
    const auto after = [&](double a) {
      const std::vector<double> weights = descend(a, workers, 20000);
      double largest = 0;
      for (size_t i = weights.size() - 100; i < weights.size(); ++i) largest = std::max(largest, std::abs(weights[i]));
      return largest;
    };
    INFO("tau " << tau << ", limit " << limit);
    CHECK(after(0.99 * limit) < 1e-3);
    CHECK(after(1.01 * limit) > 1e3);
  }
  CHECK(2 * std::sin(std::numbers::pi / 18) == Approx(0.347296355));  // tau 4, published to nine digits
}

TEST_CASE("asynchronous updates: delayed gradient descent has the known weights and the known fastest rate") {
  const std::vector<double> weights = descend(0.1, 3, 8);
  const double expected[] = {1, 0.9, 0.8, 0.7, 0.61, 0.53, 0.46, 0.399, 0.346};
  for (size_t i = 0; i < std::size(expected); ++i) CHECK(weights[i] == Approx(expected[i]).epsilon(1e-12));
  for (const int tau : {1, 2, 4}) {
    const double fastest = std::pow(tau, tau) / std::pow(tau + 1, tau + 1);
    const double rate = static_cast<double>(tau) / (tau + 1);
    const std::vector<double> w = descend(fastest, tau + 1, 300);
    // The largest root is a double one, so the weights tend to (c + d t) rate^t.
    CHECK(std::abs(w[202] - 2 * rate * w[201] + rate * rate * w[200]) < 1e-6 * w[200]);
    CHECK(w[250] / w[200] == Approx(std::pow(rate, 50) * 250 / 200).epsilon(0.02));
  }
}

TEST_CASE("asynchronous updates: the learning rate of a stale gradient") {
  for (const auto& [staleness, factor] : {std::pair{0, 1.0}, {1, 1.0}, {2, 0.5}, {4, 0.25}}) CHECK(staleness_factor(staleness) == factor);
}
