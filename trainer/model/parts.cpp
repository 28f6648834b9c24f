#include "trainer/model/parts.h"

#include <algorithm>

namespace trireme {
namespace {

constexpr const char* kEmbeddingUnit = "embedding";

/// True for a tied head whose rank also has the first stage: it reads the embedding there.
bool reads_first_stage(const Part& part, const std::string& unit, const StageRange& range, bool first_stage_is_local) {
  return part.kind == PartKind::kHead && unit == kEmbeddingUnit && !range.first() && first_stage_is_local;
}

}  // namespace

std::vector<StageRange> stage_ranges(const std::vector<int64_t>& layers_per_stage) {
  std::vector<StageRange> ranges;
  int64_t first_block = 0;
  for (const int64_t blocks : layers_per_stage) {
    ranges.push_back({static_cast<int>(ranges.size()), static_cast<int>(layers_per_stage.size()), first_block, blocks});
    first_block += blocks;
  }
  return ranges;
}

StageRange stage_range(const std::vector<int64_t>& layers_per_stage, int stage) { return stage_ranges(layers_per_stage)[static_cast<size_t>(stage)]; }

StageRange whole_range(const ModelConfig& model) { return stage_range({model.layers}, 0); }

std::vector<Part> parts_of(const ModelConfig& model, const StageRange& range, int64_t blocks_per_unit) {
  const auto block_name = [](int64_t block) { return "blocks." + std::to_string(block); };
  std::vector<Part> parts;
  if (range.first()) {
    parts.push_back({PartKind::kEmbedding, "embedding", {kEmbeddingUnit}});
    if (has_learned_positions(model)) parts.back().units.push_back("positions");
  }
  for (int64_t b = 0; b < range.blocks; ++b) {
    const int64_t block = range.first_block + b;
    parts.push_back({PartKind::kBlock, block_name(block), {block_name(block - b % blocks_per_unit)}, block, block_spec(model, block)});
  }
  if (range.last()) {
    parts.push_back({PartKind::kHead, "head", {"head"}});
    if (model.tied_embeddings) parts.back().units.push_back(kEmbeddingUnit);
  }
  return parts;
}

std::vector<std::string> unit_names(const std::vector<Part>& parts, const StageRange& range, bool first_stage_is_local) {
  std::vector<std::string> names;
  // Only consecutive parts, or the first and the last part, share a unit.
  const auto known = [&](const std::string& unit) { return !names.empty() && (names.back() == unit || names.front() == unit); };
  for (const Part& part : parts)
    for (const std::string& unit : part.units)
      if (!reads_first_stage(part, unit, range, first_stage_is_local) && !known(unit)) names.push_back(unit);
  return names;
}

StageUnits stage_units(const std::vector<Part>& parts, const StageRange& range, const ModelConfig& model, bool first_stage_is_local,
                       bool clips_samples) {
  const std::vector<std::string> names = unit_names(parts, range, first_stage_is_local);
  size_t at = 0;  // parts read units in order; only a tied head on a single stage reads the first again
  const auto number = [&](const std::string& name) {
    if (names.front() == name) return 0;
    while (names[at] != name) ++at;
    return static_cast<int>(at);
  };
  StageUnits units;
  units.units = static_cast<int>(names.size());
  for (const Part& part : parts) {
    if (part.kind == PartKind::kHead) (clips_samples ? units.recomputing_part : units.fused_part) = static_cast<int>(units.units_of_part.size());
    std::vector<UnitRef>& reads = units.units_of_part.emplace_back();
    for (const std::string& unit : part.units)
      reads.push_back(reads_first_stage(part, unit, range, first_stage_is_local) ? UnitRef(0, 0) : UnitRef(number(unit)));
  }
  const bool apart = model.tied_embeddings && range.stages > 1 && !first_stage_is_local;
  if (apart && (range.first() || range.last())) units.tied_unit = number(kEmbeddingUnit);
  return units;
}

}  // namespace trireme
