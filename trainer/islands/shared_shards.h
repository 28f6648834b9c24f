#pragma once
// The weights that all islands share, beside those of each island: the weights after the last outer step (training.local), or the centre of elastic
// averaging (training.asynchronous).
#include <memory>
#include <vector>

#include "trainer/model/transformer_stage.h"

namespace trireme {

/// Name in checkpoints of the weights of an island if they differ from those that all islands share. They have the shape and dtype of the weights.
constexpr const char* kIslandWeightName = "island_weight";

/// One rank's owned shards of them, in the dtype of the master weights.
class SharedShards {
 public:
  SharedShards(Context& ctx, const Stages& stages, DType master);

  Tensor of(size_t stage, size_t unit) const { return shards_[stage][unit]; }  ///< [shard_numel]
  /// The current weights become the shared ones.
  void set(Context& ctx);
  /// The shared weights become those of this island.
  void take(Context& ctx);
  /// Exchanges the weights of this island and the shared ones, for an evaluation of the latter; a second call undoes it.
  void exchange(Context& ctx);

 private:
  Tensor weights(size_t stage, size_t unit) const { return stages_[stage]->params().master(static_cast<int>(unit)); }

  const Stages& stages_;
  std::vector<std::vector<Tensor>> shards_;  ///< by stage and unit
};

}  // namespace trireme
