#pragma once
// What each part of a step costs on its rank, from a configuration and a cluster: the input of the simulator. `config` and `cluster` are resolved.
#include <vector>

#include "trainer/config/cluster.h"
#include "trainer/config/config.h"
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

struct ModelSeconds {
  PartSeconds embedding, head;
  std::vector<PartSeconds> kinds;  ///< of a block, by Recompute
};
/// Depends on neither pipeline, schedule nor, below ZeRO-2, data: searches share it.
ModelSeconds model_seconds(const Config& config, const ClusterConfig& cluster);

/// The stack as this run uses it: with the configuration's gradients on the wire, and what it says of overlap. On cores that move the data themselves,
/// communication hides behind nothing. Errors: ConfigError for a precision that is not known of the stack.
Stack stack_on(const ClusterConfig& cluster, const Config& config);

struct StepCosts {
  std::vector<PartSeconds> stages;  ///< by global stage
  double transfer = 0;              ///< of a boundary between two ranks
  std::vector<double> reduce;       ///< by pipeline rank: waiting for gradients after the last backward, and for parameters before their first use
  std::vector<double> optimizer;    ///< by pipeline rank: norm and update
  double host = 0;                  ///< a step in which no device works
};
/// `stage_rank`: the pipeline rank of each stage (stage_ranks of the plan).
StepCosts step_costs(const Config& config, const ClusterConfig& cluster, const ModelSeconds& model, const std::vector<int>& stage_rank);

}  // namespace trireme
