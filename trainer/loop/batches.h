#pragma once
// The micro-batches of a step: which samples of the data set a data rank has, which of them this rank computes, and what is read into them.
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/reroute.h"
#include "trainer/config/config.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sampler.h"
#include "trainer/layout/micro_batch_split.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

/// What was read for a step or an evaluation.
struct BatchFigures {
  int64_t targets = 0;        ///< valid tokens of the global batch
  int64_t local_targets = 0;  ///< those of what this rank computes: of its data rank's samples, with resilience.reroute of other ones' too
  int64_t padding = 0;        ///< positions of the global batch without a token (Dataset::padding), which data.packing leaves
  double cost_imbalance = 0;  ///< with data.balance: (max - mean) / mean of the cost of the data ranks' sequences
};

/// One rank's. Device memory: tokens and targets of its micro-batches, i32, and with data.document_mask the bounds of their documents.
class Batches {
 public:
  /// An even split without rotation. `rerouting`: whose micro-batches this rank computes beside its own. `config` and `mesh` outlive it.
  Batches(Context& ctx, const Config& config, Mesh& mesh, std::optional<Rerouting> rerouting);
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  /// The number of micro-batches of each data rank from now on; `rotation`: each data rank computes the samples of the one that many places after it.
  /// What is trained does not depend on either, except for the order of sums. Set the same values on all ranks, between steps.
  void place(const MicroBatchSplit& split, int rotation);
  /// From now until place(): the samples of gradient `part` of the gradients_per_step() of a step.
  void place_gradient(int64_t part);
  const MicroBatchSplit& split() const { return split_; }
  /// Index of this rank's data rank in a split.
  int data_rank() const { return mesh_.at.island * mesh_.data->size() + mesh_.data->rank(); }
  /// By how many micro-batches this data rank has fewer than the one with the most.
  int missing() const { return missing_; }

  /// Sets where the training data begin: {0, 0} unless a resumed run has changed them. Set the same value on all ranks.
  void set_start(DataStart start) { start_ = start; }
  /// The sample of `data` at place `place` of the global batch of `step` (from 0).
  int64_t sample(const Dataset& data, int64_t step, int64_t place) const { return sampler(data).sample(step, place); }

  /// Reads the global batch of `step` (from 0). With data.balance its sequences are dealt out by cost. Collective, like the following ones.
  BatchFigures read_step(const Dataset& data, int64_t step);
  /// Reads samples by their places in the global batch; -1, and places behind the end, are padding.
  BatchFigures read_samples(const Dataset& data, const std::vector<int64_t>& samples);
  /// Reads batch `batch` (from 0) of an evaluation.
  BatchFigures read_evaluation(const Dataset& data, int64_t batch);

  /// The micro-batches of this data rank, then those that this rank computes for other ones.
  const std::vector<Microbatch>& microbatches() const { return batch_; }
  /// Seconds that this rank has spent reading samples and copying them to the device, without waiting for other ranks.
  double input_seconds() const { return input_seconds_; }

 private:
  using SampleOf = std::function<int64_t(int64_t)>;  ///< index in the global batch -> sample of the data set
  Sampler sampler(const Dataset& data) const;
  bool computes(size_t number) const;
  std::vector<int64_t> balanced(const Dataset& data, const SampleOf& sample_of, double& imbalance);
  BatchFigures read(const Dataset& data, const SampleOf& sample_of);

  Context& ctx_;
  const Config& config_;
  Mesh& mesh_;
  std::optional<Rerouting> rerouting_;  ///< with resilience.reroute
  MicroBatchSplit split_;
  int missing_ = 0;
  std::vector<Microbatch> batch_;  ///< microbatches()
  size_t own_ = 0;                 ///< number of this data rank's, the first in batch_
  DataStart start_;
  double input_seconds_ = 0;
};

}  // namespace trireme
