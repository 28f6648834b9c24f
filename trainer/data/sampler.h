#pragma once
#include <cstdint>
#include <vector>

#include "trainer/data/dataset.h"

namespace trireme {

/// Which sample stands where in training: a pure function of (seed, step), so neither the layout nor a resume can change it, and nothing is saved.
/// Each pass over a group of samples is a permutation of it, another one each time; a batch may span two. Of several groups, the first p places hold
/// p * weight samples of each, give or take one for each group, and every group goes through its own samples without repeat or loss.
class Sampler {
 public:
  Sampler(uint64_t seed, std::vector<Dataset::Group> groups, int64_t global_batch);

  int64_t global_batch() const { return global_batch_; }  ///< samples a step
  /// Place `index` in [0, global_batch) of the global batch of `step` (from 0), all ranks and micro-batches together. O(groups).
  int64_t sample(int64_t step, int64_t index) const;
  /// Steps until as many samples were consumed as `epochs` times all there are; the last step may reach into the next epoch.
  int64_t steps_for(int64_t epochs) const;

 private:
  uint64_t seed_;
  std::vector<Dataset::Group> groups_;
  std::vector<uint64_t> shares_;  ///< of each group in what the groups before it leave, in units of 2^-64; the last takes the rest
  int64_t global_batch_;
};

/// Evaluation goes through the samples in order, once; -1 (padding, see Dataset::read) past the last one.
int64_t evaluation_sample(int64_t sequences, int64_t global_batch, int64_t batch, int64_t index);

}  // namespace trireme
