#pragma once
// A parallel layout as a value with a name: how a step is split over ranks. `verify` compares layouts, `plan --search` ranks them.
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "trainer/config/config.h"

namespace trireme {

/// A parallel layout, written as e.g. "tp2pp2dp2z3sp-interleaved_1f1b". Defaults: degrees of 1, ZeRO-0, 1f1b.
struct Layout {
  int64_t tensor = 1, pipeline = 1, data = 1;
  int64_t zero = 0, replicate = 1;
  int64_t secondary = 0;    ///< secondary_shards
  int64_t micro_batch = 1;  ///< sequences
  bool sequence_parallel = false;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  std::optional<int64_t> virtual_stages = {};   ///< not given: the schedule's default
  std::optional<RecomputeMode> recompute = {};  ///< not given: from the configuration
  GradientAccumulation gradient_accumulation = GradientAccumulation::kAuto;
  Reshard reshard = Reshard::kAfterUse;
  std::string text = {};  ///< as the user wrote it

  int64_t world() const { return tensor * pipeline * data; }
  int64_t stages_per_rank() const;  ///< virtual stages of a pipeline rank
  int64_t stages() const { return pipeline * stages_per_rank(); }
  /// The section `parallel` of this layout; keys that are not part of a layout are taken from `others`.
  ParallelConfig parallel(const ParallelConfig& others = {}) const;
  /// Canonical name without defaults, e.g. "tp2pp2dp2z3sp"; "tp1" if everything is a default.
  std::string str() const;
  bool operator==(const Layout& other) const { return str() == other.str(); }
};

/// The layout of a configuration whose `auto` degrees are resolved; a schedule read from a file counts as 1f1b.
Layout layout_of(const Config& config);

/// Parses words in any order, joined or separated by any of "-_,:+": tpN ppN dpN zN vppN repN secN (secondary_shards) mbN (sequences per micro-batch),
/// sp, a schedule name, recompute none | selective | full, full_grads | sharded_grads (gradient_accumulation), after_step (reshard). A schedule whose
/// name begins with a digit needs a separator after a number.
/// Errors: ConfigError with the text, the position and the allowed words.
Layout parse_layout(const std::string& text);
/// Parses several layouts separated by spaces. Errors: those of parse_layout; ConfigError if `text` has no layout.
std::vector<Layout> parse_layouts(const std::string& text);

}  // namespace trireme
