#pragma once
// Successive halving as pure functions: Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization".
#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/sweep/objective.h"

namespace trireme::sweep {

/// The steps at the end of each rung: first_steps, eta times as many, ..., and at last `steps`, those of the longest run. Without halving only `steps`.
std::vector<int64_t> rungs_of(const SweepHalving& halving, int64_t steps);

/// A point at the end of a rung.
struct Contender {
  size_t index = 0;
  std::optional<Score> score;
};

/// The points that train the next rung: the best 1/eta of the `contenders`, rounded up, at least one, by ascending index. Of equal scores the lower
/// index counts as better; without a score a point is the worst.
std::vector<size_t> promoted(std::vector<Contender> contenders, int64_t eta, const SweepObjective& objective);

}  // namespace trireme::sweep
