// The lists of collectives as values: what they compute, in which order they sum, what they send, that they cannot deadlock, and how long they take.
#include "parallel/comm/collective_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "kernels/core/check.h"
#include "parallel/comm/collective_costs.h"
#include "tests/support/catch.h"

namespace trireme {
namespace {

using enum CollectiveAlgorithm;
using enum CollectiveVerb;

std::vector<CollectiveSteps> lists_of(CollectiveAlgorithm algorithm, CollectiveVerb verb, int n, int64_t count, int64_t pieces = 1) {
  std::vector<CollectiveSteps> lists;
  for (int rank = 0; rank < n; ++rank) lists.push_back(collective_steps(algorithm, verb, rank, n, count, pieces));
  return lists;
}

/// Runs the lists on the ranks' buffers, one step at a time, in any order that messages allow. Independent of the product's executor.
template <class Value>
void interpret(const std::vector<CollectiveSteps>& lists, std::vector<std::vector<Value>>& buffers,
               const std::function<Value(const Value& first, const Value& second)>& add) {
  struct Sent {
    CollectiveStep::Message what;
    std::vector<Value> values;
  };
  std::map<std::pair<int, int>, std::deque<Sent>> wires;
  std::vector<size_t> at(lists.size(), 0);
  std::vector<bool> sent(lists.size(), false);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      if (at[rank] == lists[rank].size()) continue;
      const CollectiveStep& step = lists[rank][at[rank]];
      if (step.send && !sent[rank]) {
        const auto begin = buffers[rank].begin() + step.send->begin;
        wires[{static_cast<int>(rank), step.send->peer}].push_back({*step.send, {begin, begin + step.send->count}});
        sent[rank] = true;
        moved = true;
      }
      if (step.receive) {
        auto& wire = wires[{step.receive->peer, static_cast<int>(rank)}];
        if (wire.empty()) continue;
        const Sent message = std::move(wire.front());
        wire.pop_front();
        REQUIRE(message.what.begin == step.receive->begin);
        REQUIRE(message.what.count == step.receive->count);
        for (int64_t i = 0; i < step.receive->count; ++i) {
          Value& own = buffers[rank][static_cast<size_t>(step.receive->begin + i)];
          const Value& received = message.values[static_cast<size_t>(i)];
          if (step.merge == CollectiveStep::Merge::kReplace) own = received;
          if (step.merge == CollectiveStep::Merge::kOwnFirst) own = add(own, received);
          if (step.merge == CollectiveStep::Merge::kReceivedFirst) own = add(received, own);
        }
      }
      ++at[rank];
      sent[rank] = false;
      moved = true;
    }
  }
  for (size_t rank = 0; rank < lists.size(); ++rank) REQUIRE(at[rank] == lists[rank].size());
  for (const auto& [ends, wire] : wires) REQUIRE(wire.empty());
}

int64_t number(int64_t rank, int64_t i) { return (rank + 1) * 1000003 + i * i % 7919 + rank * i; }

/// Checks the results of a verb on numbers that no two (rank, element) share; returns the number of elements checked.
void check_numbers(CollectiveAlgorithm algorithm, CollectiveVerb verb, int n, int64_t count, int64_t pieces) {
  CAPTURE(name_of(algorithm), static_cast<int>(verb), n, count, pieces);
  constexpr int64_t kUnspecified = -1;
  const int64_t part = count / n;
  std::vector<std::vector<int64_t>> buffers(static_cast<size_t>(n), std::vector<int64_t>(static_cast<size_t>(count), kUnspecified));
  for (int64_t rank = 0; rank < n; ++rank)
    for (int64_t i = 0; i < count; ++i)
      if (verb != kAllGather || i / part == rank) buffers[static_cast<size_t>(rank)][static_cast<size_t>(i)] = number(rank, i);
  interpret<int64_t>(lists_of(algorithm, verb, n, count, pieces), buffers, std::plus());
  bool right = true;
  for (int64_t rank = 0; rank < n; ++rank)
    for (int64_t i = 0; i < count; ++i) {
      if (verb == kReduceScatter && i / part != rank) continue;
      int64_t expected = verb == kAllGather ? number(i / part, i) : 0;
      for (int64_t other = 0; other < n && verb != kAllGather; ++other) expected += number(other, i);
      right &= buffers[static_cast<size_t>(rank)][static_cast<size_t>(i)] == expected;
    }
  CHECK(right);
}

/// The order of summation of element `i`, as text, on every rank.
std::string order_of(CollectiveAlgorithm algorithm, int n, int64_t count, int64_t i, int64_t pieces = 1) {
  std::vector<std::vector<std::string>> buffers;
  for (int rank = 0; rank < n; ++rank) buffers.emplace_back(static_cast<size_t>(count), std::to_string(rank));
  interpret<std::string>(lists_of(algorithm, kAllReduce, n, count, pieces), buffers,
                         [](const std::string& a, const std::string& b) { return "(" + a + "+" + b + ")"; });
  const std::string order = buffers[0][static_cast<size_t>(i)];
  for (const auto& buffer : buffers) CHECK(buffer[static_cast<size_t>(i)] == order);
  return order;
}

MessageCosts line(double latency, double bandwidth, double sum_bandwidth = 0) {
  MessageCosts costs{.ranges = {{0, latency, bandwidth}}, .sums = {}};
  if (sum_bandwidth > 0) costs.sums.push_back({0, 0, sum_bandwidth});
  return costs;
}

CollectiveSimulation simulated(CollectiveAlgorithm algorithm, CollectiveVerb verb, int n, int64_t bytes, const MessageCosts& costs) {
  return simulate(
      lists_of(algorithm, verb, n, bytes, tree_pieces(n, static_cast<double>(bytes), costs)),
      [&](int64_t count) { return costs.message(static_cast<double>(count)); }, [&](int64_t count) { return costs.sum(static_cast<double>(count)); });
}

TEST_CASE("collective steps: every rank ends with the exact sums, on any number of ranks and for any size") {
  for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms)
    for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 23, 33}) {
      for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{n - 1}, int64_t{n + 1}, int64_t{127}})
        for (const int64_t pieces : {1, 2, 5}) check_numbers(algorithm, kAllReduce, n, count, pieces);
      for (const int64_t part : {0, 1, 7})
        for (const CollectiveVerb verb : {kReduceScatter, kAllGather}) check_numbers(algorithm, verb, n, part * n, 1);
    }
}

TEST_CASE("collective steps: a prime number of elements") {
  for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms)
    for (const int n : {2, 3, 5, 6, 8}) check_numbers(algorithm, kAllReduce, n, 10007, 8);
}

TEST_CASE("collective steps: sums are taken in the stated order, equal on all ranks") {
  CHECK(order_of(kRing, 4, 8, 0) == "(0+((1+2)+3))");  // part 0: ranks 1, 2, 3, 0; what comes from a lower rank is the first operand
  CHECK(order_of(kRing, 4, 8, 5) == "(((0+3)+1)+2)");
  CHECK(order_of(kRecursiveDoubling, 4, 3, 1) == "((0+1)+(2+3))");
  CHECK(order_of(kRecursiveDoubling, 6, 3, 1) == "(((0+1)+(2+3))+(4+5))");
  CHECK(order_of(kRabenseifner, 4, 8, 3) == "((0+2)+(1+3))");
  CHECK(order_of(kRabenseifner, 5, 8, 3) == "(((0+1)+3)+(2+4))");
  CHECK(order_of(kBinomial, 5, 2, 0) == "(((0+1)+(2+3))+4)");
  CHECK(order_of(kBinomial, 7, 2, 0) == "(((0+1)+(2+3))+((4+5)+6))");
  CHECK(order_of(kDoubleBinaryTree, 8, 8, 3) == "(0+((((1+2)+3)+4)+((5+6)+7)))");
  CHECK(order_of(kDoubleBinaryTree, 8, 8, 4) == "(((((0+1)+2)+3)+((4+5)+6))+7)");
}

TEST_CASE("collective steps: the order of sums of a double binary tree does not depend on the pieces") {
  for (const int n : {2, 3, 5, 8, 11})
    for (const int64_t i : {0, 13, 14, 26})
      for (const int64_t pieces : {2, 3, 8}) CHECK(order_of(kDoubleBinaryTree, n, 27, i, pieces) == order_of(kDoubleBinaryTree, n, 27, i));
}

TEST_CASE("collective steps: parents of the double binary tree are those of NCCL") {
  const auto parents = [](int tree, int n) {
    std::vector<int> all;
    for (int rank = 0; rank < n; ++rank) all.push_back(tree_parent(tree, rank, n));
    return all;
  };
  CHECK(parents(0, 8) == std::vector{-1, 2, 4, 2, 0, 6, 4, 6});
  CHECK(parents(1, 8) == std::vector{1, 3, 1, 7, 5, 3, 5, -1});
  const auto interior = [&](int tree, int n) {
    const std::vector<int> all = parents(tree, n);
    std::set<int> inside(all.begin(), all.end());
    inside.erase(-1);
    return inside;
  };
  for (int n = 2; n <= 65; ++n) {
    CAPTURE(n);
    std::vector<int> both;
    std::ranges::set_intersection(interior(0, n), interior(1, n), std::back_inserter(both));
    CHECK(std::ssize(both) <= n % 2);  // an interior rank of one tree is a leaf of the other, except one if n is odd
    for (const int tree : {0, 1}) {
      int roots = 0, depth = 0;
      std::map<int, int> children;
      for (int rank = 0; rank < n; ++rank) {
        int height = 0;
        for (int at = rank; tree_parent(tree, at, n) >= 0; at = tree_parent(tree, at, n)) REQUIRE(++height <= n);
        depth = std::max(depth, height);
        roots += tree_parent(tree, rank, n) < 0;
        ++children[tree_parent(tree, rank, n)];
      }
      CHECK(roots == 1);
      CHECK(depth == static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1))));
      for (const auto& [parent, count] : children) CHECK(count <= 2);
    }
  }
}

TEST_CASE("collective steps: messages and elements sent are those of the formulas") {
  for (const int n : {2, 3, 4, 5, 7, 8, 13, 16}) {
    CAPTURE(n);
    const int64_t count = 48 * int64_t{n} * 16, levels = std::bit_width(static_cast<unsigned>(n)) - 1, core = int64_t{1} << levels;
    const bool folds = n != core;
    const auto sent = [&](CollectiveAlgorithm algorithm, CollectiveVerb verb, int64_t pieces = 1) {
      std::vector<SentMessages> all;
      for (const CollectiveSteps& steps : lists_of(algorithm, verb, n, count, pieces)) all.push_back(sent_messages(steps));
      return all;
    };
    for (const SentMessages& one : sent(kRing, kAllReduce)) {
      CHECK(one.messages == 2 * (n - 1));
      CHECK(one.elements == 2 * (n - 1) * count / n);
    }
    for (const CollectiveVerb verb : {kReduceScatter, kAllGather})
      for (const SentMessages& one : sent(kRing, verb)) {
        CHECK(one.messages == n - 1);
        CHECK(one.elements == (n - 1) * count / n);
      }
    const auto doubling = sent(kRecursiveDoubling, kAllReduce), rabenseifner = sent(kRabenseifner, kAllReduce);
    for (int rank = 0; rank < n; ++rank) {
      const bool pair = rank < 2 * (n - core), idle = pair && rank % 2 == 0;
      const auto r = static_cast<size_t>(rank);
      CHECK(doubling[r].messages == (idle ? 1 : levels + pair));
      CHECK(doubling[r].elements == (idle ? 1 : levels + pair) * count);
      CHECK(rabenseifner[r].messages == (idle ? 1 : 2 * levels + pair));
      CHECK(rabenseifner[r].elements == (idle ? count : 2 * (core - 1) * count / core + (pair ? count : 0)));
    }
    int64_t reduced = 0, tree = 0, tree_messages = 0, gathered = 0;
    for (const SentMessages& one : sent(kBinomial, kAllReduce)) reduced += one.elements;
    CHECK(reduced == 2 * (n - 1) * count);
    for (const SentMessages& one : sent(kDoubleBinaryTree, kAllReduce, 4)) {
      tree += one.elements;
      tree_messages += one.messages;
      // A rank sends up in both trees, and down to its children: twice the buffer where one tree has it inside, and the other as a leaf.
      CHECK(one.elements <= (n % 2 == 0 ? 2 : 3) * count);
    }
    CHECK(tree == 2 * (n - 1) * count);
    CHECK(tree_messages == 2 * 2 * 4 * (n - 1));
    for (const SentMessages& one : sent(kRabenseifner, kAllGather)) gathered += one.elements;
    if (!folds) CHECK(gathered == n * (n - 1) * count / n);
  }
}

TEST_CASE("collective steps: no list deadlocks when a send completes only with its receive") {
  for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms)
    for (const CollectiveVerb verb : {kAllReduce, kReduceScatter, kAllGather})
      for (int n = 1; n <= 40; ++n)
        for (const int64_t count : {int64_t{0}, int64_t{n}, int64_t{64 * n}}) {
          CAPTURE(name_of(algorithm), static_cast<int>(verb), n, count);
          for (const int64_t pieces : {1, 6})
            CHECK(simulate(
                      lists_of(algorithm, verb, n, count, pieces), [](int64_t) { return 1.0; }, [](int64_t) { return 0.0; })
                      .error == "");
        }
}

TEST_CASE("collective steps: the simulation finds a deadlock and messages that do not match") {
  const auto error_of = [](const std::vector<CollectiveSteps>& lists) {
    return simulate(
               lists, [](int64_t) { return 1.0; }, [](int64_t) { return 0.0; })
        .error;
  };
  std::vector<CollectiveSteps> lists = lists_of(kRing, kAllReduce, 3, 9);
  // Each rank sends first and receives later.
  for (CollectiveSteps& steps : lists) {
    CollectiveStep later{.send = {}, .receive = steps[0].receive, .merge = steps[0].merge};
    steps[0].receive.reset();
    steps.insert(steps.begin() + 1, later);
  }
  CHECK(error_of(lists) ==
        "rank 0 is blocked in step 0: send 3 elements from 6 to rank 1; rank 1 is blocked in step 0: send 3 elements from 0 to rank 2; "
        "rank 2 is blocked in step 0: send 3 elements from 3 to rank 0");
  lists = lists_of(kRing, kAllReduce, 3, 9);
  lists[1][0].send->count = 2;
  CHECK(error_of(lists) == "rank 1 sends 2 elements from 0 to rank 2, which expects 3 from 0");
}

TEST_CASE("collective steps: lists are printed") {
  CHECK(text_of(lists_of(kRecursiveDoubling, kAllReduce, 3, 4)) ==
        "rank 0 step 0: send 4 elements from 0 to rank 1\n"
        "rank 0 step 1: receive 4 elements from 0 of rank 1\n"
        "rank 1 step 0: receive 4 elements from 0 of rank 0, received + own\n"
        "rank 1 step 1: send 4 elements from 0 to rank 2; receive 4 elements from 0 of rank 2, own + received\n"
        "rank 1 step 2: send 4 elements from 0 to rank 0\n"
        "rank 2 step 0: send 4 elements from 0 to rank 1; receive 4 elements from 0 of rank 1, received + own\n");
}

TEST_CASE("collective costs: the simulated lists take the time of the formulas") {
  for (const MessageCosts& costs : {line(20e-6, 1.25e9), line(2e-6, 4e9, 3e9), line(0, 1e9), line(1e-5, 1e15)})
    for (const int n : {2, 4, 8, 16, 32})
      for (const CollectiveVerb verb : {kAllReduce, kReduceScatter, kAllGather})
        for (const CollectiveAlgorithm algorithm : {kRing, kRecursiveDoubling, kRabenseifner, kBinomial}) {
          const int64_t bytes = int64_t{n} << 15;
          CAPTURE(name_of(algorithm), static_cast<int>(verb), n);
          CHECK(simulated(algorithm, verb, n, bytes, costs).seconds ==
                Approx(collective_seconds(algorithm, verb, n, static_cast<double>(bytes), costs)).epsilon(1e-9));
        }
}

TEST_CASE("collective costs: with ranks to fold, all_reduce takes the time of the formulas") {
  const MessageCosts costs = line(20e-6, 1.25e9, 5e9);
  for (const int n : {3, 5, 6, 7, 12, 23})
    for (const CollectiveAlgorithm algorithm : {kRing, kRecursiveDoubling, kRabenseifner}) {
      const int64_t bytes = int64_t{n} << 16;
      CAPTURE(name_of(algorithm), n);
      CHECK(simulated(algorithm, kAllReduce, n, bytes, costs).seconds ==
            Approx(collective_seconds(algorithm, kAllReduce, n, static_cast<double>(bytes), costs)).epsilon(1e-9));
    }
}

TEST_CASE("collective costs: the double binary tree takes about the time of its formula") {
  for (const MessageCosts& costs : {line(20e-6, 1.25e9), line(2e-6, 4e9, 3e9)})
    for (const int n : {2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 64})
      for (const int64_t bytes : {1 << 10, 1 << 16, 1 << 20, 1 << 24}) {
        CAPTURE(n, bytes, tree_pieces(n, static_cast<double>(bytes), costs));
        const double formula = collective_seconds(kDoubleBinaryTree, kAllReduce, n, static_cast<double>(bytes), costs);
        CHECK(simulated(kDoubleBinaryTree, kAllReduce, n, bytes, costs).seconds == Approx(formula).epsilon(0.25));
      }
}

/// Bytes at which two algorithms take equal time, between 1 B and 1 TB.
double crossover(CollectiveAlgorithm small, CollectiveAlgorithm large, int64_t n, const MessageCosts& costs) {
  double low = 1, high = 1e12;
  for (int i = 0; i < 200; ++i) {
    const double middle = std::sqrt(low * high);
    const bool below = collective_seconds(small, kAllReduce, n, middle, costs) < collective_seconds(large, kAllReduce, n, middle, costs);
    (below ? low : high) = middle;
  }
  return low;
}

TEST_CASE("collective costs: crossovers of all_reduce") {
  const MessageCosts ethernet = line(20e-6, 1.25e9), fast = line(5e-6, 50e9);
  CHECK(crossover(kRecursiveDoubling, kRabenseifner, 8, ethernet) == Approx(60000).epsilon(1e-4));
  CHECK(crossover(kRecursiveDoubling, kRing, 8, ethernet) == Approx(220000).epsilon(1e-4));
  CHECK(crossover(kRecursiveDoubling, kRabenseifner, 64, ethernet) == Approx(37209).epsilon(1e-4));
  CHECK(crossover(kRecursiveDoubling, kRing, 64, ethernet) == Approx(744186).epsilon(1e-4));
  CHECK(crossover(kRecursiveDoubling, kRabenseifner, 1024, fast) == Approx(312424).epsilon(1e-4));
  CHECK(crossover(kRecursiveDoubling, kRing, 1024, fast) == Approx(63.6e6).epsilon(1e-3));
  CHECK(collective_seconds(kRing, kAllReduce, 64, 1e6, ethernet) == Approx(4.095e-3));
  CHECK(collective_seconds(kRabenseifner, kAllReduce, 64, 1e6, ethernet) == Approx(1.815e-3));
  CHECK(collective_seconds(kRecursiveDoubling, kAllReduce, 64, 1e6, ethernet) == Approx(4.92e-3));
}

TEST_CASE("collective costs: auto takes the faster side of a crossover") {
  const MessageCosts ethernet = line(20e-6, 1.25e9);
  for (const auto& [n, bytes] : {std::pair(8, 60000.0), std::pair(64, 37209.0)}) {
    CHECK(fastest_algorithm(kAllReduce, n, 0.99 * bytes, ethernet) == kRecursiveDoubling);
    CHECK(fastest_algorithm(kAllReduce, n, 1.01 * bytes, ethernet) == kRabenseifner);
  }
  // Nothing beats the least latency for tiny buffers, nor the ring's bytes for huge ones where ranks have to be folded.
  CHECK(fastest_algorithm(kAllReduce, 7, 8, ethernet) == kRecursiveDoubling);
  CHECK(fastest_algorithm(kAllReduce, 7, 1e9, ethernet) == kRing);
  CHECK(fastest_algorithm(kAllGather, 7, 1e9, ethernet) == kRing);
  for (const CollectiveVerb verb : {kAllReduce, kReduceScatter, kAllGather})
    for (const int64_t n : {2, 3, 5, 8, 13, 64, 100})
      for (double bytes = 1; bytes < 1e10; bytes *= 7)
        for (const CollectiveAlgorithm other : kCollectiveAlgorithms)
          CHECK(collective_seconds(fastest_algorithm(verb, n, bytes, ethernet), verb, n, bytes, ethernet) <=
                collective_seconds(other, verb, n, bytes, ethernet));
}

TEST_CASE("collective costs: a message takes the time of the range of its size") {
  const MessageCosts costs{.ranges = {{512, 1e-6, 1e9}, {8192, 5e-6, 4e9}}, .sums = {{0, 0, 2e9}}};
  CHECK(costs.message(1) == Approx(1e-6 + 1e-9));
  CHECK(costs.message(8191) == Approx(1e-6 + 8191e-9));
  CHECK(costs.message(8192) == Approx(5e-6 + 8192 / 4e9));
  CHECK(collective_seconds(kRing, kAllReduce, 4, 4 * 8192, costs) == Approx(6 * costs.message(8192) + 3 * 8192 / 2e9));
}

}  // namespace
}  // namespace trireme
