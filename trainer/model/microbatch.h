#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"

namespace trireme {

/// The sequences of one micro-batch, and where they stand in the global batch.
struct Microbatch {
  Tensor tokens;             ///< [B*T] int32
  Tensor targets;            ///< [B*T] int32, below 0 = masked
  int64_t first_sample = 0;  ///< index of its first sequence in the global batch: part of the name of every dropout mask
  /// Lengths, B*T in sum, of the stretches of rows whose tokens attend to each other and count their positions from 0; none crosses a sequence.
  /// Empty: each sequence is one.
  std::vector<int64_t> segments = {};
  int64_t position = 0;  ///< RunMode::kDecode: tokens of the text before these
};

/// Neighbouring segments of one length, which an operation takes as so many sequences.
struct SegmentRun {
  int64_t count;
  int64_t length;
  int64_t first_row;  ///< of the micro-batch
  int64_t rows() const { return count * length; }
  Tensor of(const Tensor& x) const { return x.rows(first_row, rows()); }  ///< its part of x [B*T, ...]
  bool operator==(const SegmentRun&) const = default;
};

/// The `segments` of `rows` rows in sequences of `sequence`, in order and as few runs as that allows.
/// Errors: InternalError where they do not tile the sequences.
std::vector<SegmentRun> segment_runs(const std::vector<int64_t>& segments, int64_t rows, int64_t sequence);

/// Keys, as attention reads them, and values of the tokens of a text, in one block on this rank: a ring, in which token p lies in row p % room.
struct KeyValueCache {
  Tensor keys, values;  ///< [room,K*H]; under a window room = window is enough
};

/// What one forward or backward call needs beside tensors. Dropout masks are named by (seed, place in the model, step, global element), so every layout
/// draws the same ones, and the backward draws them again instead of keeping them.
struct ForwardContext {
  int64_t sequence = 0;   ///< T
  int64_t rows = 0;       ///< M = B*T of the whole micro-batch
  int64_t first_row = 0;  ///< first row of the residual stream on this rank (sequence parallelism)
  int64_t first_sample = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
  double dropout = 0;  ///< 0 in evaluation
  std::span<const SegmentRun> runs = {};
  int64_t position = 0;                  ///< of the rows' first token in its text, where that is decoded token by token
  const KeyValueCache* cache = nullptr;  ///< there: of the block, to be filled with the rows' tokens, and read where position > 0

  /// The residual stream x [rows here, D] with elements dropped, in place; unchanged where dropout is 0.
  void drop(Context& ctx, std::string_view place, const Tensor& x) const {
    if (dropout == 0) return;
    const auto first = static_cast<uint64_t>((first_sample * sequence + first_row) * x.dim(1));
    trireme::dropout(ctx, x, {random_key(seed, std::string("dropout:") + std::string(place)), step, first, dropout}, x);
  }
};

}  // namespace trireme
