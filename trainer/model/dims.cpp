#include "trainer/model/dims.h"

#include <algorithm>

namespace trireme {

Dims::Dims(const ModelConfig& model, int tensor_ranks)
    : L(model.layers),
      D(model.hidden_size),
      N(model.heads),
      K(model.kv_heads.value()),
      H(model.head_size.value()),
      F(model.ffn_size.value()),
      V(model.vocab_size.value()),
      P(model.max_positions.value()),
      local_N(N / tensor_ranks),
      local_K(std::max<int64_t>(1, K / tensor_ranks)),
      local_F(F / tensor_ranks) {}

}  // namespace trireme
