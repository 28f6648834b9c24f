#pragma once
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// A layout as one word: "tp2pp2dp2z3sp-interleaved_1f1b". What it does not name is plain: degrees of 1, ZeRO-0, 1f1b.
struct LayoutSpec {
  int64_t tensor = 1, pipeline = 1, data = 1, zero = 0, replicate = 1, micro_batch = 1;
  std::optional<int64_t> virtual_stages;  ///< not given: those of the schedule
  bool sequence_parallel = false;
  std::string schedule = "1f1b";
  std::optional<std::string> recompute;  ///< not given: as the configuration says
  std::string gradient_accumulation = "auto";
  std::string reshard = "after_use";
  std::string text;  ///< as it was written

  int64_t world() const { return tensor * pipeline * data; }
  int64_t stages() const;  ///< of the pipeline, virtual ones included
  /// With `others` for the keys that a layout does not name.
  ParallelConfig parallel(const ParallelConfig& others = {}) const;
  /// The same layout in the order of the configuration, without what is plain: "tp2pp2dp2z3sp". "tp1" where nothing is left.
  std::string str() const;
  bool operator==(const LayoutSpec& other) const { return str() == other.str(); }
};

/// Words in any order, joined or separated by any of "-_,:+": tpN ppN dpN zN vppN repN mbN (sequences of a micro-batch), sp, the name of a schedule,
/// recompute none | selective | full, full_grads | sharded_grads (gradient_accumulation), after_step (reshard). A schedule whose name begins with a digit
/// needs a separator after a number.
/// Errors: ConfigError with the specification, the place and what may stand there.
LayoutSpec parse_layout(const std::string& text);
/// Several, separated by spaces. Errors: those of parse_layout; ConfigError where there is none.
std::vector<LayoutSpec> parse_layouts(const std::string& text);

}  // namespace trireme
