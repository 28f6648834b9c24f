#pragma once
// The legal layouts of a model on a cluster: every combination that the configuration's rules allow.
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "trainer/config/cluster.h"
#include "trainer/config/config.h"
#include "trainer/layout/layout.h"
#include "trainer/plan/step_costs.h"

namespace trireme {

/// Enumerates the dimensions of a layout. Values returned by different functions may be combined freely; where a rule links two dimensions, the
/// function takes the other one as an argument.
class LayoutSpace {
 public:
  /// Keeps the model, sequence length, global batch size, precision, optimizer, and the keys of `parallel` that are not part of a layout
  /// (bucket_size, prefetch, overlap). Errors: those of resolve() for the rest of `config`.
  LayoutSpace(const Config& config, const ClusterConfig& cluster);

  struct Degrees {
    int64_t tensor, pipeline, data;
  };
  /// Degrees that use all devices, with tensor groups within a node.
  std::vector<Degrees> degrees() const;
  std::vector<int64_t> micro_batches(int64_t data) const;
  /// Off; and on if there are several tensor ranks and they divide the tokens.
  std::vector<bool> sequence_parallel(int64_t tensor, int64_t micro_batch) const;
  struct Pipelining {
    ScheduleKind schedule;
    int64_t virtual_stages;
  };
  /// A single pipeline rank has only 1F1B.
  std::vector<Pipelining> pipelinings(int64_t pipeline) const;
  struct Sharding {
    int64_t zero, replicate;
  };
  /// ZeRO stages and replica counts. A sharding in which every data rank is a replica equals ZeRO-0 and is listed once.
  std::vector<Sharding> shardings(int64_t data) const;

  /// The resolved configuration with this layout. gradient_accumulation is what `auto` resolves to. `layers_per_stage` has one entry per stage.
  Config config(const Layout& layout, std::vector<int64_t> layers_per_stage) const;
  const Config& base() const { return base_; }

 private:
  bool legal(const Layout& layout) const;

  Config base_;  ///< on one rank, resolved
  ClusterConfig cluster_;
};

inline constexpr RecomputeMode kRecomputes[] = {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull};

/// Name of a layout in the syntax of `verify --layouts`: "tp8pp16vpp2dp8z1sp-selective-interleaved_1f1b". Contains only what a search varies:
/// gradient accumulation and resharding follow from the rest, and virtual stages are named for interleaved_1f1b only.
std::string name_of(const Layout& layout);

/// Splits `layers` equal blocks over stages, with the result of balance_layers() for the same costs, but within microseconds. Each layer goes to the
/// stage whose load including it is smallest; ties go to the stage whose rank has the smallest load, then to the last stage, which has the fewest
/// micro-batches in flight.
std::vector<int64_t> balance_equal_layers(int64_t layers, double layer, double first_extra, double last_extra, const std::vector<int>& stage_rank,
                                          bool empty_ends);

/// Whether the first and the last stage may be without layers: stages wait for the longest of them from the second micro-batch on, and a single
/// micro-batch gains nothing from it.
bool empty_ends(const LayoutSpace& space, const Layout& layout);

/// Layers of each stage such that the longest stage is shortest. `model`: seconds with this layout.
std::vector<int64_t> split_by_time(const LayoutSpace& space, const Layout& layout, const ModelSeconds& model);

/// Pipeline rank of each stage.
std::vector<int> stage_ranks_of(ScheduleKind schedule, int64_t pipeline, int64_t virtual_stages);
inline std::vector<int> stage_ranks_of(const Layout& layout) { return stage_ranks_of(layout.schedule, layout.pipeline, layout.stages_per_rank()); }

}  // namespace trireme
