#pragma once
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/sharding/unit.h"
#include "parallel/sharding/zero_policy.h"

namespace trireme {

/// Owns this rank's parameters: the master shard of every unit, and the full copies that the layers read.
/// Memory per rank, P elements in all units, S shards. If master dtype = compute dtype: P if resident (the master is a view of it), else P/S plus the
/// units that are currently gathered. Otherwise P/S more for the masters, counted as optimizer memory; the full copies are made from them: P if
/// resident, else the units that are currently gathered.
/// Wire per gather: (S-1)/S * unit bytes in the compute dtype.
class ParamStore {
 public:
  ParamStore(Context& ctx, std::vector<Unit*> units, Communicator& shard, const ZeroPolicy& policy, const Precision& precision);

  void unshard(Context& ctx, int unit);  ///< starts the gather unless the full copy is up to date
  void wait(Context& ctx, int unit);     ///< completes the gather; the layers may then read the unit
  void reshard(Context& ctx, int unit);  ///< frees the full copy unless it is resident
  void mark_stale(int unit);             ///< call after changing the masters: marks the full copy stale

  const std::vector<Unit*>& units() const { return units_; }
  Tensor master(int unit) const { return states_[static_cast<size_t>(unit)].master; }  ///< [shard_numel]
  Communicator& shard() const { return *shard_; }

 private:
  struct State {
    Tensor full, master;
    Work gather;
    bool fresh = false;  ///< `full` equals the masters, or a gather that makes it so is in flight
  };
  Tensor own_part(const Tensor& full) const;

  std::vector<Unit*> units_;
  std::vector<State> states_;
  Communicator* shard_;
  bool resident_;
  Precision precision_;
};

}  // namespace trireme
