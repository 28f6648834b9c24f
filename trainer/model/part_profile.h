#pragma once
// Cost profile of a model part on one tensor rank, taken by running the part once on the meta device. Forecasts of time, memory and FLOPs read
// profiles, so no layer is described a second time.
#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/core/operation_log.h"
#include "trainer/model/parts.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// What a profile depends on besides model, part and the block's policy of recomputation.
struct ProfileShape {
  int tensor = 1;
  bool sequence_parallel = false;
  int64_t sequences = 1;     ///< per micro-batch
  int64_t length = 1;        ///< tokens per sequence
  int64_t logits_chunk = 1;  ///< rows of logits computed at a time
  DType compute = DType::kF32;
  bool recompute_elementwise = true;
  bool clips_samples = false;  ///< between I and W: the norms of samples count as part of W
  auto operator<=>(const ProfileShape&) const = default;
};

double flops_of(const std::vector<OperationRecord>& operations);

struct PartProfile {
  /// One kind of action. `peak`: peak bytes of activations, including what the part kept before and the incoming activation or gradient.
  struct Pass {
    std::vector<OperationRecord> operations;
    int64_t peak = 0;
  };
  std::vector<int64_t> units;                    ///< elements this part declares in each unit of Part::units
  std::vector<std::array<int64_t, 2>> matrices;  ///< global shapes of its trainable hidden matrices, of which each tensor rank has a part
  Pass forward;                                  ///< forward of a training step, in which the head does nothing
  Pass evaluation;                               ///< forward of an evaluation, including the loss
  Pass backward;                                 ///< input and weight gradients in one action; none if samples are clipped
  Pass input_gradient, weight_gradient;
  int64_t saved = 0;  ///< bytes kept from forward to backward
  int64_t kept = 0;   ///< bytes kept from input gradient to weight gradient

  int64_t elements() const;         ///< sum over units
  int64_t matrix_elements() const;  ///< those of the hidden matrices, over all tensor ranks
};

/// Runs the part on the meta device. `model` is resolved.
PartProfile profile_of(const ModelConfig& model, const Part& part, const ProfileShape& shape, Recompute recompute);

/// The profiles of one model, each computed on first use.
class PartProfiles {
 public:
  explicit PartProfiles(const ModelConfig& model) : model_(model), parts_(parts_of(model, whole_range(model))) {}
  PartProfiles(const PartProfiles&) = delete;
  PartProfiles& operator=(const PartProfiles&) = delete;
  const std::vector<Part>& parts() const { return parts_; }  ///< of the whole model
  const PartProfile& of(const Part& part, const ProfileShape& shape, Recompute recompute = Recompute::kNone);

 private:
  ModelConfig model_;
  std::vector<Part> parts_;
  using Known = std::map<std::tuple<Part::Traits, ProfileShape, Recompute>, PartProfile>;
  Known known_;
  const Known::value_type* last_ = nullptr;  ///< last result: most blocks equal their neighbours
};

/// The entry of a part in `policy`, which has one entry per block of the model; kNone for embedding and head.
Recompute recompute_of(const Part& part, const std::vector<Recompute>& policy);

/// Elements on one tensor rank of each unit that a stage owns. `parts` and `reads` belong to the same stage.
std::vector<int64_t> unit_elements(PartProfiles& profiles, const std::vector<Part>& parts, const StageUnits& reads, const ProfileShape& shape);

}  // namespace trireme
