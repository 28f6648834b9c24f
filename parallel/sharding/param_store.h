#pragma once
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/sharding/unit.h"
#include "parallel/sharding/zero_policy.h"

namespace trireme {

/// Owns this rank's parameters: the master shard of every unit, and the full copies the layers read while they live.
/// Memory per rank, P elements in all units, S shards, master dtype = compute dtype: resident P (the master is a view of it), else P/S plus the units
/// gathered at the moment. Where they differ the masters are P/S elements more, counted with the optimizer, and the full copies are made from them: all P
/// where resident, else the units gathered at the moment.
/// Wire per gather: (S-1)/S * unit bytes in the compute dtype.
class ParamStore {
 public:
  ParamStore(Context& ctx, std::vector<Unit*> units, Communicator& shard, const ZeroPolicy& policy, const Precision& precision);

  void unshard(Context& ctx, int unit);  ///< starts the gather, where the full copy is not up to date
  void wait(Context& ctx, int unit);     ///< the layers may read the unit
  void reshard(Context& ctx, int unit);  ///< frees the full copy unless it is resident
  void mark_updated(int unit);           ///< its masters have changed: the full copy is stale

  const std::vector<Unit*>& units() const { return units_; }
  Tensor master(int unit) const { return states_[static_cast<size_t>(unit)].master; }  ///< [shard_numel]
  Communicator& shard() const { return *shard_; }

 private:
  struct State {
    Tensor full, master;
    Work gather;
    bool fresh = false;  ///< full holds, or is being filled with, what the masters hold
  };
  Tensor own_part(const Tensor& full) const;

  std::vector<Unit*> units_;
  std::vector<State> states_;
  Communicator* shard_;
  bool resident_;
  Precision precision_;
};

}  // namespace trireme
