#pragma once
#include "trainer/config/config.h"

namespace trireme {

/// Elements of the parameters of each part of a model on one of `tensor_ranks`, as trainer/model/declare makes them: norms, positions and biases of
/// the residual stream are whole on every rank, of kv heads there is at least one. Declares nothing, as a search asks for every layout.
struct PartElements {
  PartElements(const ModelConfig& model, int64_t tensor_ranks);
  int64_t vocabulary;  ///< embedding or head, padding included
  int64_t positions;   ///< of GPT-2; else 0
  int64_t block;
  int64_t final_norm;
};

}  // namespace trireme
