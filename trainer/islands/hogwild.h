#pragma once
// Hogwild (training.asynchronous): islands, each one rank of one host, step on the same weights in shared memory without a lock, and without waiting for
// each other. A rank computes a gradient of the weights as it has read them, while others may have changed some, and applies it element by element.
// Results depend on how the ranks meet, so no run repeats another one.
// Source: Niu, Recht, Re, Wright 2011, arXiv:1106.5730.
#include <memory>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/ops/optimizer.h"
#include "parallel/comm/communicator.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

/// One rank's access to the shared weights, which are in the dtype of the master weights, once for all islands. Ranks communicate only in
/// the first step of a round and at its end.
class Hogwild {
 public:
  /// `islands`: all ranks. Collective. Errors: AgreedError (usage) if they are not on one host.
  Hogwild(Communicator& islands, const Stages& stages, DType master, const AdamW& hyper);

  /// The current weights, which all islands have, become the shared ones. Collective.
  void start_round(Context& ctx);
  /// A step of SGD by this rank's gradient on the shared weights, which then become this rank's.
  void step(Context& ctx, const Tensor& scalars);
  /// All islands get the shared weights, which none changes any more. Collective.
  void finish_round(Context& ctx);

 private:
  Tensor weights(size_t stage, size_t unit) const { return stages_[stage]->params().master(static_cast<int>(unit)); }
  bool trainable(size_t stage, size_t unit) const { return stages_[stage]->params().units()[unit]->trainable(); }
  void read(Context& ctx);

  Communicator& islands_;
  const Stages& stages_;
  AdamW hyper_;
  Arena arena_{Device::kCpu};                ///< of the shared memory
  std::vector<std::vector<Tensor>> shared_;  ///< by stage and unit
};

}  // namespace trireme
