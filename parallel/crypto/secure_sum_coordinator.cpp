#include "parallel/crypto/secure_sum_coordinator.h"

#include <algorithm>
#include <utility>

namespace trireme::crypto {

SecureSumCoordinator::SecureSumCoordinator(const SumRound& round)
    : round_(round),
      expected_(round.members()),
      keys_(round.size()),
      commitments_(round.size()),
      frames_(round.size()),
      confirmations_(round.size()),
      revealed_(round.size()) {
  draw({probe_.data(), kKeyBytes});
}

void SecureSumCoordinator::admit(Phase phase, size_t from) const {
  TRIREME_CHECK(from < round_.size(), "message of member ", from, " of ", round_.size());
  const MemberSet sender = MemberSet::of(from);
  if (phase != phase_) throw PartyError(sender, "its message belongs to another phase of the round");
  if (!expected_.contains(from)) throw PartyError(sender, "it is not part of the round any more");
  if (arrived_.contains(from)) throw PartyError(sender, "it has sent a message of this phase already");
}

/// Ends the phase with those whose messages have arrived, and returns them.
MemberSet SecureSumCoordinator::end(Phase phase, const char* what) {
  TRIREME_CHECK(phase == phase_, "the phase of ", what, " is not the current one");
  if (arrived_.size() < round_.threshold()) throw RoundAborted(what, arrived_, round_.threshold());
  phase_ = static_cast<Phase>(static_cast<uint8_t>(phase) + 1);
  return expected_ = std::exchange(arrived_, MemberSet());
}

void SecureSumCoordinator::advertised(size_t from, std::span<const uint8_t> message) {
  admit(Phase::kAdvertise, from);
  const SignedKeys keys = [&] {
    MessageReader whole(MessageKind::kAdvertise, round_, from, MemberSet::of(from), message);
    const SignedKeys taken = take_keys(whole);
    whole.finish();
    return taken;
  }();
  verify_keys(round_, from, MemberSet::of(from), keys);
  refuse_copied_keys(from, keys.keys);
  keys_[from] = keys;
  arrived_ = arrived_.with(from);
}

void SecureSumCoordinator::refuse_copied_keys(size_t from, const SumKeys& keys) const {
  const MemberSet sender = MemberSet::of(from);
  Key product;
  if (!multiply(probe_, keys.encryption, product) || !multiply(probe_, keys.mask, product))
    throw PartyError(sender, "a public key is a point of small order");
  if (keys.encryption == keys.mask) throw PartyError(sender, "its two public keys are equal");
  for (const size_t other : arrived_.members())
    for (const Point& point : {keys_[other].keys.encryption, keys_[other].keys.mask})
      if (point == keys.encryption || point == keys.mask) throw PartyError(sender.with(other), "two public keys are equal");
}

Bytes SecureSumCoordinator::key_list() {
  with_keys_ = end(Phase::kAdvertise, "public keys");
  MessageWriter message(MessageKind::kKeyList, round_, kEverybody);
  message.put(with_keys_);
  for (const size_t member : with_keys_.members()) put_keys(message, keys_[member]);
  Bytes bytes = message.checksum();
  key_list_ = sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return bytes;
}

void SecureSumCoordinator::shared(size_t from, std::span<const uint8_t> message) {
  admit(Phase::kShare, from);
  MessageReader reader(MessageKind::kShares, round_, from, MemberSet::of(from), message);
  reader.verify_signature(from);
  Key commitment;
  std::ranges::copy(reader.take(kKeyBytes), commitment.data());
  if (reader.take_set() != with_keys_.without(from)) reader.refuse("the shares are not for all other members of the list of keys");
  std::vector<Bytes> frames(round_.size());
  for (const size_t receiver : with_keys_.without(from).members()) std::ranges::copy(reader.take(kFrameBytes), std::back_inserter(frames[receiver]));
  reader.finish();
  commitments_[from] = std::move(commitment);
  frames_[from] = std::move(frames);
  arrived_ = arrived_.with(from);
}

std::vector<Bytes> SecureSumCoordinator::inboxes() {
  with_shares_ = end(Phase::kShare, "shares");
  std::vector<Bytes> inboxes(round_.size());
  for (const size_t receiver : with_shares_.members()) {
    MessageWriter message(MessageKind::kInbox, round_, receiver);
    message.put(with_shares_.without(receiver));
    for (const size_t sender : with_shares_.without(receiver).members()) message.put(frames_[sender][receiver]);
    inboxes[receiver] = message.checksum();
  }
  return inboxes;
}

void SecureSumCoordinator::masked(size_t from) {
  admit(Phase::kMask, from);
  arrived_ = arrived_.with(from);
}

Bytes SecureSumCoordinator::survivors() {
  with_masks_ = end(Phase::kMask, "masked values");
  MessageWriter message(MessageKind::kSurvivors, round_, kEverybody);
  message.put(with_masks_);
  return message.checksum();
}

void SecureSumCoordinator::confirmed(size_t from, std::span<const uint8_t> message) {
  admit(Phase::kConfirm, from);
  MessageReader reader(MessageKind::kConfirmation, round_, from, MemberSet::of(from), message);
  MessageReader signature = reader;
  reader.verify_signature(from, confirmed_text(key_list_, with_shares_, with_masks_));
  reader.finish();
  confirmations_[from] = signature.take<sizeof(Signature)>();
  arrived_ = arrived_.with(from);
}

Bytes SecureSumCoordinator::confirmations() {
  const MemberSet confirmed = end(Phase::kConfirm, "confirmations");
  MessageWriter message(MessageKind::kConfirmations, round_, kEverybody);
  message.put(confirmed);
  for (const size_t member : confirmed.members()) message.put(confirmations_[member]);
  return message.checksum();
}

void SecureSumCoordinator::revealed(size_t from, std::span<const uint8_t> message) {
  admit(Phase::kReveal, from);
  MessageReader reader(MessageKind::kReveal, round_, from, MemberSet::of(from), message);
  reader.verify_signature(from);
  std::vector<Key> shares(round_.size());
  for (const MemberSet owners : {with_masks_, with_shares_.without(with_masks_)}) {
    if (reader.take_set() != owners) reader.refuse("the shares are not those that the round needs");
    for (const size_t owner : owners.members()) std::ranges::copy(reader.take(kKeyBytes), shares[owner].data());
  }
  reader.finish();
  revealed_[from] = std::move(shares);
  arrived_ = arrived_.with(from);
}

Unmask SecureSumCoordinator::unmask() {
  end(Phase::kReveal, "revealed shares");
  MaskKeys masks;
  for (const size_t member : with_masks_.members()) masks.insert(self_mask_key(round_, self_mask_seed(member)), true);
  for (const size_t member : with_shares_.without(with_masks_).members()) add_pair_masks(member, masks);
  return {with_masks_, std::move(masks), std::move(wrong_shares_)};
}

Key SecureSumCoordinator::combine_revealed(size_t owner, MemberSet revealers) const {
  std::vector<Share> shares;
  for (const size_t revealer : revealers.members()) {
    shares.push_back({static_cast<uint8_t>(revealer + 1), {}});
    std::copy_n(revealed_[revealer][owner].data(), kKeyBytes, shares.back().value.data());
  }
  return combine(shares);
}

/// From the shares of as many members as the threshold; if that secret is wrong, once without each of them and with one more member in its place.
Key SecureSumCoordinator::reconstruct(size_t owner, const std::function<bool(const Key&)>& is_right) {
  const std::vector<size_t> all = expected_.members();
  MemberSet used;
  for (size_t i = 0; i < round_.threshold(); ++i) used = used.with(all[i]);
  if (Key secret = combine_revealed(owner, used); is_right(secret)) return secret;
  if (all.size() > round_.threshold()) {
    used = used.with(all[round_.threshold()]);
    for (const size_t revealer : used.members())
      if (Key secret = combine_revealed(owner, used.without(revealer)); is_right(secret)) {
        wrong_shares_.push_back({owner, revealer});
        return secret;
      }
  }
  throw PartyError(used.with(owner), concat("the shares of member ", owner,
                                            "'s secret do not give the one that it has announced; it has shared another one, or a share "
                                            "that was revealed is wrong"));
}

Key SecureSumCoordinator::self_mask_seed(size_t member) {
  return reconstruct(member, [&](const Key& seed) { return equal(self_mask_commitment(round_, seed), commitments_[member]); });
}

Key SecureSumCoordinator::mask_secret(size_t dropped) {
  return reconstruct(dropped, [&](const Key& secret) { return public_point(secret) == keys_[dropped].keys.mask; });
}

/// Members of the sum have added the masks that they share with `dropped`, which has not added the opposite ones.
void SecureSumCoordinator::add_pair_masks(size_t dropped, MaskKeys& masks) {
  const Key secret = mask_secret(dropped);
  for (const size_t member : with_masks_.members()) {
    Key key;
    TRIREME_CHECK(pair_mask_key(round_, secret, keys_[dropped].keys.mask, keys_[member].keys.mask, key), "point of small order from member ", member);
    masks.insert(std::move(key), subtracts_pair_mask(dropped, member));
  }
}

}  // namespace trireme::crypto
