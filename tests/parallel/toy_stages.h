#pragma once
#include <numeric>
#include <sstream>
#include <string>

#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/schedule.h"

namespace trireme::test {

/// The units of a small model. Each stage has `blocks` parts with a unit each; the first also has an embedding before them, the last a head after
/// them. If `tied`, the head also reads the embedding's unit: the first unit of the same stage with one stage, that of stage 0 if
/// `first_stage_is_local` (both stages share a rank), otherwise a copy that is the last stage's last unit. `fused`: the head has no W.
inline std::vector<StageUnits> toy_units(int stages, int blocks, bool tied, bool first_stage_is_local = false, bool fused = false) {
  std::vector<StageUnits> result(static_cast<size_t>(stages));
  for (int s = 0; s < stages; ++s) {
    StageUnits& stage = result[static_cast<size_t>(s)];
    const bool first = s == 0, last = s == stages - 1;
    const int parts = blocks + (first ? 1 : 0) + (last ? 1 : 0);
    for (int part = 0; part < parts; ++part) stage.units_of_part.push_back({stage.units++});
    if (last && fused) stage.fused_part = parts - 1;
    if (tied && last) stage.units_of_part.back().push_back(first ? UnitRef(0) : first_stage_is_local ? UnitRef(0, 0) : UnitRef(stage.units++));
    const bool apart = tied && stages > 1 && !first_stage_is_local;
    if (apart && (first || last)) stage.tied_unit = first ? 0 : stage.units - 1;
    if (tied && stages == 1) stage.tied_unit = 0;
  }
  return result;
}

/// Whether the first and the last stage of a kind are on one rank.
inline bool ends_meet(ScheduleKind kind, int ranks) { return ranks == 1 || kind == ScheduleKind::kZbV; }

/// Stage s on rank s.
inline std::vector<int> one_stage_each(int ranks) {
  std::vector<int> stage_rank(static_cast<size_t>(ranks));
  std::iota(stage_rank.begin(), stage_rank.end(), 0);
  return stage_rank;
}

/// Parses a list of one stage: "F0 F1 B0".
inline ActionList compute_list(int stage, const std::string& spelled) {
  ActionList list;
  std::istringstream words(spelled);
  for (std::string word; words >> word;) {
    const ActionType type = word[0] == 'F'   ? ActionType::kForward
                            : word[0] == 'B' ? ActionType::kBackward
                            : word[0] == 'I' ? ActionType::kBackwardInput
                                             : ActionType::kBackwardWeight;
    list.push_back({type, stage, std::stoi(word.substr(1))});
  }
  return list;
}

}  // namespace trireme::test
