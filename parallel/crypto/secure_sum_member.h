#pragma once
// One member's part in one round of a secure sum, without any input or output. secure_sum.h describes the protocol.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/crypto/secure_sum_masks.h"
#include "parallel/crypto/secure_sum_message.h"
#include "parallel/crypto/shamir.h"

namespace trireme::crypto {

/// The functions are called once each, in their order. One that throws a PartyError ends the round for this member, as does one that is called again:
/// the member then answers nothing more, and its secrets cannot be asked for in another way.
class SecureSumMember {
 public:
  /// `key`, whose public key is identity `id` of the roster, outlives this object. Errors: ConfigError if it is another key.
  SecureSumMember(const SumRound& round, size_t id, const SigningKey& key);

  /// Draws two key pairs. Returns message 1.
  Bytes advertise();
  /// Takes message 2, the keys of set U1, and returns message 3, the shares of this member's secrets.
  /// Errors: PartyError, for the coordinator if the list has fewer members than the threshold, wrong signatures, or not this member's own keys; for
  /// members whose keys are not distinct from all others or are points of small order.
  Bytes share(std::span<const uint8_t> key_list);
  /// Takes message 4, the shares from set U2, and returns the keys of this member's masks.
  /// Errors: PartyError, for the coordinator as above; for a member whose shares do not decrypt, where the coordinator may have changed them.
  MaskKeys mask(std::span<const uint8_t> inbox);
  /// Takes message 5, set U3 of the members whose masked values have arrived, and returns message 6, the signature of it.
  /// Errors: PartyError for the coordinator if U3 has fewer members than the threshold, members outside of U2, or not this member.
  Bytes confirm(std::span<const uint8_t> survivors);
  /// Takes message 7, the signatures of set U4, and returns message 8: shares of the self masks of U3 and of the mask keys of U2 without U3.
  /// Errors: PartyError for the coordinator if U4 has fewer members than the threshold or outside of U3, or a member has signed other sets than this
  /// one.
  Bytes reveal(std::span<const uint8_t> confirmations);

  /// After confirm(): set U3, whose values the sum contains.
  MemberSet summed() const { return with_masks_; }
  /// reveal() has returned shares, so that the coordinator may know the sum. The caller then refuses every other attempt at the same round number:
  /// two sums of the same vectors over different members would tell their difference.
  bool has_revealed() const { return revealed_; }

 private:
  enum class Phase : uint8_t { kAdvertise, kShare, kMask, kConfirm, kReveal, kEnded };
  /// Shares of one member's secrets, for this member.
  struct SharePair {
    Key seed, mask_secret;
  };

  void begin(Phase phase);
  void read_keys(std::span<const uint8_t> key_list);
  void refuse_equal_keys() const;
  void read_shares(std::span<const uint8_t> inbox);
  Aead cipher_of(size_t sender, size_t receiver) const;
  std::array<uint8_t, kFrameBytes> seal(size_t receiver, const Share& of_seed, const Share& of_secret) const;
  SharePair open(size_t sender, std::span<const uint8_t> frame) const;
  MaskKeys mask_keys() const;
  void verify_confirmations(std::span<const uint8_t> confirmations) const;
  MessageReader read(MessageKind kind, size_t party, std::span<const uint8_t> message) const;
  MemberSet take_quorum(MessageReader& reader, MemberSet within, MemberSet implied) const;

  SumRound round_;
  size_t id_;
  const SigningKey& key_;
  Phase phase_ = Phase::kAdvertise;
  bool revealed_ = false;

  Key encryption_secret_, mask_secret_, seed_;      ///< until they are shared and used
  std::vector<SumKeys> keys_;                       ///< public keys by member
  Hash key_list_{};                                 ///< SHA-256 of message 2
  MemberSet with_keys_, with_shares_, with_masks_;  ///< U1, U2, U3
  std::vector<SharePair> shares_;                   ///< by member
};

}  // namespace trireme::crypto
