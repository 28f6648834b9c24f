#include "trainer/sweep/standings.h"

#include <algorithm>
#include <array>

#include "trainer/sweep/halving.h"

namespace trireme::sweep {
namespace {

int64_t longest(const std::vector<PointRun>& runs) {
  int64_t steps = 0;
  for (const PointRun& run : runs) steps = std::max(steps, run.steps);
  return steps;
}

/// Points that the budget of points reaches.
size_t within_budget(const SweepConfig& config, size_t points) {
  return std::min(points, static_cast<size_t>(config.budget.points.value_or(static_cast<int64_t>(points))));
}

/// Sets the states of the members of a rung. Returns whether all of them have reached its end or failed.
bool judge_rung(const SweepConfig& config, const std::vector<PointRun>& runs, const std::vector<PointHistory>& histories, const ScoreAt& score_at,
                const std::vector<size_t>& members, int64_t rung, std::vector<Standing>& out) {
  bool complete = true;
  for (const size_t i : members) {
    const PointHistory& history = histories[i];
    Standing& standing = out[i];
    standing.target = std::min(rung, runs[i].steps);
    const bool ended = ends_range_test(config, history);
    if (ended || (!history.failure && history.done_until >= standing.target)) {
      standing.state = ended || standing.target == runs[i].steps ? PointState::kDone : PointState::kSettled;
      standing.score = score_at(i, standing.target);
      standing.scored_at = standing.target;
    } else if (history.failure) {
      standing.state = PointState::kFailed;
    } else {
      standing.state = history.has_run ? PointState::kBegun : PointState::kWaiting;
      complete = false;
    }
  }
  return complete;
}

}  // namespace

const char* name_of(PointState state) {
  constexpr std::array kStates{"waiting", "begun", "settled", "done", "dropped", "failed", "left out"};
  return kStates[static_cast<size_t>(state)];
}

bool ends_range_test(const SweepConfig& config, const PointHistory& history) {
  return config.range_test.from && history.failure && history.failure->message.find("training has diverged") != std::string::npos;
}

std::vector<Standing> standings_of(const SweepConfig& config, const std::vector<PointRun>& runs, const std::vector<PointHistory>& histories,
                                   const ScoreAt& score_at) {
  std::vector<Standing> out(runs.size());
  std::vector<size_t> members;
  for (size_t i = 0; i < runs.size(); ++i) {
    out[i].target = runs[i].steps;
    out[i].state = PointState::kLeftOut;
    if (i < within_budget(config, runs.size())) members.push_back(i);
  }
  const std::vector<int64_t> rungs = rungs_of(config.halving, longest(runs));
  for (const int64_t rung : rungs) {
    if (!judge_rung(config, runs, histories, score_at, members, rung, out) || rung == rungs.back()) break;
    std::vector<Contender> contenders;
    for (const size_t i : members)
      if (out[i].state != PointState::kFailed) contenders.push_back({i, out[i].score});
    if (contenders.empty()) break;
    members = promoted(contenders, config.halving.eta, config.objective);
    for (const Contender& one : contenders)
      if (!std::ranges::binary_search(members, one.index) && out[one.index].state == PointState::kSettled)
        out[one.index].state = PointState::kDropped;
  }
  return out;
}

int64_t planned_steps(const SweepConfig& config, const std::vector<PointRun>& runs) {
  size_t members = within_budget(config, runs.size());
  int64_t total = 0, before = 0;
  for (const int64_t rung : rungs_of(config.halving, longest(runs))) {
    for (size_t i = 0; i < members; ++i) total += std::max<int64_t>(0, std::min(rung, runs[i].steps) - before);
    before = rung;
    members = (members + static_cast<size_t>(config.halving.eta) - 1) / static_cast<size_t>(config.halving.eta);
  }
  return total;
}

}  // namespace trireme::sweep
