#pragma once
// Memory of one stage of Trireme's own ranks by formula.
#include <cstddef>
#include <utility>
#include <vector>

#include "parallel/sharding/zero_policy.h"
#include "trainer/config/config.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/recompute.h"
#include "trainer/model/part_profile.h"

namespace trireme {

/// Bytes of one part of a stage for one micro-batch. The last four are the peaks during that action, including what the part held before and the
/// incoming gradient.
struct PartBytes {
  double saved = 0;  ///< from its forward to its backward
  double kept = 0;   ///< from I to W
  double forward = 0, backward = 0, input_gradient = 0, weight_gradient = 0;
};

struct HeldPart {
  PartBytes bytes;
  std::vector<size_t> units;  ///< indices into StageMemory::units
};

/// Peak bytes of a stage for one micro-batch during each action, and bytes held between actions.
struct StageMemory {
  std::vector<HeldPart> parts;
  std::vector<double> units;                      ///< elements of all shards, padding included
  std::vector<bool> trains;                       ///< by unit
  std::vector<size_t> whole;                      ///< units that are gathered once a step
  double matrices = 0;                            ///< elements of this tensor rank's parts of hidden matrices
  double orthogonalize = 0;                       ///< elements that ORTHOGONALIZE takes where most matrices are dealt to
  std::vector<std::pair<size_t, size_t>> adders;  ///< by unit: first and last part that adds to its gradient
  bool head_adds = false;                         ///< a tied head in another stage of this rank adds to the first unit's gradient
  double saved = 0, kept = 0;
  PartBytes activations;                    ///< all parts: peak of each action
  PartBytes with_units;                     ///< the same plus gathered parameters and full gradients
  double gathered = 0, full_gradients = 0;  ///< peak bytes of these two
  double trained = 0, largest = 0;          ///< elements of units that train, and of the largest of them
  double beyond = 0;                        ///< additional prefetched bytes of a single-part stage if the next action belongs to another stage
  /// The same for the parts with which a backward, or its W, begins: from the last one to the one behind which a gradient is reduced.
  double first_backward = 0, first_weight_gradient = 0, first_gradients = 0;
  double lingering = 0;               ///< last gradient of a backward; its reduction ends with the first reduction of the rank's next backward
  bool begins_where_it_ends = false;  ///< the next backward adds to that same gradient first, so it waits for the reduction
  bool head_alone = false;            ///< its I adds to the gradient
  double reduced_alone = 0;           ///< gradients of a single-part stage while the first of its units is reduced, with the result
};

/// True if the parameters that shards gather from each other are encoded.
bool encodes_parameters(const Config& config);

class StageMemoryModel {
 public:
  /// `config` is resolved. `profiles`: part profiles of config.model; it outlives this.
  StageMemoryModel(const Config& config, PartProfiles& profiles);
  /// `first_stage_is_local`: the first stage of the model is on the same rank as this one.
  StageMemory of(const StageRange& range, bool first_stage_is_local) const;
  /// True if stage `here` consists of the same blocks as the stage before it, without embedding or head in either.
  bool alike(const StageRange& before, const StageRange& here) const;

 private:
  void set_matrices(StageMemory& stage, const std::vector<Part>& parts) const;
  void set_peaks(StageMemory& stage) const;
  double gathered(const StageMemory& stage, size_t part, bool forward, int64_t uses) const;
  double full_gradients(const StageMemory& stage, size_t part) const;
  double in_reduction() const;

  const Config& config_;
  ZeroPolicy policy_;
  Precision precision_;
  PartProfiles& profiles_;
  ProfileShape shape_;
  std::vector<Recompute> recompute_;
  double largest_block_ = 0;  ///< elements
  int64_t blocks_per_unit_;
};

}  // namespace trireme
