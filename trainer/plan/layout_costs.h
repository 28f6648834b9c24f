#pragma once
// Costs of the layouts of a search, and lower bounds of their time and memory.
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "trainer/layout/layout.h"
#include "trainer/model/part_profile.h"
#include "trainer/plan/layouts.h"
#include "trainer/plan/memory/least_memory.h"
#include "trainer/plan/step_costs.h"

namespace trireme {

/// What it computes it keeps for all layouts with the same costs. Each thread of a search has its own.
class LayoutCosts {
 public:
  static constexpr double kRounding = 1 - 1e-9;  ///< a bound is summed in a different order than the forecast

  /// Both outlive it.
  LayoutCosts(const LayoutSpace& space, const ClusterConfig& cluster) : space_(space), cluster_(cluster), profiles_(space.base().model) {}

  /// Below ZeRO-2 it does not depend on the data ranks.
  const ModelSeconds& model_of(const Layout& layout);
  /// Layers per stage.
  std::vector<int64_t> split(const Layout& layout);
  /// Lower bound of the seconds of a step.
  double bound(const Layout& layout, const std::vector<PartSeconds>& stages, const std::vector<double>& transfers) const;
  /// The same without communication between data ranks, and therefore valid for every sharding.
  double bound_before_sharding(const Layout& layout, const std::vector<int64_t>& split);
  const LeastMemory& least_memory(const Layout& layout);
  PartProfiles& profiles() { return profiles_; }

 private:
  const LayoutSpace& space_;
  const ClusterConfig& cluster_;
  PartProfiles profiles_;
  std::map<std::tuple<int64_t, bool, int64_t, int64_t, int64_t, int64_t, SharedUses>, ModelSeconds> models_;
  std::map<std::tuple<int64_t, bool, int64_t, RecomputeMode>, LeastMemory> least_;                        ///< by what a rank's parts depend on
  std::map<std::tuple<const ModelSeconds*, RecomputeMode, int64_t, bool>, std::vector<int64_t>> splits_;  ///< by number of stages; if blocks differ
};

}  // namespace trireme
