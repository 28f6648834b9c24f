#pragma once
// What a part of a model costs on one tensor rank: the part itself, run once on the meta device. Forecasts of time, memory and FLOPs read this, so that
// nothing of a layer is described a second time.
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/core/operation_log.h"
#include "trainer/model/parts.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// All that a profile depends on besides model, part and recomputation.
struct ProfileShape {
  int tensor = 1;
  bool sequence_parallel = false;
  int64_t sequences = 1;     ///< of a micro-batch
  int64_t length = 1;        ///< tokens of a sequence
  int64_t logits_chunk = 1;  ///< rows of logits at a time
  DType compute = DType::kF32;
  auto operator<=>(const ProfileShape&) const = default;
};

double flops_of(const std::vector<OperationRecord>& operations);

struct PartProfile {
  /// One kind of action. `peak`: the most bytes of activations alive in it, with what the part held before and with the input or gradient that comes in.
  struct Pass {
    std::vector<OperationRecord> operations;
    int64_t peak = 0;
  };
  std::vector<int64_t> units;  ///< elements of each unit that the part reads, as in Part::units: what this part declares in it
  Pass forward;                ///< of a training step, in which the head does nothing
  Pass evaluation;             ///< forward alone, with the loss
  Pass backward;               ///< input and weight gradients in one action
  Pass input_gradient, weight_gradient;
  int64_t saved = 0;  ///< bytes from its forward to its backward
  int64_t kept = 0;   ///< bytes from input gradient to weight gradient

  int64_t elements() const;  ///< of all units
};

/// `model` is resolved.
PartProfile profile_of(const ModelConfig& model, const Part& part, const ProfileShape& shape, Recompute recompute);

/// The profiles of one model, each made when it is first asked for.
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
  const Known::value_type* last_ = nullptr;  ///< asked for before: most blocks are like their neighbours
};

/// What `policy`, with an entry for each block of the model, says of a part; embedding and head recompute nothing.
Recompute recompute_of(const Part& part, const std::vector<Recompute>& policy);

/// Elements on one tensor rank of each unit of a stage's own. `parts` and `reads` are of the same stage.
std::vector<int64_t> unit_elements(PartProfiles& profiles, const std::vector<Part>& parts, const StageUnits& reads, const ProfileShape& shape);

}  // namespace trireme
