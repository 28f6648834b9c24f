#pragma once
// The coordinator's part in one round of a secure sum, without any input or output. secure_sum.h describes the protocol.
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "parallel/crypto/secure_sum_masks.h"
#include "parallel/crypto/secure_sum_message.h"
#include "parallel/crypto/shamir.h"

namespace trireme::crypto {

/// The share of `owner`'s secret that `revealer` has revealed was wrong: one of the two has lied, and nobody else can tell which.
struct WrongShare {
  size_t owner, revealer;
};

/// Takes the masks off a sum of masked vectors. Its functions may be called by several threads.
class Unmask {
 public:
  Unmask(MemberSet summed, MaskKeys masks, std::vector<WrongShare> wrong) : summed_(summed), masks_(std::move(masks)), wrong_(std::move(wrong)) {}
  MemberSet summed() const { return summed_; }                            ///< the members whose vectors the sum contains
  const std::vector<WrongShare>& wrong_shares() const { return wrong_; }  ///< those in spite of which the masks are right
  /// `sum`: of the masked elements first, first + 1, ... of all members of summed(), modulo 2^64. Afterwards it is that of their plain elements.
  void remove(uint64_t first, std::span<uint64_t> sum) const { masks_.add(first, sum); }

 private:
  MemberSet summed_;
  MaskKeys masks_;
  std::vector<WrongShare> wrong_;
};

/// In each phase messages arrive from some members, and a call ends the phase with the message for those. That call throws RoundAborted if they are
/// fewer than the threshold. A message that is refused with a PartyError changes nothing, so that its sender counts as one that has sent nothing.
class SecureSumCoordinator {
 public:
  explicit SecureSumCoordinator(const SumRound& round);

  /// The members that are still part of the round: those whose messages of this phase may arrive.
  MemberSet members() const { return expected_; }
  /// Those of them whose messages of this phase have arrived.
  MemberSet arrived() const { return arrived_; }

  /// Message 1. Errors: PartyError for the sender, and for both members if a key is that of another one.
  void advertised(size_t from, std::span<const uint8_t> message);
  Bytes key_list();  ///< message 2, for all of members()

  /// Message 3. Errors: PartyError for the sender.
  void shared(size_t from, std::span<const uint8_t> message);
  std::vector<Bytes> inboxes();  ///< message 4 by member; empty for those outside of members()

  /// The masked vector of `from` has arrived completely.
  void masked(size_t from);
  Bytes survivors();  ///< message 5, for all of members(), over whose vectors the sum is

  /// Message 6. Errors: PartyError for the sender.
  void confirmed(size_t from, std::span<const uint8_t> message);
  Bytes confirmations();  ///< message 7, for all of members()

  /// Message 8. Errors: PartyError for the sender.
  void revealed(size_t from, std::span<const uint8_t> message);
  /// Reconstructs secrets from the shares, and compares them with what their owners have advertised or committed to. One wrong share of a secret is
  /// found and replaced if more members than the threshold have revealed shares.
  /// Errors: PartyError if a secret stays wrong, for its owner and those whose shares were used, as any of them may have lied.
  Unmask unmask();

 private:
  enum class Phase : uint8_t { kAdvertise, kShare, kMask, kConfirm, kReveal, kEnded };

  void admit(Phase phase, size_t from) const;
  MemberSet end(Phase phase, const char* what);
  void refuse_copied_keys(size_t from, const SumKeys& keys) const;
  Key combine_revealed(size_t owner, MemberSet revealers) const;
  Key reconstruct(size_t owner, const std::function<bool(const Key&)>& is_right);
  Key self_mask_seed(size_t member);
  Key mask_secret(size_t dropped);
  void add_pair_masks(size_t dropped, MaskKeys& masks);

  SumRound round_;
  Phase phase_ = Phase::kAdvertise;
  MemberSet expected_, arrived_;
  MemberSet with_keys_, with_shares_, with_masks_;  ///< U1, U2, U3
  Key probe_;                                       ///< finds points of small order
  Hash key_list_{};                                 ///< SHA-256 of message 2
  std::vector<WrongShare> wrong_shares_;
  // By member:
  std::vector<SignedKeys> keys_;
  std::vector<Key> commitments_;
  std::vector<std::vector<Bytes>> frames_;  ///< by sender, then receiver
  std::vector<Signature> confirmations_;
  std::vector<std::vector<Key>> revealed_;  ///< by sender, then the member whose secret it is a share of
};

}  // namespace trireme::crypto
