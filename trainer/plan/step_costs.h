#pragma once
// What each part of a step costs on its rank, from a configuration and a cluster: the input of the simulator. `config` and `cluster` are resolved.
#include <array>
#include <map>
#include <numeric>
#include <vector>

#include "trainer/config/cluster.h"
#include "trainer/config/config.h"
#include "trainer/model/part_profile.h"
#include "trainer/plan/stack.h"

namespace trireme {

/// Seconds of one micro-batch through one part of the model on one rank; what hides behind compute is not in it.
struct PartSeconds {
  double forward = 0, input_gradient = 0, weight_gradient = 0;  ///< with all of the below
  double recompute = 0;                                         ///< of input_gradient
  double tensor_forward = 0, tensor_backward = 0;               ///< of forward and input_gradient: waiting for tensor ranks
  double gather_forward = 0,
         gather_backward = 0;  ///< of forward and input_gradient: waiting for ZeRO-3's parameters, and for gradients reduced every micro-batch

  PartSeconds& add(const PartSeconds& other, double times = 1);
  void slow_down(double times);  ///< compute takes so many times as long
  double total() const { return forward + input_gradient + weight_gradient; }
};

/// What a kind of part costs on one tensor rank, as its profile has it.
struct PartCosts {
  std::array<PartSeconds, 3> seconds;  ///< by Recompute
  std::vector<int64_t> units;          ///< elements, as PartProfile::units
  double elements() const { return static_cast<double>(std::accumulate(units.begin(), units.end(), int64_t{0})); }
};
struct ModelSeconds {
  std::vector<Part> parts;  ///< of the whole model
  std::map<Part::Traits, PartCosts> costs;
  const PartCosts& of(const Part& part) const { return costs.at(part.traits()); }
  const PartSeconds& seconds_of(const Part& part, Recompute recompute) const { return of(part).seconds[static_cast<size_t>(recompute)]; }
  const PartCosts& embedding() const { return of(parts.front()); }
  const PartCosts& head() const { return of(parts.back()); }
  std::array<PartSeconds, 3> mean_block;  ///< by Recompute, and so by every RecomputeMode but budget
};
/// Below ZeRO-2 depends on none of pipeline, schedule and data: searches share it. `profiles` are those of the configuration's model.
ModelSeconds model_seconds(const Config& config, const ClusterConfig& cluster, PartProfiles& profiles);
ModelSeconds model_seconds(const Config& config, const ClusterConfig& cluster);

/// What ZeRO-3 need not gather twice, as neighbouring uses of a unit share a copy (lower()), and ZeRO-2 and 3 not reduce twice a micro-batch.
struct SharedUses {
  bool head = false;       ///< a micro-batch's forward is followed by its backward
  bool embedding = false;  ///< and its backward by the next one's forward
  bool table = false;      ///< tied embeddings on one rank are one unit
  auto operator<=>(const SharedUses&) const = default;
};
SharedUses shared_uses(const Config& config, const Stack& stack);

/// The stack as this run uses it: with the configuration's gradients on the wire, and what it says of overlap. On cores that move the data themselves,
/// communication hides behind nothing. Errors: ConfigError for a precision that the stack or the device does not have.
Stack stack_on(const ClusterConfig& cluster, const Config& config);

struct StepCosts {
  std::vector<PartSeconds> stages;  ///< by global stage
  std::vector<double> transfers;    ///< by global stage but the last: to the next one, 0 where both are on one rank
  std::vector<double> reduce;       ///< by pipeline rank: waiting for gradients after the last backward, and for parameters before their first use
  std::vector<double> optimizer;    ///< by pipeline rank: norm and update
  double host = 0;                  ///< a step in which no device works
  int slowest = 0;                  ///< pipeline rank that has most to compute: the one that software.straggler slows
};
/// `stage_rank`: the pipeline rank of each stage (stage_ranks of the plan).
StepCosts step_costs(const Config& config, const ClusterConfig& cluster, const ModelSeconds& model, const std::vector<int>& stage_rank);

}  // namespace trireme
