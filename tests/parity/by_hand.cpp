#include "tests/parity/by_hand.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trireme::test {
namespace {

using enum AggregationRule;

/// A function of the ascending values of each coordinate.
std::vector<double> of_columns(const std::vector<std::vector<double>>& vectors, const std::function<double(const std::vector<double>&)>& function) {
  std::vector<double> result, column(vectors.size());
  for (size_t k = 0; k < vectors.front().size(); ++k) {
    for (size_t i = 0; i < vectors.size(); ++i) column[i] = vectors[i][k];
    std::ranges::sort(column);
    result.push_back(function(column));
  }
  return result;
}

double median(const std::vector<double>& ascending) { return (ascending[(ascending.size() - 1) / 2] + ascending[ascending.size() / 2]) / 2; }

std::vector<double> mean(const std::vector<std::vector<double>>& vectors) {
  return of_columns(vectors,
                    [](const auto& column) { return std::accumulate(column.begin(), column.end(), 0.0) / static_cast<double>(column.size()); });
}

/// Positions in order of Krum's score with f = 1.
std::vector<size_t> by_score(const std::vector<std::vector<double>>& vectors) {
  std::vector<double> scores;
  for (size_t i = 0; i < vectors.size(); ++i) {
    std::vector<double> squares;
    for (size_t j = 0; j < vectors.size(); ++j)
      if (j != i) squares.push_back(std::pow(distance(vectors[i], vectors[j]), 2));
    std::ranges::sort(squares);
    squares.resize(std::max<size_t>(1, vectors.size() > 3 ? vectors.size() - 3 : 0));
    scores.push_back(std::accumulate(squares.begin(), squares.end(), 0.0));
  }
  std::vector<size_t> order(vectors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return scores[i]; });
  return order;
}

}  // namespace

double norm_of(const std::vector<double>& values) { return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0)); }

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += (a[k] - b[k]) * (a[k] - b[k]);
  return std::sqrt(sum);
}

std::vector<double> rule_by_hand(AggregationRule rule, std::vector<std::vector<double>> vectors) {
  const size_t n = vectors.size();
  switch (rule) {
    case kMean: return mean(vectors);
    case kMedian: return of_columns(vectors, median);
    case kTrimmedMean:
      return of_columns(vectors, [](const auto& column) {
        return std::accumulate(column.begin() + 1, column.end() - 1, 0.0) / static_cast<double>(column.size() - 2);
      });
    case kKrum: return vectors[by_score(vectors).front()];
    case kMultiKrum: {
      std::vector<std::vector<double>> best;
      for (const size_t i : by_score(vectors))
        if (best.size() < n - 3) best.push_back(vectors[i]);
      return mean(best);
    }
    case kBulyan: {
      std::vector<std::vector<double>> chosen;
      while (chosen.size() < n - 2) {
        const auto best = static_cast<ptrdiff_t>(by_score(vectors).front());
        chosen.push_back(vectors[static_cast<size_t>(best)]);
        vectors.erase(vectors.begin() + best);
      }
      return of_columns(chosen, [&](std::vector<double> column) {
        const double middle = median(column);
        std::ranges::stable_sort(column, {}, [&](double value) { return std::abs(value - middle); });
        return std::accumulate(column.begin(), column.begin() + static_cast<ptrdiff_t>(n - 4), 0.0) / static_cast<double>(n - 4);
      });
    }
    case kGeometricMedian: {
      std::vector<double> point = of_columns(vectors, median);
      for (int iteration = 0; iteration < 3000; ++iteration) {
        std::vector<double> next(point.size());
        double weights = 0;
        for (const auto& vector : vectors) {
          const double weight = 1 / distance(vector, point);
          weights += weight;
          for (size_t k = 0; k < point.size(); ++k) next[k] += weight * vector[k];
        }
        for (double& value : next) value /= weights;
        const double moved = distance(point, next);
        point = next;
        if (moved < 1e-15) break;
      }
      return point;
    }
    case kCenteredClipping: {
      std::vector<double> point = of_columns(vectors, median);
      for (int round = 0; round < 3; ++round) {
        std::vector<double> next = point;
        for (const auto& vector : vectors) {
          const double share = std::min(1.0, kByHandRadius / distance(vector, point)) / static_cast<double>(n);
          for (size_t k = 0; k < point.size(); ++k) next[k] += share * (vector[k] - point[k]);
        }
        point = next;
      }
      return point;
    }
  }
  return {};
}

RaggedDataset ragged_data(const Config& config) {
  return {29, config.training.sequence_length, *config.model.vocab_size, true, config.data.document_mask};
}

std::vector<std::vector<double>> gradients_of_samples(const Config& of, const Prepare& prepare) {
  Config config = on_one_rank(of);
  config.training.global_batch_size = 1;
  const RaggedDataset data = ragged_data(config);
  std::vector<std::vector<double>> gradients;
  run_ranks(1, [&](Communicator& world) {
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    prepare(trainer);
    for (int64_t sample = 0; sample < data.sequences(); ++sample) {
      const StepResult result = trainer.step(OneSample(data, sample), 0, 0);
      gradients.push_back(gathered_gradient(trainer));
      for (double& value : gradients.back()) value *= static_cast<double>(result.targets) / static_cast<double>(config.training.sequence_length);
    }
  });
  return gradients;
}

std::vector<std::vector<double>> gradients_of_data_ranks(Config config, int64_t step) {
  const int64_t ranks = *config.parallel.data;
  config = on_one_rank(std::move(config));
  config.training.compression = {};
  config.training.global_batch_size /= ranks;
  std::vector<std::vector<double>> gradients;
  run_ranks(1, [&](Communicator& world) {
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      trainer.step(ragged_data(config), step * ranks + rank, 0);
      gradients.push_back(gathered_gradient(trainer));
    }
  });
  return gradients;
}

}  // namespace trireme::test
