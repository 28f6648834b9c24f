#pragma once
// Cost of each part of a step on its rank, the input of the simulator. `config` and `cluster` are resolved.
#include <array>
#include <map>
#include <numeric>
#include <vector>

#include "parallel/pipeline/action.h"
#include "trainer/config/cluster.h"
#include "trainer/config/config.h"
#include "trainer/model/part_profile.h"
#include "trainer/plan/stack.h"

namespace trireme {

/// Seconds of one micro-batch through one part of the model on one rank, without communication hidden behind compute.
struct PartSeconds {
  double forward = 0, input_gradient = 0, weight_gradient = 0;  ///< each includes its shares of the fields below
  double recompute = 0;                                         ///< part of input_gradient
  double tensor_forward = 0, tensor_backward = 0;               ///< part of forward and input_gradient: exposed tensor-parallel communication
  double gather_forward = 0,
         gather_backward = 0;  ///< part of forward and input_gradient: exposed ZeRO-3 gathers, and gradient reductions of every micro-batch

  PartSeconds& add(const PartSeconds& other, double times = 1);
  void slow_down(double times);  ///< multiplies the compute time
  double total() const { return forward + input_gradient + weight_gradient; }
};

struct UnitSum {
  double elements = 0, units = 0;
  /// `share`: of a unit that several parts have together.
  void add(const UnitSum& other, double share = 1) {
    elements += other.elements;
    units += share * other.units;
  }
};

/// Cost of a kind of part on one tensor rank, from its profile.
struct PartCosts {
  std::array<PartSeconds, 3> seconds;  ///< by Recompute
  std::vector<int64_t> units;          ///< elements per unit, as in PartProfile::units
  struct Matrix {
    std::array<int64_t, 2> shape;
    double seconds;  ///< what its owner takes to transform it
  };
  std::vector<Matrix> matrices;  ///< the hidden ones, with an optimizer of matrices
  UnitSum trained;               ///< units that are trained
  UnitSum whole;                 ///< units that are gathered once a step, whatever the policy
  double elements() const { return static_cast<double>(std::accumulate(units.begin(), units.end(), int64_t{0})); }
};
struct ModelSeconds {
  std::vector<Part> parts;  ///< all parts of the model
  std::map<Part::Traits, PartCosts> costs;
  const PartCosts& of(const Part& part) const { return costs.at(part.traits()); }
  const PartSeconds& seconds_of(const Part& part, Recompute recompute) const { return of(part).seconds[static_cast<size_t>(recompute)]; }
  const PartCosts& embedding() const { return of(parts.front()); }
  const PartCosts& head() const { return of(parts.back()); }
  bool blocks_alike() const { return costs.size() == 3; }  ///< beside embedding and head, one kind of block
  std::array<PartSeconds, 3> mean_block;                   ///< by Recompute, which covers every RecomputeMode but budget
};
/// Below ZeRO-2 the result does not depend on pipeline, schedule or data, so searches share it. `profiles`: part profiles of config.model.
ModelSeconds model_seconds(const Config& config, const ClusterConfig& cluster, PartProfiles& profiles);
ModelSeconds model_seconds(const Config& config, const ClusterConfig& cluster);

/// Units that ZeRO-3 does not gather twice, because adjacent uses share a copy (lower()), and that ZeRO-2 and 3 do not reduce twice per micro-batch.
struct SharedUses {
  bool head = false;       ///< a micro-batch's forward is directly followed by its backward
  bool embedding = false;  ///< a micro-batch's backward is directly followed by the next one's forward
  bool table = false;      ///< tied embeddings on one rank form one unit
  auto operator<=>(const SharedUses&) const = default;
};
SharedUses shared_uses(const Config& config, const Stack& stack);
/// The same of a compute-only schedule: uses are shared if most of one kind are directly followed by one of the other. The function above has the answers
/// for named schedules with many micro-batches, without their lists, which a search does not make for each layout.
SharedUses shared_uses(const ActionLists& lists, bool tied_embeddings);

/// The stack with this run's gradient dtype on the wire and its overlap settings. On a CPU no communication is hidden, because the cores move the
/// data themselves. `config` and `cluster` have passed check_against_cluster().
Stack effective_stack(const ClusterConfig& cluster, const Config& config);

/// Factor by which software.straggler delays a step's compute: with resilience.rebalance, what remains of it after micro-batches have moved. Less
/// remains where data ranks meet once a step than where they meet in every micro-batch. With resilience.backup_replicas only the end of a round is delayed.
double straggler_factor(const Config& config, const ClusterConfig& cluster);

/// Whether each pipeline rank begins its next step when it ends this one, without waiting for the others.
bool is_staggered(const Stack& stack, const std::string& schedule);

struct StepCosts {
  std::vector<PartSeconds> stages;  ///< by global stage
  std::vector<double> transfers;    ///< by global stage except the last: to the next one; 0 if both are on one rank
  std::vector<double> reduce;       ///< by pipeline rank: exposed gradient reduction after the last backward, and parameter gathers before first use
  std::vector<double> optimizer;    ///< by pipeline rank: gradient norm and update
  std::vector<double>
      hidden_outer;        ///< by pipeline rank: seconds of outer steps, divided among the steps of a round, that training.local.delay hides
  double host = 0;         ///< time per step in which no device works
  bool staggered = false;  ///< each pipeline rank begins its next step when it ends this one
  int slowest = 0;         ///< pipeline rank with the most compute, which software.straggler slows
};
/// `stage_rank`: the pipeline rank of each stage (stage_ranks of the schedule).
StepCosts step_costs(const Config& config, const ClusterConfig& cluster, const ModelSeconds& model, const std::vector<int>& stage_rank);

}  // namespace trireme
