#include "parallel/pipeline/schedule.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace trireme {
namespace {

void check_sizes(int stages, int microbatches) {
  TRIREME_CHECK(stages >= 1 && microbatches >= 1, stages, " stages, ", microbatches, " micro-batches");
}

void append(ActionList& list, ActionType type, int stage, int first, int last) {
  for (int m = first; m < last; ++m) list.push_back({type, stage, m});
}

}  // namespace

const char* name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGPipe: return "gpipe";
    case ScheduleKind::k1F1B: return "1f1b";
  }
  return "?";
}

PipelinePlan gpipe(int stages, int microbatches) {
  PipelinePlan plan = forward_only(stages, microbatches);
  for (int stage = 0; stage < stages; ++stage) append(plan[static_cast<size_t>(stage)], ActionType::kBackward, stage, 0, microbatches);
  return plan;
}

PipelinePlan one_forward_one_backward(int stages, int microbatches) {
  check_sizes(stages, microbatches);
  PipelinePlan plan(static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    ActionList& list = plan[static_cast<size_t>(stage)];
    const int warmup = std::min(stages - 1 - stage, microbatches);
    append(list, ActionType::kForward, stage, 0, warmup);
    for (int m = warmup; m < microbatches; ++m) {
      list.push_back({ActionType::kForward, stage, m});
      list.push_back({ActionType::kBackward, stage, m - warmup});
    }
    append(list, ActionType::kBackward, stage, microbatches - warmup, microbatches);
  }
  return plan;
}

PipelinePlan forward_only(int stages, int microbatches) {
  check_sizes(stages, microbatches);
  PipelinePlan plan(static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) append(plan[static_cast<size_t>(stage)], ActionType::kForward, stage, 0, microbatches);
  return plan;
}

PipelinePlan make_plan(ScheduleKind kind, int stages, int microbatches) {
  switch (kind) {
    case ScheduleKind::kGPipe: return gpipe(stages, microbatches);
    case ScheduleKind::k1F1B: return one_forward_one_backward(stages, microbatches);
  }
  throw InternalError("unknown schedule");
}

std::vector<int> stage_ranks(const PipelinePlan& plan) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < plan.size(); ++rank) {
    for (const Action& action : plan[rank]) {
      if (!is_compute(action.type)) continue;
      const size_t stage = static_cast<size_t>(action.stage);
      if (stage >= ranks.size()) ranks.resize(stage + 1, -1);
      TRIREME_CHECK(ranks[stage] < 0 || ranks[stage] == static_cast<int>(rank), "stage ", stage, " lives on ranks ", ranks[stage], " and ", rank);
      ranks[stage] = static_cast<int>(rank);
    }
  }
  for (size_t stage = 0; stage < ranks.size(); ++stage) TRIREME_CHECK(ranks[stage] >= 0, "no rank computes stage ", stage);
  return ranks;
}

}  // namespace trireme
