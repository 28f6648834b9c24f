#pragma once
#include "parallel/comm/communicator.h"

namespace trireme {

/// The data ranks among which units are sharded, seen from one of them. A rank of replica r and shard s owns shard s of each unit of the group, as do
/// the ranks of the other replicas with the same s. The communicators outlive whatever has the group. Stores and reducers need all of them but
/// `secondary`; a unit that only describes a layout needs none.
struct ShardGroup {
  Communicator* shard = nullptr;      ///< ranks of one replica: parameters are gathered and gradients scattered over it
  Communicator* replicate = nullptr;  ///< ranks that own the same shard: their gradients are summed
  Communicator* data = nullptr;       ///< both together, replicas outermost; carries tensors in host memory only
  Communicator* secondary = nullptr;  ///< neighbours within `shard` that keep a second copy of gathered parameters (ParamStore)

  int shards() const { return shard == nullptr ? 1 : shard->size(); }
  int own_shard() const { return shard == nullptr ? 0 : shard->rank(); }
  int replicas() const { return replicate == nullptr ? 1 : replicate->size(); }
  int own_replica() const { return replicate == nullptr ? 0 : replicate->rank(); }
  bool operator==(const ShardGroup&) const = default;
};

}  // namespace trireme
