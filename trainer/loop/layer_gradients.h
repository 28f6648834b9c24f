#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/sharding/sharded_optimizer.h"
#include "trainer/config/config.h"

namespace trireme {

/// The gradient of one layer: a block, the embedding, positions, the final norm or the head (layer_group).
struct LayerGradient {
  std::string layer;
  double norm = 0;         ///< in the last step, before clipping and without the loss scale
  int64_t zero_steps = 0;  ///< number of counted steps after the last one with an element that was not zero
};

/// Counts, on one rank and without communication, what the gradients of its parameters were in the steps so far.
class LayerGradients {
 public:
  /// The layers of a resolved model.
  explicit LayerGradients(const ModelConfig& model);

  /// The sums of squares of the gradients that this rank owns in a step, with the loss scale; of the same parameters in every step.
  void set(NamedSquares squares);
  /// The gradients that were set last are those of one more step.
  void count_step();
  /// Every layer, in the order of the model, over the ranks of `ranks`, which together own each gradient once. `loss_scale`: of the last step.
  /// Collective; two all-reduces of 8 bytes for each layer.
  std::vector<LayerGradient> gather(Communicator& ranks, double loss_scale) const;

 private:
  std::vector<std::string> layers_;
  NamedSquares squares_;            ///< of the last step
  std::vector<size_t> layer_of_;    ///< of each entry of squares_
  int64_t steps_ = 0;               ///< counted
  std::vector<int64_t> last_used_;  ///< by layer: the last step with an element that was not zero here, from 1; 0: none
};

}  // namespace trireme
