#pragma once
#include <cstdint>
#include <vector>

#include "trainer/data/dataset.h"

namespace trireme {

/// Where a run begins to read its training data: `step` (from 0) takes its first sample from `place` of the sample order. It differs from {0, 0} only
/// after `trireme train --change` has changed the global batch size or the training data.
struct DataStart {
  int64_t step = 0;
  int64_t place = 0;
};

/// Sample order of training: a pure function of (seed, step, start), independent of layout and resumes. Each epoch of a group is a
/// fresh permutation of its samples; a batch may span two epochs. With several groups, the first p places contain p * weight samples of each of
/// G groups, to within G samples, and each group visits every one of its samples once per epoch.
class Sampler {
 public:
  Sampler(uint64_t seed, std::vector<Dataset::Group> groups, int64_t global_batch, DataStart start = {});

  int64_t global_batch() const { return global_batch_; }  ///< samples per step
  /// Sample at place `index` in [0, global_batch) of the global batch (over all ranks and micro-batches) of `step`, counted from 0 and at least
  /// start.step. O(groups).
  int64_t sample(int64_t step, int64_t index) const;
  /// Number of samples of each group in the places before those of `step`: from place 0 of the sample order, i.e. since the training data last
  /// changed.
  std::vector<int64_t> samples_before(int64_t step) const;
  /// Steps needed to consume `epochs` times the number of samples; the last step may extend into the next epoch.
  int64_t steps_for(int64_t epochs) const;

 private:
  uint64_t seed_;
  std::vector<Dataset::Group> groups_;
  std::vector<uint64_t> shares_;  ///< share of each group in the places not taken by earlier groups, in units of 2^-64; the last group takes the rest
  int64_t global_batch_;
  DataStart start_;
};

/// Number of batches of an evaluation of `sequences` samples that is limited to `batches`; 0 = no limit. The last batch may be short.
int64_t evaluation_batches(int64_t sequences, int64_t global_batch, int64_t batches);

/// Sample at place `index` of evaluation batch `batch`: the samples in order, once; -1 (padding, see Dataset::read) past the last one,
/// and at places beyond the batch, which islands with training.asynchronous may have.
int64_t evaluation_sample(int64_t sequences, int64_t global_batch, int64_t batch, int64_t index);

}  // namespace trireme
