#pragma once
// Differentially private steps (security.privacy): samples are drawn by chance, the gradient of each is clipped, and noise is added to their sum.
// Source: Abadi et al. 2016, arXiv:1607.00133, algorithm 1.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/crypto/private_random.h"
#include "parallel/mesh.h"
#include "trainer/config/config.h"
#include "trainer/data/dataset.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/micro_batch_split.h"
#include "trainer/loop/owned_boxes.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

/// One rank's part of them.
class PrivateGradients {
 public:
  /// `config`, `mesh` and `stages` outlive it.
  PrivateGradients(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages)
      : ctx_(ctx), config_(config), mesh_(mesh), stages_(stages), precision_(precision_of(config.training)) {}
  PrivateGradients(const PrivateGradients&) = delete;
  PrivateGradients& operator=(const PrivateGradients&) = delete;
  /// Before the first step: where samples and noise are drawn from, and the noise multiplier, 0 or more. Set the same values on all ranks. A forecast of
  /// memory draws nothing.
  void set_source(const crypto::PrivateRandom& random, double noise);

  /// Factor of the clipped gradient of a sample in what its data rank contributes. It may not depend on other samples, if the gradient is to be
  /// private. A robust rule takes the place of a mean over the data ranks, and not of a sum.
  double sample_weight() const;
  /// The samples of a step. Steps draw different numbers of them, so their numbers of micro-batches differ, too.
  struct Drawn {
    MicroBatchSplit split;
    std::vector<int64_t> samples;  ///< by place in the step; -1 is padding
  };
  Drawn draw(const Dataset& data, int64_t step) const;

  /// CLIP: starts the sum of the squared norm of each sample's gradient of the whole model. The first stage is the last to add to it.
  void start_clip(int microbatch);
  /// WAIT_CLIP: gives the stages the factor of each sample.
  void wait_clip(int microbatch);
  /// NOISE: adds the noise of `step` to this rank's shards of the summed gradient. It is a function of key, step, name and global index, so that all
  /// copies of a weight get the same value, in every layout.
  void add_noise(const std::vector<OwnedBox>& owned, int64_t step) const;
  /// Adds the noise of this data rank to a unit's gradient before anything else is done with it: what is compressed, compared and kept then follows from
  /// values that are private already. Of ranks whose gradients add up to that of a parameter, one adds it.
  void add_noise_of_rank(const TransformerStage& stage, int unit, const Tensor& gradient, int64_t step) const;

 private:
  /// A micro-batch between CLIP and WAIT_CLIP.
  struct Clip {
    Tensor squares;     ///< [samples] f64
    Work sum;           ///< over the pipeline
    Tensor token_rows;  ///< being sent from the last stage to the first; only there
    Work send;
  };
  std::vector<std::vector<int64_t>> drawn_ranks(const std::vector<int64_t>& samples, int64_t step) const;
  void add_noise_to(const Tensor& gradient, const Box& box, const ParamSpec& spec, const std::string& stream, int64_t step) const;

  Context& ctx_;
  const Config& config_;
  Mesh& mesh_;
  const Stages& stages_;
  Precision precision_;
  std::optional<crypto::PrivateRandom> random_;
  double noise_ = 0;
  std::map<int, Clip> clips_;  ///< by micro-batch
};

}  // namespace trireme
