#pragma once
// The file of a sweep: what is the same for all of its runs. Its axes, whose keys are those of a configuration, are read by trainer/sweep.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/one_of.h"

namespace trireme {

struct SweepBudget {
  std::optional<int64_t> points;  ///< points that are started, from the first one
  std::optional<int64_t> steps;   ///< training steps of all points together
  std::optional<double> hours;    ///< that the sweep may run, over all its jobs
  bool operator==(const SweepBudget&) const = default;
};

enum class SweepMetric : uint8_t { kValidationLoss, kLoss, kTokensPerSecond, kStepSeconds };
template <>
inline constexpr std::array kNames<SweepMetric>{"validation_loss", "loss", "tokens_per_second", "step_seconds"};

enum class SweepGoal : uint8_t { kMinimise, kMaximise };
template <>
inline constexpr std::array kNames<SweepGoal>{"minimise", "maximise"};

enum class SweepTake : uint8_t { kLast, kBest };
template <>
inline constexpr std::array kNames<SweepTake>{"last", "best"};

struct SweepObjective {
  OneOf<SweepMetric> metric = SweepMetric::kValidationLoss;
  OneOf<SweepGoal> goal = SweepGoal::kMinimise;
  OneOf<SweepTake> take = SweepTake::kLast;
  int64_t average = 1;  ///< values that are averaged into one, for the metrics of steps
  bool operator==(const SweepObjective&) const = default;
};

enum class SweepPlace : uint8_t { kLocal, kSlurm };
template <>
inline constexpr std::array kNames<SweepPlace>{"local", "slurm"};

struct SweepWhere {
  OneOf<SweepPlace> place = SweepPlace::kLocal;
  std::optional<int64_t> at_once;  ///< points that run at a time
  std::optional<int64_t> cores;    ///< for each point
  bool operator==(const SweepWhere&) const = default;
};

/// Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943).
struct SweepHalving {
  std::optional<int64_t> first_steps;  ///< unset: none
  int64_t eta = 3;
  bool operator==(const SweepHalving&) const = default;
};

/// Learning-rate range test (Smith 2017, arXiv:1506.01186).
struct SweepRangeTest {
  std::optional<double> from, to;  ///< unset: none
  std::optional<int64_t> steps;
  bool operator==(const SweepRangeTest&) const = default;
};

/// `axes` and `set`, whose keys are those of a configuration.
struct SweepKeys {
  bool operator==(const SweepKeys&) const = default;
};

struct SweepConfig {
  std::string base;       ///< path of the configuration, relative to the sweep file
  std::string directory;  ///< empty: auto
  int64_t seed = 0;       ///< from which random axes draw
  std::optional<int64_t> samples;
  int64_t retries = 1;
  std::optional<int64_t> stop_after_failures;
  SweepObjective objective;
  SweepBudget budget;
  SweepWhere where;
  SweepHalving halving;
  SweepRangeTest range_test;
  SweepKeys set, axes;
  std::vector<std::string> zip;  ///< axes that advance together
  bool operator==(const SweepConfig&) const = default;
};

}  // namespace trireme
