#pragma once
#include <string_view>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"

namespace trireme {

/// The sequences of one micro-batch, and where they stand in the global batch.
struct Microbatch {
  Tensor tokens;             ///< [B*T] int32
  Tensor targets;            ///< [B*T] int32, below 0 = masked
  int64_t first_sample = 0;  ///< index of its first sequence in the global batch: part of the name of every dropout mask
};

/// What one forward or backward call needs beside tensors. Dropout masks are named by (seed, place in the model, step, global element), so every layout
/// draws the same ones, and the backward draws them again instead of keeping them.
struct Pass {
  int64_t sequence = 0;   ///< T
  int64_t rows = 0;       ///< M = B*T of the whole micro-batch
  int64_t first_row = 0;  ///< first row of the residual stream on this rank (sequence parallelism)
  int64_t first_sample = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
  double dropout = 0;  ///< 0 in evaluation

  /// The residual stream x [rows here, D] with elements dropped, in place; unchanged where dropout is 0.
  void drop(Context& ctx, std::string_view place, const Tensor& x) const {
    if (dropout == 0) return;
    const auto first = static_cast<uint64_t>((first_sample * sequence + first_row) * x.dim(1));
    trireme::dropout(ctx, x, {random_key(seed, std::string("dropout:") + std::string(place)), step, first, dropout}, x);
  }
};

}  // namespace trireme
