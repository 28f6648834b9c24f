#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>

#include "kernels/core/check.h"
#include "parallel/comm/collective_steps.h"

namespace trireme {
namespace {

/// The state of one rank of a simulation.
struct SimulatedRank {
  size_t step = 0;
  double entered = 0, done = 0;  ///< seconds; done: end of the messages of this step so far
  bool sent = false, received = false;
};

}  // namespace

CollectiveSimulation simulate(const std::vector<CollectiveSteps>& ranks, const std::function<double(int64_t)>& message,
                              const std::function<double(int64_t)>& merge) {
  std::vector<SimulatedRank> states(ranks.size());
  std::deque<size_t> moved(ranks.size());
  std::iota(moved.begin(), moved.end(), size_t{0});
  const auto step_of = [&](size_t rank) { return states[rank].step < ranks[rank].size() ? &ranks[rank][states[rank].step] : nullptr; };
  std::string mismatch;
  /// Moves the message from `from` to `to` if both have reached it.
  const auto meet = [&](size_t from, size_t to) {
    if (to >= ranks.size() || from >= ranks.size()) return;
    const CollectiveStep *out = step_of(from), *in = step_of(to);
    if (out == nullptr || in == nullptr || states[from].sent || states[to].received) return;
    if (!out->send || !in->receive || out->send->peer != static_cast<int>(to) || in->receive->peer != static_cast<int>(from)) return;
    if (out->send->begin != in->receive->begin || out->send->count != in->receive->count)
      mismatch = concat("rank ", from, " sends ", out->send->count, " elements from ", out->send->begin, " to rank ", to, ", which expects ",
                        in->receive->count, " from ", in->receive->begin);
    states[from].sent = states[to].received = true;
    const double end = std::max(states[from].entered, states[to].entered) + message(out->send->count);
    for (const size_t rank : {from, to}) {
      states[rank].done = std::max(states[rank].done, end);
      moved.push_back(rank);
    }
  };
  CollectiveSimulation result;
  while (!moved.empty() && mismatch.empty()) {
    const size_t rank = moved.front();
    moved.pop_front();
    const CollectiveStep* step = step_of(rank);
    if (step == nullptr) continue;
    SimulatedRank& state = states[rank];
    if (step->send && !state.sent) meet(rank, static_cast<size_t>(step->send->peer));
    if (step->receive && !state.received) meet(static_cast<size_t>(step->receive->peer), rank);
    if ((step->send && !state.sent) || (step->receive && !state.received)) continue;
    const bool sums = step->receive && step->merge != CollectiveStep::Merge::kReplace;
    const double end = state.done + (sums ? merge(step->receive->count) : 0);
    result.seconds = std::max(result.seconds, end);
    state = {state.step + 1, end, end};
    moved.push_back(rank);
  }
  result.error = mismatch;
  for (size_t rank = 0; rank < ranks.size() && mismatch.empty(); ++rank)
    if (const CollectiveStep* step = step_of(rank))
      result.error += concat(result.error.empty() ? "" : "; ", "rank ", rank, " is blocked in step ", states[rank].step, ": ", step->str());
  return result;
}

}  // namespace trireme
