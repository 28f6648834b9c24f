#include "parallel/pipeline/simulate.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>

#include "kernels/core/check.h"

namespace trireme {
namespace {

/// One simulation: ranks advance along their lists from a work queue, each until it needs something that has not happened yet.
class SimulatedRun {
 public:
  SimulatedRun(const ActionLists& lists, const std::function<double(const Action&)>& seconds);
  std::vector<Timeline> timelines();

 private:
  /// All actions of one type, stage and micro-batch (I and B are one milestone: both compute the input's gradient). Complete when all of them are.
  struct Milestone {
    int planned = 0;
    int done = 0;
    double end = 0;
    int waiter = -1;                   ///< the rank that waits for it
    TimelineEvent* reached = nullptr;  ///< for a transfer: its event, once this end's rank has reached it
    bool over() const { return planned > 0 && done == planned; }
  };

  Milestone& milestone(ActionType type, int stage, int microbatch);
  Milestone& milestone(const Action& action) { return milestone(action.type, action.stage, action.microbatch); }
  Milestone* input_of(const Action& action);
  double arrival(const Milestone& input, const Action& action) const;
  void advance(int rank);
  void transfer(TimelineEvent& event, double now);
  bool meet(int rank, TimelineEvent& event);
  void arrive(int rank, const Action& action);
  void finish(Milestone& milestone, double end);

  const std::function<double(const Action&)>& seconds_;
  std::vector<int> stage_rank_;
  int stages_ = 0;
  int microbatches_ = 0;
  std::vector<Milestone> milestones_;
  std::vector<Timeline> ranks_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::vector<int> runnable_;
  /// CLIP of a micro-batch, or NORM.
  struct Meeting {
    size_t arrived = 0;        ///< ranks that have reached it
    double time = 0;           ///< at which the last of them has
    std::vector<int> waiting;  ///< ranks
  };
  std::map<int, Meeting> meetings_;  ///< by micro-batch; -1: NORM
};

SimulatedRun::SimulatedRun(const ActionLists& lists, const std::function<double(const Action&)>& seconds)
    : seconds_(seconds), ranks_(lists.size()), next_(lists.size(), 0), clock_(lists.size(), 0.0) {
  for (const ActionList& list : lists) {
    for (const Action& action : list) {
      stages_ = std::max(stages_, action.stage + 1);
      stage_rank_.resize(static_cast<size_t>(stages_), -1);
      if (is_compute(action.type)) stage_rank_[static_cast<size_t>(action.stage)] = static_cast<int>(&list - lists.data());
      microbatches_ = std::max(microbatches_, action.microbatch + 1);
    }
  }
  const size_t types = static_cast<size_t>(ActionType::kRecvBackward) + 1;
  milestones_.resize(types * static_cast<size_t>(stages_) * static_cast<size_t>(microbatches_));
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    ranks_[rank].reserve(lists[rank].size());
    for (const Action& action : lists[rank]) {
      ranks_[rank].push_back({action, 0, 0});
      if (is_compute(action.type) || is_transfer(action.type)) ++milestone(action).planned;
    }
    runnable_.push_back(static_cast<int>(rank));
  }
}

SimulatedRun::Milestone& SimulatedRun::milestone(ActionType type, int stage, int microbatch) {
  TRIREME_CHECK(stage >= 0 && stage < stages_ && microbatch >= 0 && microbatch < microbatches_, "no such stage and micro-batch: stage ", stage,
                ", micro-batch ", microbatch);
  const int kind = static_cast<int>(type == ActionType::kBackward ? ActionType::kBackwardInput : type);
  return milestones_[static_cast<size_t>((kind * stages_ + stage) * microbatches_ + microbatch)];
}

/// The milestone that must precede a compute action: its receive or, in lists without transfers, the neighbour's compute.
SimulatedRun::Milestone* SimulatedRun::input_of(const Action& action) {
  const bool forward = action.type == ActionType::kForward;
  if (action.type == ActionType::kBackwardWeight || action.stage == (forward ? 0 : stages_ - 1)) return nullptr;
  Milestone& receive = milestone(forward ? ActionType::kRecvForward : ActionType::kRecvBackward, action.stage, action.microbatch);
  return receive.planned > 0 ? &receive : &milestone(action.type, action.stage + (forward ? -1 : 1), action.microbatch);
}

/// Time at which `input` is available to `action`. The transfers of a compute-only schedule are implied.
double SimulatedRun::arrival(const Milestone& input, const Action& action) const {
  const bool forward = action.type == ActionType::kForward;
  const size_t stage = static_cast<size_t>(action.stage), neighbour = forward ? stage - 1 : stage + 1;
  if (input.reached != nullptr || stage_rank_[stage] == stage_rank_[neighbour]) return input.end;
  return input.end + seconds_({forward ? ActionType::kRecvForward : ActionType::kRecvBackward, action.stage, action.microbatch});
}

void SimulatedRun::advance(int rank) {
  const size_t r = static_cast<size_t>(rank);
  for (; next_[r] < ranks_[r].size(); ++next_[r]) {
    TimelineEvent& event = ranks_[r][next_[r]];
    if (is_transfer(event.action.type)) {
      transfer(event, clock_[r]);
      continue;
    }
    if (event.action.type == ActionType::kNorm || event.action.type == ActionType::kWaitClip) {
      if (!meet(rank, event)) return;
      continue;
    }
    event.begin = clock_[r];
    if (is_compute(event.action.type)) {
      if (Milestone* input = input_of(event.action)) {
        if (!input->over()) {
          input->waiter = rank;
          return;
        }
        event.begin = std::max(event.begin, arrival(*input, event.action));
      }
    }
    event.end = clock_[r] = event.begin + seconds_(event.action);
    if (is_compute(event.action.type)) finish(milestone(event.action), event.end);
    if (event.action.type == ActionType::kClipSamples) arrive(rank, event.action);
  }
}

/// The last rank to arrive releases those that wait.
void SimulatedRun::arrive(int rank, const Action& action) {
  Meeting& meeting = meetings_[action.microbatch];
  meeting.time = std::max(meeting.time, clock_[static_cast<size_t>(rank)]);
  if (++meeting.arrived < ranks_.size()) return;
  runnable_.insert(runnable_.end(), meeting.waiting.begin(), meeting.waiting.end());
  meeting.waiting.clear();
}

/// NORM is its own arrival, when it is first reached. False if the rank has to wait.
bool SimulatedRun::meet(int rank, TimelineEvent& event) {
  if (event.action.type == ActionType::kNorm && meetings_[-1].arrived < ranks_.size()) arrive(rank, event.action);
  Meeting& meeting = meetings_[event.action.microbatch];
  if (meeting.arrived < ranks_.size()) {
    meeting.waiting.push_back(rank);
    return false;
  }
  double& clock = clock_[static_cast<size_t>(rank)];
  event.begin = std::max(clock, meeting.time);
  event.end = clock = event.begin + seconds_(event.action);
  return true;
}

void SimulatedRun::transfer(TimelineEvent& event, double now) {
  event.begin = event.end = now;
  milestone(event.action).reached = &event;
  TimelineEvent* other = milestone(counterpart(event.action)).reached;
  if (other == nullptr) return;
  TimelineEvent& receive = is_receive(event.action.type) ? event : *other;
  event.end = other->end = std::max(event.begin, other->begin) + seconds_(receive.action);
  finish(milestone(receive.action), receive.end);
}

void SimulatedRun::finish(Milestone& milestone, double end) {
  milestone.end = std::max(milestone.end, end);
  if (++milestone.done < milestone.planned || milestone.waiter < 0) return;
  runnable_.push_back(milestone.waiter);
  milestone.waiter = -1;
}

std::vector<Timeline> SimulatedRun::timelines() {
  while (!runnable_.empty()) {
    const int rank = runnable_.back();
    runnable_.pop_back();
    advance(rank);
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (next_[rank] < ranks_[rank].size()) throw InternalError(concat("rank ", rank, " is stuck at ", to_string(ranks_[rank][next_[rank]].action)));
  return std::move(ranks_);
}

}  // namespace

Simulation simulate(const ActionLists& lists, const std::function<double(const Action&)>& seconds) {
  Simulation result;
  result.ranks = SimulatedRun(lists, seconds).timelines();
  double compute = 0, first = std::numeric_limits<double>::infinity(), last = 0;
  for (const Timeline& timeline : result.ranks) {
    double begin = std::numeric_limits<double>::infinity(), end = 0;
    for (const TimelineEvent& event : timeline) {
      if (is_transfer(event.action.type) || event.end == event.begin) continue;  // a receive is posted long before its data exists
      begin = std::min(begin, event.begin);
      end = std::max(end, event.end);
      if (is_compute(event.action.type)) compute += event.end - event.begin;
    }
    result.step_seconds = std::max(result.step_seconds, end - begin);
    first = std::min(first, begin);
    last = std::max(last, end);
  }
  result.barrier_seconds = std::max(0.0, last - first);
  if (result.step_seconds > 0) result.bubble = 1 - compute / static_cast<double>(lists.size()) / result.step_seconds;
  return result;
}

}  // namespace trireme
