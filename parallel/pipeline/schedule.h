#pragma once
// Pure generators of compute-only schedules (F and B, or F, I and W), and the placement of stages. Stages are numbered globally: with v virtual
// stages each of p ranks computes v of the p * v stages.
#include "parallel/pipeline/action.h"

namespace trireme {

enum class ScheduleKind : uint8_t { kGPipe, k1F1B, kInterleaved1F1B, kZbH1, kZbH2, kZbV };
constexpr ScheduleKind kScheduleKinds[] = {ScheduleKind::kGPipe, ScheduleKind::k1F1B, ScheduleKind::kInterleaved1F1B,
                                           ScheduleKind::kZbH1,  ScheduleKind::kZbH2, ScheduleKind::kZbV};
const char* name_of(ScheduleKind kind);  ///< "gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v"

/// All forwards, then all backwards in the same micro-batch order (so that sums match 1F1B bit for bit).   Source: Huang et al. 2018,
/// arXiv:1811.06965.
ActionLists gpipe(int ranks, int microbatches);
/// Warmup of min(ranks - 1 - rank, m) forwards, steady one-forward-one-backward, cooldown.   Source: Narayanan et al. 2021, arXiv:2104.04473.
ActionLists one_forward_one_backward(int ranks, int microbatches);
/// 1F1B over virtual stages: stage s on rank s mod p. Micro-batches are processed in floor(m / p) groups of p, or of more where p does not divide m.
/// Bubble (p-1)/(v m) of the ideal time where p divides m; (v-1) g + 2 (p-1-i) + 1 chunks in flight on rank i, g the largest group. Source: Narayanan
/// et al. 2021, arXiv:2104.04473, section 2.2.
ActionLists interleaved_1f1b(int ranks, int virtual_stages, int microbatches);
/// Zero bubble with p in flight on every rank: bubble (p-1)(F+I-W) where m >= p.   Source: Qi et al. 2024, arXiv:2401.10241, section 2.
ActionLists zb_h1(int ranks, int microbatches);
/// Zero bubble with 2p - 1 in flight: bubble (p-1)(F+I-2W) where m >= 2p - 1.   Source: the same.
ActionLists zb_h2(int ranks, int microbatches);
/// Two stages per rank in a V: stages s and 2p - 1 - s on rank s. 2p micro-batches of one stage (half a rank's layers) in flight, as much memory as
/// 1F1B's first rank; no bubble if F = I = W and m >= 2p - 1.   Source: section 6 of the same; Qi et al. 2024, arXiv:2405.15362.
ActionLists zb_v(int ranks, int microbatches);
/// Forwards only, for evaluation and generation. Stage s on rank stage_rank[s]. A rank runs the last of its stages that has its input, so that ranks
/// overlap.
ActionLists forward_only(const std::vector<int>& stage_rank, int microbatches);

/// Default number of virtual stages of a kind (2 for interleaved_1f1b and zb_v, else 1), and whether it supports `virtual_stages` (interleaved_1f1b:
/// any, the others: only their default).
int default_virtual_stages(ScheduleKind kind);
bool allows_virtual_stages(ScheduleKind kind, int virtual_stages);

ActionLists make_schedule(ScheduleKind kind, int ranks, int virtual_stages, int microbatches);

/// For each stage, the number of its forwards in its rank's list before that list's first backward or input gradient.
std::vector<int> forwards_before_backward(ScheduleKind kind, int ranks, int virtual_stages, int microbatches);

/// How a schedule grows: the lists of more micro-batches, by a multiple of `microbatches`, repeat the middle of these lists, behind the first
/// `irregular` micro-batches.
struct SchedulePeriod {
  int microbatches = 0;  ///< 0: the lists are not known to repeat
  int irregular = 0;
};
SchedulePeriod period_of(ScheduleKind kind, int ranks, int virtual_stages, int microbatches);

/// The pipeline rank that computes each stage. Errors: InternalError if a stage is computed by no rank, or by two.
std::vector<int> stage_ranks(const ActionLists& lists);

/// A compute-only schedule as text: one line for each rank, "0F0 0F1 0B0 ...". parse_schedule ignores empty lines and text after a '#'.
std::string to_text(const ActionLists& lists);
/// Errors: ConfigError naming line and word.
ActionLists parse_schedule(const std::string& text);

}  // namespace trireme
