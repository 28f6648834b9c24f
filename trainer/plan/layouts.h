#pragma once
// The layouts that a model can have on a cluster: every combination that the rules of the configuration allow.
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "trainer/config/cluster.h"
#include "trainer/config/config.h"
#include "trainer/layout/layout.h"

namespace trireme {

/// The parts that the rules allow in any combination with each other: what binds two of them together is asked for by the function's arguments.
class LayoutSpace {
 public:
  /// Keeps the model, sequence length, global batch, precision, optimizer, and of `parallel` what no layout is made of (bucket size, prefetch,
  /// overlap).
  /// Errors: those of resolve() for the rest of `config`.
  LayoutSpace(const Config& config, const ClusterConfig& cluster);

  struct Degrees {
    int64_t tensor, pipeline, data;
  };
  /// All devices at work, tensor ranks in one node.
  std::vector<Degrees> degrees() const;
  std::vector<int64_t> micro_batches(int64_t data) const;
  /// Sequence parallelism off, and on where there are tensor ranks that divide the tokens.
  std::vector<bool> sequence_parallel(int64_t tensor, int64_t micro_batch) const;
  struct Pipelining {
    ScheduleKind schedule;
    int64_t virtual_stages;
  };
  /// One rank has nothing to schedule: 1F1B alone.
  std::vector<Pipelining> pipelinings(int64_t pipeline) const;
  struct Sharding {
    int64_t zero, replicate;
  };
  /// A sharding in which every data rank is a replica is ZeRO-0, and is there once.
  std::vector<Sharding> shardings(int64_t data) const;

  /// The resolved configuration with that layout, whose gradient accumulation is the one that `auto` stands for; `layers_per_stage` has an entry for
  /// each of its stages.
  Config config(const Layout& layout, std::vector<int64_t> layers_per_stage) const;
  const Config& base() const { return base_; }

 private:
  bool legal(const Layout& layout) const;

  Config base_;  ///< on one rank, resolved
  ClusterConfig cluster_;
};

inline constexpr RecomputeMode kRecomputes[] = {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull};

/// What a search varies, as `verify --layouts` reads it: "tp8pp16vpp2dp8z1sp-selective-interleaved_1f1b". Gradient accumulation and resharding follow
/// from the rest there, and virtual stages are named of interleaved_1f1b alone.
std::string name_of(const Layout& layout);

/// The split of `layers` equal blocks over stages that balance_layers() finds for the same costs, in microseconds: layer by layer to the stage that
/// is least loaded with it, of equals to the one whose rank has least, then to the last, which holds the fewest micro-batches.
std::vector<int64_t> balance_equal_layers(int64_t layers, double layer, double first_extra, double last_extra, const std::vector<int>& stage_rank);

/// Pipeline rank of each stage.
std::vector<int> stage_ranks_of(ScheduleKind schedule, int64_t pipeline, int64_t virtual_stages);
inline std::vector<int> stage_ranks_of(const Layout& layout) { return stage_ranks_of(layout.schedule, layout.pipeline, layout.stages_per_rank()); }

}  // namespace trireme
