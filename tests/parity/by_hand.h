#pragma once
// What steps must yield, computed from the gradients of single samples or data ranks on one rank.
#include <functional>
#include <vector>

#include "tests/parity/run_state.h"

namespace trireme::test {

/// Radius of centred clipping in rule_by_hand().
inline constexpr double kByHandRadius = 0.7;

double norm_of(const std::vector<double>& values);
double distance(const std::vector<double>& a, const std::vector<double>& b);

/// The rules on whole vectors with f = 1, straight from their definitions.
std::vector<double> rule_by_hand(AggregationRule rule, std::vector<std::vector<double>> vectors);

/// Gives the same sample of other data whatever is asked for.
class OneSample final : public Dataset {
 public:
  OneSample(const Dataset& data, int64_t sample) : data_(data), sample_(sample) {}
  int64_t sequences() const override { return 1; }
  void read(int64_t, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    data_.read(sample_, tokens, targets, segments);
  }

 private:
  const Dataset& data_;
  int64_t sample_;
};

/// 29 samples, of which one has no valid target.
RaggedDataset ragged_data(const Config& config);

using Prepare = std::function<void(Trainer&)>;

/// The gradient of the loss of each sample by itself, summed over its tokens and divided by the length of a sequence, from a trainer without privacy.
/// `prepare` is called with the initialised trainer.
std::vector<std::vector<double>> gradients_of_samples(
    const Config& of, const Prepare& prepare = [](Trainer&) {});

/// The gradients of the samples of each data rank in step `step` (from 0), means over its tokens, without compression, from one rank that takes them as batches of its own.
std::vector<std::vector<double>> gradients_of_data_ranks(Config config, int64_t step = 0);

}  // namespace trireme::test
