#pragma once
// What the points of a sweep are ranked by.
#include <cstdint>
#include <optional>

#include "trainer/config/sweep.h"
#include "trainer/report/run_record.h"

namespace trireme::sweep {

struct Score {
  double value = 0;  ///< finite
  int64_t step = 0;  ///< of the last of the values that it is made of
};

/// The objective of a run from what it has recorded up to step `until`, later steps do not count; nullopt if there is nothing, or it is not finite.
std::optional<Score> score_of(const report::RunRecord& run, const SweepObjective& objective, int64_t until);

/// True if `a` is better than `b`; no score is worse than any. Equal scores: false.
bool is_better(const std::optional<Score>& a, const std::optional<Score>& b, const SweepObjective& objective);

/// "validation_loss", "mean of 10 loss": the objective in words. `best`: whether it is the best value on the way.
std::string objective_text(const SweepObjective& objective);

}  // namespace trireme::sweep
