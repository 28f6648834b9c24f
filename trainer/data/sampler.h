#pragma once
#include <cstdint>

namespace trireme {

/// Which sample stands where in training: a pure function of (seed, step), so neither the layout nor a resume can change it, and nothing is saved.
/// Each epoch is a permutation of all samples, another one each time; a batch may span two epochs.
struct Sampler {
  uint64_t seed;
  int64_t sequences;     ///< distinct samples
  int64_t global_batch;  ///< sequences a step

  /// Place `index` in [0, global_batch) of the global batch of `step` (from 0), all ranks and micro-batches together. O(1).
  int64_t sample(int64_t step, int64_t index) const;
  /// Steps until every sample was consumed `epochs` times; the last step may reach into the next epoch.
  int64_t steps_for(int64_t epochs) const { return (epochs * sequences + global_batch - 1) / global_batch; }
};

/// Evaluation goes through the samples in order, once; -1 (padding, see Dataset::read) past the last one.
int64_t evaluation_sample(int64_t sequences, int64_t global_batch, int64_t batch, int64_t index);

}  // namespace trireme
