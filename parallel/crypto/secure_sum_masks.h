#pragma once
// The masks of a secure sum: streams of ChaCha20, whose words are added to values or subtracted from them modulo 2^64. Word i belongs to the element
// with index i of the whole vector, so that processes which hold parts of the vector mask them by themselves.
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/crypto/aead.h"
#include "parallel/crypto/secure_sum_message.h"

namespace trireme::crypto {

/// A sum of streams with signs. Move-only, as it consists of secrets; its functions that are const may be called by several threads.
class MaskKeys {
 public:
  /// Adds the masks of elements first, first + 1, ... of the vector to `values`, modulo 2^64. first + values.size() is at most 2^64.
  /// The masks of a round hide one vector: a second vector under the same masks gives the difference of the two away.
  void add(uint64_t first, std::span<uint64_t> values) const;

  void insert(Key key, bool subtracted) { streams_.push_back({std::move(key), subtracted}); }

 private:
  struct Stream {
    Key key;
    bool subtracted;
  };
  std::vector<Stream> streams_;
};

/// The key of the mask that two members share: BLAKE2b-256, keyed with their X25519 product, of a name, the round and both public mask keys. Returns
/// false if `other` is a point of small order.
[[nodiscard]] bool pair_mask_key(const SumRound& round, const Key& secret, const Point& own, const Point& other, Key& key);
/// The member with the higher number subtracts the mask of a pair; the other one adds it.
constexpr bool subtracts_pair_mask(size_t member, size_t other) { return member > other; }

/// The key of a member's self mask.
Key self_mask_key(const SumRound& round, const Key& seed);
/// What identifies a seed without telling anything about the mask: another key derived from it.
Key self_mask_commitment(const SumRound& round, const Key& seed);

/// derive() for `purpose` in this round. `also` has the same length for all uses of a purpose.
Key derive_for(const SumRound& round, const Key& key, std::string_view purpose, std::span<const uint8_t> also = {});

}  // namespace trireme::crypto
