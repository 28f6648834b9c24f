#pragma once
// Whether replicas, i.e. ranks that own the same shard, are equal. The gradient norm, saving and the replica check depend on it.
#include <cstdint>

namespace trireme {

enum class ReplicaContract : uint8_t {
  kEqual,      ///< gradients after their reduction and state after every step are the same on all replicas, bit for bit
  kDiverging,  ///< replicas differ between two synchronisations
};

/// Whether the rank at this coordinate of the replicate axis adds its shard to sums over the world and saves it: only the first of equal replicas,
/// each diverging one.
constexpr bool counts_own_shard(ReplicaContract contract, int replicate) { return contract == ReplicaContract::kDiverging || replicate == 0; }

/// Whether a difference between replicas is an error.
constexpr bool must_agree(ReplicaContract contract) { return contract == ReplicaContract::kEqual; }

}  // namespace trireme
