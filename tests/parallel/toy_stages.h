#pragma once
#include <sstream>
#include <string>

#include "parallel/pipeline/lower.h"

namespace trireme::test {

/// The units of a small model: each stage has `blocks` parts with a unit each; the first also an embedding before them, the last a head after them.
/// Tied, the head also reads the embedding's unit: the first one of the same stage, or a copy of it that is the last stage's last unit.
inline std::vector<StageUnits> toy_units(int stages, int blocks, bool tied) {
  std::vector<StageUnits> result(static_cast<size_t>(stages));
  for (int s = 0; s < stages; ++s) {
    StageUnits& stage = result[static_cast<size_t>(s)];
    const bool first = s == 0, last = s == stages - 1;
    const int parts = blocks + (first ? 1 : 0) + (last ? 1 : 0);
    for (int part = 0; part < parts; ++part) stage.units_of_part.push_back({stage.units++});
    if (!tied) continue;
    if (first) stage.tied_unit = 0;
    if (last && !first) stage.tied_unit = stage.units++;
    if (last) stage.units_of_part.back().push_back(stage.tied_unit);
  }
  return result;
}

/// The list of a stage that "F0 F1 B0" spells.
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
