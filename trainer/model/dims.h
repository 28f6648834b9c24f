#pragma once
#include "trainer/config/config.h"

namespace trireme {

/// A resolved model in the letters of the literature; `local` fields count what one tensor rank holds.
struct Dims {
  explicit Dims(const ModelConfig& model, int tensor_ranks);
  bool gpt2;  ///< LayerNorm, learned positions, GELU, biases; else RMSNorm, RoPE, SwiGLU
  int64_t L;  ///< layers
  int64_t D;  ///< hidden size
  int64_t N;  ///< query heads
  int64_t K;  ///< kv heads
  int64_t H;  ///< head size
  int64_t F;  ///< ffn size
  int64_t V;  ///< vocabulary
  int64_t P;  ///< positions
  int64_t local_N;
  int64_t local_K;  ///< at least 1: kv heads are replicated where there are fewer than tensor ranks
  int64_t local_F;
};

}  // namespace trireme
