// The decisions of robust rules, as pure functions of inner products, against known answers and against direct definitions.
#include "parallel/sharding/aggregation_rule.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/core/check.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

using VectorList = std::vector<std::vector<double>>;

const VectorList kSeven = {{1, 2, 3}, {1.1, 1.9, 3.1}, {.9, 2.1, 2.9}, {1.2, 2, 3}, {1, 1.8, 3.2}, {.8, 2.2, 3}, {100, -50, 1e6}};

/// To 15 digits, by Weiszfeld's iteration with 40. The first vector, from which the iteration starts, has a sum of distances that is larger by 0.018.
const std::vector<double> kGeometricMedianOfSeven = {1.01518284676164, 1.98994698508426, 3.04740773997649};

std::vector<double> median_of_columns(const VectorList& vectors) {
  std::vector<double> median;
  for (size_t k = 0; k < vectors.front().size(); ++k) {
    std::vector<double> column;
    for (const auto& vector : vectors) column.push_back(vector[k]);
    std::ranges::sort(column);
    median.push_back((column[(column.size() - 1) / 2] + column[column.size() / 2]) / 2);
  }
  return median;
}

InnerProducts products_of(const VectorList& vectors, const std::vector<double>& origin) {
  std::vector<double> values;
  for (const auto& a : vectors) {
    for (const auto& b : vectors) {
      double sum = 0;
      for (size_t k = 0; k < a.size(); ++k) sum += (a[k] - origin[k]) * (b[k] - origin[k]);
      values.push_back(sum);
    }
  }
  return {std::ssize(vectors), values};
}
InnerProducts products_of(const VectorList& vectors) { return products_of(vectors, median_of_columns(vectors)); }

std::vector<double> point_of(const VectorList& vectors, const std::vector<double>& weights, const std::vector<double>& origin) {
  std::vector<double> point = origin;
  for (size_t i = 0; i < vectors.size(); ++i)
    for (size_t k = 0; k < point.size(); ++k) point[k] += weights[i] * (vectors[i][k] - origin[k]);
  return point;
}
std::vector<double> point_of(const VectorList& vectors, const std::vector<double>& weights) {
  return point_of(vectors, weights, median_of_columns(vectors));
}

double euclidean(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += (a[k] - b[k]) * (a[k] - b[k]);
  return std::sqrt(sum);
}

VectorList normal_vectors(size_t n, size_t m, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  VectorList vectors(n, std::vector<double>(m));
  for (auto& vector : vectors)
    for (double& value : vector) value = normal(random);
  return vectors;
}

void check_vector(const std::vector<double>& values, const std::vector<double>& expected, double tolerance) {
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    INFO("element " << i << ": " << values[i] << ", expected " << expected[i]);
    CHECK(std::abs(values[i] - expected[i]) <= tolerance);
  }
}

}  // namespace

TEST_CASE("aggregation rules: known answers") {
  const InnerProducts products = products_of(kSeven);
  const std::vector<double> scores = krum_scores(products, {0, 1, 2, 3, 4, 5, 6}, 1);
  check_vector({scores.begin(), scores.end() - 1}, {.18, .21, .29, .30, .42, .50}, 1e-12);
  CHECK(scores.back() == Approx(4.0e12).epsilon(1e-4));
  CHECK(krum_choice(products, 1, 1) == std::vector<int>{0});
  CHECK(krum_choice(products, 1, 4) == std::vector<int>{0, 1, 2, 3});
  CHECK(bulyan_choice(products, 1) == std::vector<int>{0, 1, 2, 3, 4});
  check_vector(point_of(kSeven, geometric_median(products)), kGeometricMedianOfSeven, 1e-12);
  check_vector(point_of(kSeven, centered_clipping(products, 1, 3)), {1.000016452, 1.999991359, 3.199416909}, 5e-10);
}

TEST_CASE("aggregation rules: what each makes of its decision") {
  const InnerProducts products = products_of(kSeven), none(0, {});
  const auto combination = [&](AggregationRule rule) {
    AggregationOptions options;
    options.rule = rule;
    return combination_of(options, 7, 1, needs_all_products(rule) ? products : none);
  };
  using Kind = Combination::Kind;
  CHECK(combination(AggregationRule::kMedian).count == 3);
  CHECK(combination(AggregationRule::kTrimmedMean).count == 1);
  CHECK(combination(AggregationRule::kTrimmedMean).kind == Kind::kTrimmedMean);
  check_vector(point_of(kSeven, combination(AggregationRule::kKrum).weights), {1, 2, 3}, 1e-12);
  check_vector(point_of(kSeven, combination(AggregationRule::kMultiKrum).weights), {1.05, 2, 3}, 1e-12);
  const Combination bulyan = combination(AggregationRule::kBulyan);
  CHECK(bulyan.kind == Kind::kMeanNearMedian);
  CHECK(bulyan.count == 3);
  CHECK(bulyan.chosen == std::vector<int>{0, 1, 2, 3, 4});
  check_vector(point_of(kSeven, combination(AggregationRule::kGeometricMedian).weights), kGeometricMedianOfSeven, 1e-12);
  check_vector(point_of(kSeven, combination(AggregationRule::kCenteredClipping).weights), {1.000016452, 1.999991359, 3.199416909}, 5e-10);
  CHECK_THROWS_AS(combination(AggregationRule::kMean), InternalError);
}

TEST_CASE("aggregation rules: numbers of data ranks") {
  using enum AggregationRule;
  for (const AggregationRule rule : {kMedian, kTrimmedMean, kGeometricMedian, kCenteredClipping}) CHECK(least_data_ranks(rule, 2) == 5);
  for (const AggregationRule rule : {kKrum, kMultiKrum}) CHECK(least_data_ranks(rule, 2) == 7);
  CHECK(least_data_ranks(kBulyan, 2) == 11);
  AggregationOptions options;
  options.rule = kKrum;
  CHECK_THROWS_AS(combination_of(options, 6, 2, products_of(normal_vectors(6, 3, 1))), InternalError);
  CHECK_NOTHROW(combination_of(options, 7, 2, products_of(normal_vectors(7, 3, 1))));
}

TEST_CASE("aggregation rules: Krum and Bulyan by their definitions") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const int f = 2, n = 11;
    const VectorList vectors = normal_vectors(n, 6, seed);
    const auto best_of = [&](const std::vector<int>& among) {
      int best = -1;
      double least = INFINITY;
      for (const int i : among) {
        std::vector<double> squares;
        for (const int j : among)
          if (j != i) squares.push_back(std::pow(euclidean(vectors[static_cast<size_t>(i)], vectors[static_cast<size_t>(j)]), 2));
        std::ranges::sort(squares);
        double score = 0;
        for (int k = 0; k < std::max<int>(1, static_cast<int>(among.size()) - f - 2); ++k) score += squares[static_cast<size_t>(k)];
        if (score < least) least = score, best = i;
      }
      return best;
    };
    std::vector<int> left(n), chosen;
    for (int i = 0; i < n; ++i) left[static_cast<size_t>(i)] = i;
    const InnerProducts products = products_of(vectors);
    CHECK(krum_choice(products, f, 1) == std::vector<int>{best_of(left)});
    while (chosen.size() < n - 2 * f) {
      chosen.push_back(best_of(left));
      std::erase(left, chosen.back());
    }
    std::ranges::sort(chosen);
    CHECK(bulyan_choice(products, f) == chosen);
  }
}

TEST_CASE("aggregation rules: at the geometric median the directions to the others cancel") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    VectorList vectors = normal_vectors(9, 5, seed);
    if (seed % 2 == 1) vectors.back() = std::vector<double>(5, 1e30);  // which must not cost any digits
    const std::vector<double> point = point_of(vectors, geometric_median(products_of(vectors)));
    std::vector<double> force(5);
    for (const auto& vector : vectors)
      for (size_t k = 0; k < 5; ++k) force[k] += (vector[k] - point[k]) / euclidean(vector, point);
    CHECK(euclidean(force, std::vector<double>(5)) < 1e-9);
  }
}

TEST_CASE("aggregation rules: the geometric median leaves a vector that it starts from, unless that is the median") {
  // The origin is a vector. The others pull to the right by 4 cos(45 degrees), with more than its hold of 1.
  const VectorList fan = {{0, 0}, {1, 1}, {1, -1}, {2, 2}, {2, -2}};
  const std::vector<double> right = point_of(fan, geometric_median(products_of(fan, {0, 0})), {0, 0});
  CHECK(right[0] > 0.5);
  CHECK(std::abs(right[1]) < 1e-9);
  double force = 0;
  for (const auto& vector : fan) force += (vector[0] - right[0]) / euclidean(vector, right);
  CHECK(std::abs(force) < 1e-9);
  // Three equal vectors hold the median against two others.
  const VectorList held = {{5, 5}, {0, 1}, {0, 1}, {7, -3}, {0, 1}};
  check_vector(point_of(held, geometric_median(products_of(held))), {0, 1}, 1e-12);
  const VectorList equal(4, {2, 3});
  check_vector(point_of(equal, geometric_median(products_of(equal))), {2, 3}, 0);
}

TEST_CASE("aggregation rules: centred clipping by its definition") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    VectorList vectors = normal_vectors(7, 4, seed);
    vectors[3] = {1e30, 1e30, -1e30, 0};
    const double radius = 1.5;
    std::vector<double> center = median_of_columns(vectors);
    for (int round = 0; round < 3; ++round) {
      std::vector<double> next = center;
      for (const auto& vector : vectors)
        for (size_t k = 0; k < 4; ++k) next[k] += (vector[k] - center[k]) * std::min(1.0, radius / euclidean(vector, center)) / 7;
      center = next;
    }
    check_vector(point_of(vectors, centered_clipping(products_of(vectors), radius, 3)), center, 1e-12);
  }
}
