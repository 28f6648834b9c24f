#pragma once
#include "trainer/config/config.h"

namespace trireme {

/// Sizes of a resolved model, named by the letters of the literature; `local_*` are sizes on one tensor rank.
struct Dims {
  explicit Dims(const ModelConfig& model, int tensor_ranks);
  int64_t L;  ///< layers
  int64_t D;  ///< hidden size
  int64_t N;  ///< query heads
  int64_t K;  ///< kv heads
  int64_t H;  ///< head size
  int64_t F;  ///< ffn size
  int64_t V;  ///< vocabulary
  int64_t P;  ///< positions
  int64_t local_N;
  int64_t local_K;  ///< at least 1: kv heads are replicated if there are fewer than tensor ranks
  int64_t local_F;
};

}  // namespace trireme
