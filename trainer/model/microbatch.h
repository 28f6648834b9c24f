#pragma once
#include <string_view>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/ops/documents.h"
#include "kernels/ops/elementwise.h"

namespace trireme {

/// The sequences of one micro-batch and their position in the global batch.
struct Microbatch {
  Tensor tokens;             ///< [B*T] int32
  Tensor targets;            ///< [B*T] int32; negative: masked
  int64_t first_sample = 0;  ///< index of the first sequence in the global batch; dropout masks depend on it
  Documents documents = {};  ///< tokens attend only within their document, and positions restart at 0 in each
  int64_t position = 0;      ///< RunMode::kDecode: number of tokens of the text before these
  int64_t last_row = -1;     ///< RunMode::kDecode: row of the text's last token, behind which is padding; -1: no padding
};

/// Writes starts and ends [rows] (see Documents) of documents with these lengths, in row order, in sequences of `sequence` rows.
/// Errors: InternalError if the documents do not fill the rows, or if one is empty or crosses a sequence.
void write_bounds(const std::vector<int64_t>& lengths, int64_t rows, int64_t sequence, int32_t* starts, int32_t* ends);

/// KV cache of one block on this rank for one text: keys (after QK norm and RoPE) and values. A ring buffer: token p is in row p % room.
struct KeyValueCache {
  Tensor keys, values;  ///< [room,K*H]; with a window, room = window suffices
};

/// What one forward or backward call needs besides tensors. Dropout masks are a function of (seed, place in the model, step, global element index):
/// every layout draws the same masks, and the backward redraws them instead of storing them.
struct ForwardContext {
  int64_t sequence = 0;   ///< T
  int64_t rows = 0;       ///< M = B*T of the whole micro-batch
  int64_t first_row = 0;  ///< first row of the residual stream on this rank (sequence parallelism)
  int64_t first_sample = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
  double dropout = 0;  ///< 0 in evaluation
  Documents documents = {};
  int64_t position = 0;                  ///< decoding: position of the first row's token in its text
  const KeyValueCache* cache = nullptr;  ///< decoding: the block's cache; the rows are added to it, and it is read if position > 0

  /// Applies dropout to the residual stream x [rows on this rank, D] in place; does nothing if dropout is 0.
  void drop(Context& ctx, std::string_view place, const Tensor& x) const {
    if (dropout == 0) return;
    const auto first = static_cast<uint64_t>((first_sample * sequence + first_row) * x.dim(1));
    trireme::dropout(ctx, x, {random_key(seed, std::string("dropout:") + std::string(place)), step, first, dropout}, x);
  }
};

}  // namespace trireme
