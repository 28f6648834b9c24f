#pragma once
// The learning-rate range test: Smith 2017, "Cyclical learning rates for training neural networks", arXiv:1506.01186.
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/sweep.h"
#include "trainer/report/run_record.h"

namespace trireme::sweep {

struct RangeTestResult {
  std::vector<double> rate;         ///< of each step: training.optimizer.learning_rate, before learning_rate_scaling
  std::vector<double> loss;         ///< NaN where it was not finite
  std::vector<double> smoothed;     ///< exponential moving average of the loss, corrected for its start
  std::optional<double> suggested;  ///< the rate at which the smoothed loss falls fastest per factor of the rate; nullopt if it never falls
  std::optional<double> lowest;     ///< the rate at which the smoothed loss is lowest
  std::string text;                 ///< a sentence for people
};

/// Steps after the smoothed loss has doubled its lowest value do not count. The first tenth of the steps is not suggested: there the loss falls because
/// training has just begun.
RangeTestResult range_test_result(const report::RunRecord& run, const SweepRangeTest& test);

}  // namespace trireme::sweep
