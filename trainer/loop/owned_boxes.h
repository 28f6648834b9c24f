#pragma once
// What a rank owns of the model's parameters, their optimizer state and the state of its Reducer, as rectangles of global tensors: what checkpoints,
// tests and replica checks read and write.
#include <string>
#include <vector>

#include "parallel/sharding/sharded_optimizer.h"
#include "trainer/islands/update_strategy.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

/// A rectangle of a parameter that this rank owns, with its optimizer state.
struct OwnedBox {
  const ParamSpec* spec;
  Box box;
  Tensor weight, gradient;                     ///< [box.numel()] views; no gradient without an optimizer
  Tensor shared = {};                          ///< likewise: the weights that all islands share, if `weight` is this island's own
  std::vector<ShardedOptimizer::State> state;  ///< views of the same size; none without an optimizer

  /// The weight, named "weight", then the state: everything that is saved, loaded and compared between replicas. Where islands have weights of their own,
  /// "weight" is the shared one.
  std::vector<ShardedOptimizer::State> kept() const;
};
std::vector<OwnedBox> owned_boxes(const Stages& stages, const UpdateStrategy& updates);

/// A rectangle of a parameter with what this rank's Reducer keeps for it between steps.
struct ReducerBox {
  const ParamSpec* spec;
  Box box;
  std::string name;  ///< Reducer::State::name
  Tensor values;     ///< [box.numel()] view
  int worker = -1;   ///< Reducer::State::worker
};
std::vector<ReducerBox> reducer_boxes(const Stages& stages);

/// A matrix of its own that this rank's Reducer keeps for a parameter between steps, equal on all data ranks.
struct ReducerMatrix {
  const ParamSpec* spec;
  std::string name;  ///< Reducer::State::name
  Tensor values;     ///< [rows, columns] view
};
std::vector<ReducerMatrix> reducer_matrices(const Stages& stages);

}  // namespace trireme
