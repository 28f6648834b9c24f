#pragma once
// How a step is split over ranks, as a value with a name: what `verify` compares, a plan searches and a configuration sets.
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "trainer/config/config.h"

namespace trireme {

/// A layout as one word: "tp2pp2dp2z3sp-interleaved_1f1b". What it does not name is plain: degrees of 1, ZeRO-0, 1f1b.
struct Layout {
  int64_t tensor = 1, pipeline = 1, data = 1;
  int64_t zero = 0, replicate = 1;
  int64_t micro_batch = 1;  ///< sequences
  bool sequence_parallel = false;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  std::optional<int64_t> virtual_stages = {};   ///< not given: those of the schedule
  std::optional<RecomputeMode> recompute = {};  ///< not given: as the configuration says
  GradientAccumulation gradient_accumulation = GradientAccumulation::kAuto;
  Reshard reshard = Reshard::kAfterUse;
  std::string text = {};  ///< as it was written

  int64_t world() const { return tensor * pipeline * data; }
  int64_t stages_per_rank() const;  ///< virtual stages of a pipeline rank
  int64_t stages() const { return pipeline * stages_per_rank(); }
  /// The layout's keys of the section `parallel`, with `others` for the keys that a layout does not name.
  ParallelConfig parallel(const ParallelConfig& others = {}) const;
  /// The same layout in the order of the configuration, without what is plain: "tp2pp2dp2z3sp". "tp1" where nothing is left.
  std::string str() const;
  bool operator==(const Layout& other) const { return str() == other.str(); }
};

/// The layout of a configuration whose `auto` degrees are resolved; a schedule read from a file counts as 1f1b.
Layout layout_of(const Config& config);

/// Words in any order, joined or separated by any of "-_,:+": tpN ppN dpN zN vppN repN mbN (sequences of a micro-batch), sp, the name of a schedule,
/// recompute none | selective | full, full_grads | sharded_grads (gradient_accumulation), after_step (reshard). A schedule whose name begins with a digit
/// needs a separator after a number.
/// Errors: ConfigError with the specification, the place and what may stand there.
Layout parse_layout(const std::string& text);
/// Several, separated by spaces. Errors: those of parse_layout; ConfigError where there is none.
std::vector<Layout> parse_layouts(const std::string& text);

}  // namespace trireme
