#pragma once
// A model as a sequence of parts. Stages, lowering, forecasts of memory and time, and the list of all parameters iterate this table.
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/pipeline/lower.h"
#include "trainer/model/spec.h"

namespace trireme {

/// The blocks of a pipeline stage. The first stage also has the embedding, the last the head.
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
/// The range of a single stage with the entire model.
StageRange whole_range(const ModelConfig& model);

enum class PartKind : uint8_t { kEmbedding, kBlock, kHead };

inline constexpr const char* kEmbeddingUnit = "embedding";
inline constexpr const char* kPositionsUnit = "positions";
/// The unit of the frozen parameters beside `unit`, which has the trainable ones. Embedding and positions, a parameter each, have one unit either way.
inline std::string frozen_unit(const std::string& unit) { return unit + ".frozen"; }
/// The unit of the adapters beside `unit`.
inline std::string adapter_unit(const std::string& unit) { return unit + ".adapter"; }

/// True if model.frozen names the parameter; with adapters and an empty model.frozen, every parameter of the model itself.
bool is_frozen(const ModelConfig& model, const std::string& parameter);
/// True if embedding and head share a gradient.
bool has_tied_gradients(const ModelConfig& model);

/// A unit that a part reads.
struct PartUnit {
  std::string name;
  bool trainable = true;
  bool kept_whole = false;  ///< StageUnits::kept_whole
};

/// The part of a model that one F, I, W or B action runs.
struct Part {
  PartKind kind = PartKind::kBlock;
  std::string name;                      ///< "embedding", "blocks.3", "head"
  std::string unit;                      ///< the unit of its own trainable parameters, positions and adapters apart
  std::vector<PartUnit> units = {};      ///< all units that it reads; a tied head reads the embedding
  int64_t block = -1;                    ///< kBlock: index in the model
  BlockSpec block_spec = {};             ///< kBlock
  std::vector<std::string> frozen = {};  ///< names of the frozen parameters that it reads, those of a block without the block's name

  /// The properties that determine time and memory: parts of one kind may differ between layers.
  using Traits = std::tuple<PartKind, BlockSpec, std::vector<std::string>>;
  Traits traits() const { return {kind, block_spec, frozen}; }
};

/// The parts of a stage in forward order. The trainable parameters of up to `blocks_per_unit` consecutive blocks share a unit, named after the first of
/// them, and so do their adapters and their frozen parameters.
std::vector<Part> parts_of(const ModelConfig& model, const StageRange& range, int64_t blocks_per_unit = 1);

/// The units of a stage, as lowering reads them. A tied embedding is a separate unit, so that its flat layout, and with it what each shard owns, is
/// the same on the first and the last stage. The last stage has a copy as its last unit, or reads the first stage's unit if `first_stage_is_local`
/// (this rank has both stages). If samples are clipped between I and W, the head has a W, which computes the logits again.
StageUnits stage_units(const std::vector<Part>& parts, const StageRange& range, const ModelConfig& model, bool first_stage_is_local,
                       bool clips_samples = false);
/// Names of the units that the stage owns, by unit number.
std::vector<std::string> unit_names(const std::vector<Part>& parts, const StageRange& range, bool first_stage_is_local);

}  // namespace trireme
