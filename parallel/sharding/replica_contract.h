#pragma once
// What ranks that own the same shard, the replicas, have in common. The gradient norm, saving and the replica check ask here instead of assuming it.
#include <cstdint>

namespace trireme {

enum class ReplicaContract : uint8_t {
  kEqual,      ///< gradients after their reduction and state after every step are the same on all replicas, bit for bit
  kDiverging,  ///< each replica has its own between two synchronisations
};

/// Whether the rank at this coordinate of the replicate axis adds its shard to sums over the world and writes it: of equal replicas the first does,
/// of diverging ones each.
constexpr bool counts_own_shard(ReplicaContract contract, int replicate) { return contract == ReplicaContract::kDiverging || replicate == 0; }

/// Whether a difference between replicas is an error.
constexpr bool must_agree(ReplicaContract contract) { return contract == ReplicaContract::kEqual; }

}  // namespace trireme
