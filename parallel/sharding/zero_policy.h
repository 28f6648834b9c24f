#pragma once
// ZeRO 0-3 is one sharding with four sets of buffer lifetimes. Only this file derives the lifetimes from the stage number; a running step reads only
// the lifetimes. Elsewhere the stage number appears in configuration checks and texts, and in textbook formulas.
//
//   stage | replicate x shard | full gradient lives    | full parameter lives            | fp32 master, m, v
//   0     | N x 1             | run                    | run                             | owned shard (= all)
//   1     | R x N/R           | run                    | run                             | owned shard
//   2     | R x N/R           | one unit's backward    | run                             | owned shard
//   3     | R x N/R           | one unit's backward    | one use plus prefetch, or step  | owned shard
// Source: Rajbhandari et al. 2019, arXiv:1910.02054; hybrid sharding (R > 1): Zhao et al. 2023, arXiv:2304.11277.

namespace trireme {

enum class GradientAccumulation : unsigned char {
  kAuto,     ///< full for ZeRO 0-1, sharded for 2-3
  kFull,     ///< into a full gradient, reduced once, at the last micro-batch
  kSharded,  ///< each micro-batch's gradient is reduce-scattered into an owned shard
};

struct ZeroPolicy {
  int replicate = 1;                 ///< ranks that hold the same shard
  int shard = 1;                     ///< ranks that divide each unit
  bool parameters_resident = true;   ///< the full parameters live for the run
  bool unshard_each_use = false;     ///< the full parameters are gathered for each use, else once per step
  bool gradients_resident = true;    ///< the full gradient lives for the run and is reduced once per step
  bool may_shard_gradients = false;  ///< sharded accumulation is allowed, even if not chosen
};

/// Errors: ConfigError on a stage outside 0..3, data % replicate != 0, or sharded accumulation below stage 2.
ZeroPolicy zero_policy(int stage, int data, int replicate, GradientAccumulation accumulation, bool reshard_after_use);

}  // namespace trireme
