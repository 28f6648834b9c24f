#pragma once
// A lower bound of trireme_memory() that needs no action lists, in time linear in the number of stages. Most layouts of a large search exceed the memory
// by far.
#include <vector>

#include "trainer/layout/layout.h"
#include "trainer/model/part_profile.h"

namespace trireme {

/// The bound for all layouts with the same tensor degree, sequence parallelism, micro-batch size and recomputation.
class LeastMemory {
 public:
  /// `config` is resolved and has one of these layouts. `profiles`: part profiles of config.model.
  LeastMemory(const Config& config, PartProfiles& profiles);

  struct Rank {
    double trained = 0, frozen = 0;  ///< weights on one tensor rank, of all shards
    double bytes = 0;                ///< what no sharding divides when the rank's first backward begins, without the runtime allowance
  };
  /// One entry per pipeline rank. `split`: layers per stage.
  std::vector<Rank> ranks(const Layout& layout, const std::vector<int64_t>& split) const;
  /// Lower bound of the highest peak. `ranks`: of this layout, or of one that differs only in its sharding.
  double peak(const Layout& layout, const std::vector<Rank>& ranks) const;

 private:
  struct PartMemory {
    double trained = 0, frozen = 0;  ///< elements
    double saved = 0;                ///< bytes from forward to backward
    double backward = 0;             ///< peak bytes of a backward in addition to those saved
  };
  double first_backward(const StageRange& stage) const;
  int64_t microbatches(const Layout& layout) const;

  PartMemory embedding_, head_;
  std::vector<PartMemory> blocks_, sums_;    ///< by block; and the sums over the blocks before each block
  double shared_ = 0;                        ///< elements that embedding and head share if they are on the same rank
  bool shares_frozen_ = false;               ///< they are frozen
  int64_t microbatches_, gradients_;         ///< of a step on all ranks; gradients_per_step()
  double boundary_, input_, table_ = 0;      ///< bytes: a stage's output; tokens and targets of a micro-batch; a rotary table
  double parameter_, gradient_, optimizer_;  ///< bytes per element without sharding
  bool master_weights_;                      ///< the optimizer has weights of its own
};

}  // namespace trireme
