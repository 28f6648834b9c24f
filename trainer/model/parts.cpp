#include "trainer/model/parts.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>

#include "trainer/model/declare.h"

namespace trireme {
namespace {

/// Sets the own units of a part, and its frozen parameters.
class OwnUnits {
 public:
  explicit OwnUnits(const ModelConfig& model) : model_(model) {}

  void set(Part& part) {
    if (!model_.frozen.empty() || model_.adapter.rank > 0) {
      const std::string prefix = part.kind == PartKind::kBlock ? part.name + "." : "";
      bool trains = false, adapts = false;
      for (const std::string& name : names(part)) {
        const bool frozen = is_frozen(model_, prefix + name), adapter = is_adapter(name);
        trains = trains || (!frozen && !adapter);
        adapts = adapts || adapter;
        if (frozen) part.frozen.push_back(name);
      }
      if (trains) part.units.push_back({part.unit});
      if (adapts) part.units.push_back({.name = adapter_unit(part.unit), .kept_whole = true});
      if (!part.frozen.empty()) part.units.push_back({frozen_unit(part.unit), false});
    } else {
      part.units.push_back({part.unit});
    }
  }

 private:
  /// The names of its own parameters, as in Part::frozen. Blocks of equal specs have equal ones.
  const std::vector<std::string>& names(const Part& part) {
    const auto [known, is_new] = names_.try_emplace({part.kind, part.block_spec});
    if (is_new) known->second = parameter_names(model_, part);
    return known->second;
  }

  const ModelConfig& model_;
  std::map<std::pair<PartKind, BlockSpec>, std::vector<std::string>> names_;
};

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

bool is_frozen(const ModelConfig& model, const std::string& parameter) {
  if (is_adapter(parameter)) return false;
  if (model.frozen.empty()) return model.adapter.rank > 0;
  return std::ranges::any_of(model.frozen, [&](const std::string& pattern) { return fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0; });
}

bool has_tied_gradients(const ModelConfig& model) { return model.tied_embeddings && !is_frozen(model, kEmbeddingWeight); }

std::vector<Part> parts_of(const ModelConfig& model, const StageRange& range, int64_t blocks_per_unit) {
  OwnUnits own(model);
  std::vector<Part> parts;
  if (range.first()) {
    Part& part = parts.emplace_back(Part{PartKind::kEmbedding, "embedding", kEmbeddingUnit});
    const auto add = [&](const char* unit, const char* parameter) {
      part.units.push_back({unit, !is_frozen(model, parameter)});
      if (is_frozen(model, parameter)) part.frozen.emplace_back(parameter);
    };
    add(kEmbeddingUnit, kEmbeddingWeight);
    if (has_learned_positions(model)) add(kPositionsUnit, kPositionsWeight);
  }
  for (int64_t b = 0; b < range.blocks; ++b) {
    const int64_t block = range.first_block + b;
    const std::string unit = block_name(block - b % blocks_per_unit);
    own.set(parts.emplace_back(Part{PartKind::kBlock, block_name(block), unit, {}, block, block_spec(model, block)}));
  }
  if (range.last()) {
    Part& part = parts.emplace_back(Part{PartKind::kHead, "head", "head"});
    own.set(part);
    if (model.tied_embeddings) {
      const bool frozen = is_frozen(model, kEmbeddingWeight);
      part.units.push_back({kEmbeddingUnit, !frozen});
      if (frozen) part.frozen.emplace_back(kEmbeddingWeight);
    }
  }
  return parts;
}

std::vector<std::string> unit_names(const std::vector<Part>& parts, const StageRange& range, bool first_stage_is_local) {
  std::vector<std::string> names;
  // Only consecutive parts, or the first and the last part, share units, of which a part has up to three.
  const auto known = [&](const std::string& unit) {
    return !names.empty() &&
           (names.front() == unit || std::find(names.end() - std::min<std::ptrdiff_t>(3, std::ssize(names)), names.end(), unit) != names.end());
  };
  for (const Part& part : parts)
    for (const auto& [unit, trainable, kept_whole] : part.units)
      if (!reads_first_stage(part, unit, range, first_stage_is_local) && !known(unit)) names.push_back(unit);
  return names;
}

StageUnits stage_units(const std::vector<Part>& parts, const StageRange& range, const ModelConfig& model, bool first_stage_is_local,
                       bool clips_samples) {
  const std::vector<std::string> names = unit_names(parts, range, first_stage_is_local);
  size_t at = 0;  // parts read units in order, of which three may alternate; only a tied head on a single stage reads the first again
  const auto number = [&](const std::string& name) {
    if (names.front() == name) return 0;
    at -= std::min<size_t>(2, at);
    while (names[at] != name) ++at;
    return static_cast<int>(at);
  };
  StageUnits units;
  units.units = static_cast<int>(names.size());
  for (const Part& part : parts) {
    if (part.kind == PartKind::kHead) (clips_samples ? units.recomputing_part : units.fused_part) = static_cast<int>(units.units_of_part.size());
    std::vector<UnitRef>& reads = units.units_of_part.emplace_back();
    for (const auto& [unit, trainable, kept_whole] : part.units) {
      const bool elsewhere = reads_first_stage(part, unit, range, first_stage_is_local);
      reads.push_back(elsewhere ? UnitRef(0, 0) : UnitRef(number(unit)));
      if (!elsewhere && !trainable && units.trainable(reads.back().unit)) units.frozen.push_back(reads.back().unit);
      if (!elsewhere && kept_whole && !units.keeps_whole(reads.back().unit)) units.kept_whole.push_back(reads.back().unit);
    }
  }
  const bool apart = has_tied_gradients(model) && range.stages > 1 && !first_stage_is_local;
  if (apart && (range.first() || range.last())) units.tied_unit = number(kEmbeddingUnit);
  return units;
}

}  // namespace trireme
