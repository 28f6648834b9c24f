#pragma once
// A model as a sequence of parts. Stages, lowering, forecasts of memory and time, and the list of all parameters iterate this table.
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/pipeline/lower.h"
#include "trainer/config/config.h"

namespace trireme {

/// Which blocks a pipeline stage holds; the first also has the embedding, the last the head.
struct StageRange {
  int stage = 0;
  int stages = 1;
  int64_t first_block = 0;
  int64_t blocks = 0;
  bool first() const { return stage == 0; }
  bool last() const { return stage == stages - 1; }
};
StageRange stage_range(const std::vector<int64_t>& layers_per_stage, int stage);
std::vector<StageRange> stage_ranges(const std::vector<int64_t>& layers_per_stage);
/// A model of one stage.
StageRange whole_range(const ModelConfig& model);

enum class PartKind : uint8_t { kEmbedding, kBlock, kHead };

/// What one F, I, W or B of a list runs.
struct Part {
  PartKind kind = PartKind::kBlock;
  std::string name;                ///< "embedding", "blocks.3", "head"
  std::vector<std::string> units;  ///< names of the units that it reads; a tied head reads the embedding's table
  int64_t block = -1;              ///< kBlock: its place in the model
  int64_t window = 0;              ///< kBlock: tokens that a query sees; 0: all before it

  /// What of it decides time and memory: parts of one kind may differ from layer to layer.
  using Traits = std::tuple<PartKind, int64_t>;
  Traits traits() const { return {kind, window}; }
};

/// The parts of a stage in the order of a forward. Neighbouring blocks share a unit, named after the first of them, until it has `blocks_per_unit`.
std::vector<Part> parts_of(const ModelConfig& model, const StageRange& range, int64_t blocks_per_unit = 1);

/// The same in the terms of lowering. A tied table is a unit of its own, so that its flat layout, and with it what each shard owns, is the same on the first
/// and on the last stage: the last one has a copy as its last unit, or, where `first_stage_is_local` (the first stage is another one of this rank), reads the first's.
StageUnits stage_units(const std::vector<Part>& parts, const StageRange& range, const ModelConfig& model, bool first_stage_is_local);
/// Names of the stage's own units, by their numbers.
std::vector<std::string> unit_names(const std::vector<Part>& parts, const StageRange& range, bool first_stage_is_local);

}  // namespace trireme
