#include <algorithm>

#include "kernels/core/check.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/verify/verify.h"

namespace trireme {

std::vector<Layout> default_layouts(const Config& config) {
  constexpr int64_t kMostRanks = 8;
  const ParallelConfig& p = config.parallel;
  if (p.schedule == "file")
    throw ConfigError(
        "parallel.schedule=file: the file describes the stages and micro-batches of the full run, which the small clone does not have; name layouts "
        "with "
        "--layouts");
  Layout own = layout_of(config);
  own.micro_batch = 1;    // the clone has its own batch size
  own.recompute.reset();  // the clone uses the configuration's
  own.sequence_parallel = p.sequence_parallel && p.tensor > 1;
  if (own.schedule != ScheduleKind::kInterleaved1F1B) own.virtual_stages.reset();
  if (p.gradient_accumulation != GradientAccumulation::kFull || !zero_policy(p).may_shard_gradients)
    own.gradient_accumulation = GradientAccumulation::kAuto;  // gives the same accumulation
  const auto smallest_factor = [](int64_t n) {
    int64_t factor = 2;
    while (factor < n && n % factor != 0) ++factor;
    return std::min(factor, n);
  };
  const int64_t whole = own.world();
  if (own.world() > kMostRanks) {
    own.data = own.secondary > 0 || (own.replicate > 1 && own.replicate < own.data) ? 4 : smallest_factor(own.data);
    own.secondary = std::min<int64_t>(own.secondary, 2);
    own.replicate = own.replicate > 1 && own.data == 4 && own.secondary == 0 ? 2 : 1;
  }
  if (own.world() > kMostRanks) own.pipeline = std::min<int64_t>(own.pipeline, 2);
  if (own.world() > kMostRanks) own.tensor = smallest_factor(own.tensor);
  if (own.world() > kMostRanks && own.data == 4) own.data = 2, own.replicate = 1, own.secondary = 0;
  std::vector<Layout> candidates = {own};
  for (const char* text : {"tp2", "tp2sp", "pp2", "pp2-gpipe", "pp2-interleaved_1f1b", "pp2-zb_h1", "pp2-zb_h2", "pp2-zb_v", "dp2", "dp2z1", "dp2z2",
                           "dp2z3", "tp2pp2dp2z3sp"})
    candidates.push_back(parse_layout(text));
  std::vector<Layout> layouts;
  for (Layout& layout : candidates) {
    layout.text = layout.str();
    if (std::ranges::find(layouts, layout) != layouts.end()) continue;
    try {
      make_clone(config, {layout}, 0);
    } catch (const ConfigError&) {
      if (layout == own && own.world() == whole) throw;
      continue;  // invalid for this model: 2 ranks do not divide its heads, or it has too few layers
    }
    layouts.push_back(layout);
  }
  if (layouts.empty()) throw ConfigError("no default layout of several ranks is valid for this model; name layouts with --layouts");
  return layouts;
}

}  // namespace trireme
