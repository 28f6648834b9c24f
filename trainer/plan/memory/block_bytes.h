#pragma once
// Bytes that Trireme's own blocks, embedding and head hold of one micro-batch, by formula: the sums of what trainer/model allocates.
#include "trainer/config/config.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// Of one part of a stage and one micro-batch on one tensor rank. The last four are the most it holds at a moment of that action, with what it has
/// held before and with the gradient that comes in.
struct PartBytes {
  double saved = 0;  ///< from its forward to its backward
  double kept = 0;   ///< from I to W
  double forward = 0, backward = 0, input_gradient = 0, weight_gradient = 0;
};

/// With M rows, M' of them of the residual stream on this rank, D, q = (N+2K)H, o = NH, f and F of the MLP (f = 2F for SwiGLU), each on this rank:
/// saved: kNone 2M'D + M(q+o+f), kSelective without Mo, kFull M'D elements, and statistics; kept: 8M'D + M(q+o+f+F), two M'D of them MD under
/// sequence parallelism.
PartBytes block_bytes(const Config& config, Recompute recompute);
PartBytes embedding_bytes(const Config& config);
/// One chunk of logits at a time, in the backward only.
PartBytes head_bytes(const Config& config);

/// [M',D]: what crosses from stage to stage.
double boundary_bytes(const Config& config);

}  // namespace trireme
