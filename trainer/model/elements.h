#pragma once
#include "trainer/config/config.h"

namespace trireme {

/// Elements of the parameters of each part of a model on one of `tensor_ranks`, as trainer/model/declare makes them: norms, positions and biases of
/// the residual stream are whole on every rank, of kv heads there is at least one. Declares nothing, as a search asks for every layout.
struct PartElements {
  PartElements(const ModelConfig& model, int64_t tensor_ranks);
  int64_t embedding() const { return vocabulary + positions; }
  /// `one_table`: the embedding's is on this rank, and the head reads it.
  int64_t head(bool one_table) const { return final_norm + (one_table ? 0 : vocabulary); }

  int64_t vocabulary;  ///< of embedding or head, padding included
  int64_t positions;   ///< of GPT-2; else 0
  int64_t block;
  int64_t final_norm;
};

}  // namespace trireme
