#pragma once
// Pure generators of compute-only plans (F and B; later I and W), and where stages live.
#include "parallel/pipeline/action.h"

namespace trireme {

enum class ScheduleKind : uint8_t { kGPipe, k1F1B };
const char* name_of(ScheduleKind kind);

/// All forwards, then all backwards in the same micro-batch order (so that sums match 1F1B bit for bit).   Source: Huang et al. 2018, arXiv:1811.06965.
PipelinePlan gpipe(int stages, int microbatches);
/// Warmup of min(stages - 1 - stage, m) forwards, steady one-forward-one-backward, cooldown.   Source: Narayanan et al. 2021, arXiv:2104.04473.
PipelinePlan one_forward_one_backward(int stages, int microbatches);
/// Forwards only, for evaluation and generation.
PipelinePlan forward_only(int stages, int microbatches);

PipelinePlan make_plan(ScheduleKind kind, int stages, int microbatches);

/// The pipeline rank that computes each stage. Errors: InternalError where a stage is computed by no rank, or by two.
std::vector<int> stage_ranks(const PipelinePlan& plan);

}  // namespace trireme
