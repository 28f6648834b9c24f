#include "parallel/sharding/aggregation_rule.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr int kClippingRounds = 3;

std::vector<int> first_indices(int64_t count) {
  std::vector<int> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = (values.size() - 1) / 2;
  return (values[middle] + values[values.size() - 1 - middle]) / 2;
}

std::vector<double> unit_weights(int64_t size, int64_t at) {
  std::vector<double> weights(static_cast<size_t>(size));
  weights[static_cast<size_t>(at)] = 1;
  return weights;
}

/// Weights of the mean of `chosen` among n.
std::vector<double> mean_weights(int64_t n, const std::vector<int>& chosen) {
  std::vector<double> weights(static_cast<size_t>(n));
  for (const int i : chosen) weights[static_cast<size_t>(i)] = 1 / static_cast<double>(chosen.size());
  return weights;
}

/// Sum over the vectors of 1/distance * (vector - the point), as weights of the vectors and of the point; vectors at the point have no direction.
struct Pull {
  std::vector<double> weights;
  double total = 0;  ///< sum of the weights
  int64_t at_point = 0;
};
Pull pull_on(const std::vector<double>& distances, double none) {
  Pull pull{std::vector<double>(distances.size())};
  for (size_t i = 0; i < distances.size(); ++i) {
    if (distances[i] <= none) {
      ++pull.at_point;
    } else {
      pull.weights[i] = 1 / distances[i];
      pull.total += pull.weights[i];
    }
  }
  return pull;
}

}  // namespace

int64_t least_data_ranks(AggregationRule rule, int64_t byzantine) {
  switch (rule) {
    case AggregationRule::kMean: return 1;
    case AggregationRule::kKrum:
    case AggregationRule::kMultiKrum: return 2 * byzantine + 3;
    case AggregationRule::kBulyan: return 4 * byzantine + 3;
    default: return 2 * byzantine + 1;
  }
}

bool needs_all_products(AggregationRule rule) {
  return rule != AggregationRule::kMean && rule != AggregationRule::kMedian && rule != AggregationRule::kTrimmedMean;
}

InnerProducts::InnerProducts(int64_t size, std::vector<double> values) : size_(size), values_(std::move(values)) {
  TRIREME_CHECK(std::ssize(values_) == size * size, values_.size(), " inner products of ", size, " vectors");
}

double InnerProducts::squared_distance(int64_t a, int64_t b) const {
  const auto at = [&](int64_t i, int64_t j) { return values_[static_cast<size_t>(i * size_ + j)]; };
  return std::max(0.0, at(a, a) + at(b, b) - 2 * at(a, b));
}

double InnerProducts::squares(const std::vector<double>& weights) const {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i)
    for (size_t j = 0; j < weights.size(); ++j) sum += weights[i] * weights[j] * values_[i * weights.size() + j];
  return std::max(0.0, sum);
}

std::vector<double> InnerProducts::squared_distances_from(const std::vector<double>& weights) const {
  constexpr double kCancelled = 1e-4;  // of the terms: fewer than half of the digits of the distance may be lost
  const double of_point = squares(weights);
  std::vector<double> distances;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double* const row = values_.data() + i * weights.size();
    const double terms = row[i] + of_point;
    distances.push_back(std::max(0.0, terms - 2 * std::inner_product(weights.begin(), weights.end(), row, 0.0)));
    if (distances.back() > kCancelled * terms) continue;
    std::vector<double> difference = weights;
    difference[i] -= 1;
    distances.back() = squares(difference);
  }
  return distances;
}

std::vector<double> krum_scores(const InnerProducts& products, const std::vector<int>& among, int64_t byzantine) {
  const int64_t others = std::ssize(among) - 1, nearest = std::min(others, std::max<int64_t>(1, others - byzantine - 1));
  std::vector<double> scores;
  for (const int i : among) {
    std::vector<double> distances;
    for (const int j : among)
      if (j != i) distances.push_back(products.squared_distance(i, j));
    std::ranges::sort(distances);
    scores.push_back(std::accumulate(distances.begin(), distances.begin() + nearest, 0.0));
  }
  return scores;
}

std::vector<int> krum_choice(const InnerProducts& products, int64_t byzantine, int64_t count) {
  const std::vector<double> scores = krum_scores(products, first_indices(products.size()), byzantine);
  std::vector<int> order = first_indices(products.size());
  std::ranges::stable_sort(order, {}, [&](int i) { return scores[static_cast<size_t>(i)]; });
  order.resize(static_cast<size_t>(count));
  std::ranges::sort(order);
  return order;
}

std::vector<int> bulyan_choice(const InnerProducts& products, int64_t byzantine) {
  std::vector<int> left = first_indices(products.size()), chosen;
  while (std::ssize(chosen) < products.size() - 2 * byzantine) {
    const std::vector<double> scores = krum_scores(products, left, byzantine);
    const auto best = left.begin() + (std::ranges::min_element(scores) - scores.begin());
    chosen.push_back(*best);
    left.erase(best);
  }
  std::ranges::sort(chosen);
  return chosen;
}

std::vector<double> geometric_median(const InnerProducts& products) {
  constexpr int kMostIterations = 10000;
  constexpr double kAtVector = 1e-10, kStill = 1e-14;  // of the median distance
  const int64_t n = products.size();
  std::vector<double> point(static_cast<size_t>(n));
  for (int iteration = 0; iteration < kMostIterations; ++iteration) {
    std::vector<double> distances = products.squared_distances_from(point);
    for (double& distance : distances) distance = std::sqrt(distance);
    const int64_t nearest = std::ranges::min_element(distances) - distances.begin();
    const double scale = median_of(distances);
    const bool at_vector = distances[static_cast<size_t>(nearest)] <= kAtVector * scale;
    if (at_vector) point = unit_weights(n, nearest);
    const Pull pull = pull_on(distances, at_vector ? kAtVector * scale : 0);
    if (pull.total == 0) return point;  // all vectors are equal
    std::vector<double> next = pull.weights;
    for (double& weight : next) weight /= pull.total;
    if (at_vector) {
      // The vectors at the point hold it as strongly as they are many. It is the median unless the others pull more.
      std::vector<double> force = pull.weights;
      force[static_cast<size_t>(nearest)] -= pull.total;
      const double strength = std::sqrt(products.squares(force)), held = static_cast<double>(pull.at_point);
      if (strength <= held) return point;
      for (size_t i = 0; i < next.size(); ++i) next[i] = point[i] + (1 - held / strength) * (next[i] - point[i]);
    }
    std::vector<double> change = next;
    for (size_t i = 0; i < change.size(); ++i) change[i] -= point[i];
    point = std::move(next);
    if (std::sqrt(products.squares(change)) <= kStill * scale) break;
  }
  return point;
}

std::vector<double> centered_clipping(const InnerProducts& products, double radius, int rounds) {
  const int64_t n = products.size();
  std::vector<double> point(static_cast<size_t>(n));
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> shares;
    for (const double squares : products.squared_distances_from(point))
      shares.push_back((std::sqrt(squares) > radius ? radius / std::sqrt(squares) : 1) / static_cast<double>(n));
    const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (size_t i = 0; i < point.size(); ++i) point[i] = point[i] * (1 - all) + shares[i];
  }
  return point;
}

Combination combination_of(const AggregationOptions& options, int64_t n, int64_t byzantine, const InnerProducts& products) {
  TRIREME_CHECK(n >= least_data_ranks(options.rule, byzantine), n, " gradients for ", byzantine, " wrong ones");
  const auto weighted = [](std::vector<double> weights) { return Combination{Combination::Kind::kWeighted, {}, 0, std::move(weights)}; };
  switch (options.rule) {
    case AggregationRule::kMean: break;
    case AggregationRule::kMedian: return {Combination::Kind::kTrimmedMean, {}, (n - 1) / 2, {}};
    case AggregationRule::kTrimmedMean: return {Combination::Kind::kTrimmedMean, {}, byzantine, {}};
    case AggregationRule::kKrum: return weighted(mean_weights(n, krum_choice(products, byzantine, 1)));
    case AggregationRule::kMultiKrum: return weighted(mean_weights(n, krum_choice(products, byzantine, n - byzantine - 2)));
    case AggregationRule::kBulyan: return {Combination::Kind::kMeanNearMedian, bulyan_choice(products, byzantine), n - 4 * byzantine, {}};
    case AggregationRule::kGeometricMedian: return weighted(geometric_median(products));
    case AggregationRule::kCenteredClipping: return weighted(centered_clipping(products, options.radius, kClippingRounds));
  }
  throw InternalError("the mean is not a robust rule");
}

}  // namespace trireme
