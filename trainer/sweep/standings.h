#pragma once
// Where the points of a sweep stand: a pure function of the file and of what their jobs have left, so that a sweep that was killed continues as if it had
// not been.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/sweep/objective.h"
#include "trainer/sweep/state.h"

namespace trireme::sweep {

enum class PointState : uint8_t {
  kWaiting,  ///< not yet started
  kBegun,    ///< started; its next job resumes it
  kSettled,  ///< at the end of its rung, where it waits for the others
  kDone,
  kDropped,  ///< its score was not among the best of its rung
  kFailed,
  kLeftOut,  ///< the budget does not reach it
};
/// "waiting", "begun", "settled", "done", "dropped", "failed", "left out".
const char* name_of(PointState state);

struct Standing {
  PointState state = PointState::kWaiting;
  int64_t target = 0;          ///< the step that the point is to reach in its rung
  std::optional<Score> score;  ///< at the end of the last rung that it has completed
  int64_t scored_at = 0;       ///< the step at which that rung ends for it; 0: none is complete
};

/// The score of point `index` from its steps up to `until`.
using ScoreAt = std::function<std::optional<Score>(size_t index, int64_t until)>;

/// The standings of all points. `histories`: by index.
std::vector<Standing> standings_of(const SweepConfig& config, const std::vector<PointRun>& runs, const std::vector<PointHistory>& histories,
                                   const ScoreAt& score_at);

/// True if this failure is how a range test ends that has found the limit: its loss has diverged.
bool ends_range_test(const SweepConfig& config, const PointHistory& history);

/// Training steps that all points take together if none fails.
int64_t planned_steps(const SweepConfig& config, const std::vector<PointRun>& runs);

}  // namespace trireme::sweep
