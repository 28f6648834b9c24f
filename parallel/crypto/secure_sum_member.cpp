#include "parallel/crypto/secure_sum_member.h"

#include <algorithm>
#include <utility>

namespace trireme::crypto {
namespace {

constexpr MemberSet kCoordinator;  // errors name it by no members

/// Points of polynomials are member numbers plus 1, as the secret is at 0.
std::vector<uint8_t> share_points(MemberSet members) {
  std::vector<uint8_t> points;
  for (const size_t member : members.members()) points.push_back(static_cast<uint8_t>(member + 1));
  return points;
}

/// What is authenticated with a frame.
Bytes frame_context(const SumRound& round, const Hash& key_list, size_t sender, size_t receiver) {
  Bytes context(round.digest().begin(), round.digest().end());
  context.insert(context.end(), key_list.begin(), key_list.end());
  context.push_back(static_cast<uint8_t>(sender));
  context.push_back(static_cast<uint8_t>(receiver));
  return context;
}

}  // namespace

SecureSumMember::SecureSumMember(const SumRound& round, size_t id, const SigningKey& key) : round_(round), id_(id), key_(key) {
  if (id >= round.size() || key.public_key() != round.identity(id))
    throw ConfigError(concat("secure sum: the roster does not have this signing key as that of member ", id));
  keys_.resize(round.size());
  shares_.resize(round.size());
}

/// The coordinator decides when a member is called, so that calls out of order are its fault. Until a call has succeeded, the round counts as ended.
void SecureSumMember::begin(Phase phase) {
  if (std::exchange(phase_, Phase::kEnded) != phase)
    throw PartyError(kCoordinator, "it asks twice, out of order, or after an error; allowed is one answer a phase");
}

Bytes SecureSumMember::advertise() {
  begin(Phase::kAdvertise);
  draw({encryption_secret_.data(), kKeyBytes});
  draw({mask_secret_.data(), kKeyBytes});
  keys_[id_] = {public_point(encryption_secret_), public_point(mask_secret_)};
  MessageWriter message(MessageKind::kAdvertise, round_, id_);
  message.put(keys_[id_].encryption);
  message.put(keys_[id_].mask);
  phase_ = Phase::kShare;
  return message.sign(key_);
}

Bytes SecureSumMember::share(std::span<const uint8_t> key_list) {
  begin(Phase::kShare);
  read_keys(key_list);
  draw({seed_.data(), kKeyBytes});
  const std::vector<uint8_t> points = share_points(with_keys_);
  std::vector<Share> of_seed = split(seed_, round_.threshold(), points), of_secret = split(mask_secret_, round_.threshold(), points);
  const Key commitment = self_mask_commitment(round_, seed_);
  MessageWriter message(MessageKind::kShares, round_, id_);
  message.put({commitment.data(), kKeyBytes});
  message.put(with_keys_.without(id_));
  for (size_t i = 0; i < points.size(); ++i)
    if (const size_t receiver = points[i] - size_t{1}; receiver != id_)
      message.put(seal(receiver, of_seed[i], of_secret[i]));
    else
      shares_[id_] = {std::move(of_seed[i].value), std::move(of_secret[i].value)};
  phase_ = Phase::kMask;
  return message.sign(key_);
}

MaskKeys SecureSumMember::mask(std::span<const uint8_t> inbox) {
  begin(Phase::kMask);
  read_shares(inbox);
  MaskKeys masks = mask_keys();
  for (Key* used : {&encryption_secret_, &mask_secret_, &seed_}) *used = Key();
  phase_ = Phase::kConfirm;
  return masks;
}

Bytes SecureSumMember::confirm(std::span<const uint8_t> survivors) {
  begin(Phase::kConfirm);
  MessageReader reader = read(MessageKind::kSurvivors, kEverybody, survivors);
  with_masks_ = take_quorum(reader, with_shares_, MemberSet());
  reader.finish();
  if (!with_masks_.contains(id_)) reader.refuse("this member's own values are left out");
  phase_ = Phase::kReveal;
  return MessageWriter(MessageKind::kConfirmation, round_, id_).sign(key_, confirmed_text(key_list_, with_shares_, with_masks_));
}

Bytes SecureSumMember::reveal(std::span<const uint8_t> confirmations) {
  begin(Phase::kReveal);
  verify_confirmations(confirmations);
  MessageWriter message(MessageKind::kReveal, round_, id_);
  const MemberSet dropped = with_shares_.without(with_masks_);
  message.put(with_masks_);
  for (const size_t member : with_masks_.members()) message.put({shares_[member].seed.data(), kKeyBytes});
  message.put(dropped);
  for (const size_t member : dropped.members()) message.put({shares_[member].mask_secret.data(), kKeyBytes});
  shares_.clear();
  revealed_ = true;
  return message.sign(key_);
}

MessageReader SecureSumMember::read(MessageKind kind, size_t party, std::span<const uint8_t> message) const {
  MessageReader reader(kind, round_, party, kCoordinator, message);
  reader.verify_checksum();
  return reader;
}

/// The next set of `reader` together with `implied`, which the message leaves out.
MemberSet SecureSumMember::take_quorum(MessageReader& reader, MemberSet within, MemberSet implied) const {
  const MemberSet sent = reader.take_set();
  if (!within.without(implied).includes(sent)) reader.refuse("the message names members that cannot be left");
  const MemberSet set(sent.bits() | implied.bits());
  if (set.size() < round_.threshold())
    reader.refuse(concat("the message names ", set.size(), " members; at least ", round_.threshold(), " are needed"));
  return set;
}

void SecureSumMember::read_keys(std::span<const uint8_t> key_list) {
  key_list_ = sha256({reinterpret_cast<const char*>(key_list.data()), key_list.size()});
  MessageReader reader = read(MessageKind::kKeyList, kEverybody, key_list);
  with_keys_ = take_quorum(reader, round_.members(), MemberSet());
  const SumKeys own = keys_[id_];
  for (const size_t member : with_keys_.members()) {
    const SignedKeys advertised = take_keys(reader);
    verify_keys(round_, member, kCoordinator, advertised);
    keys_[member] = advertised.keys;
  }
  reader.finish();
  if (!with_keys_.contains(id_) || keys_[id_] != own) reader.refuse("this member's own keys are missing");
  refuse_equal_keys();
}

/// A key that occurs twice is a copy, and its owner does not know the secret that it shares.
void SecureSumMember::refuse_equal_keys() const {
  std::vector<std::pair<Point, size_t>> points;
  for (const size_t member : with_keys_.members()) {
    points.emplace_back(keys_[member].encryption, member);
    points.emplace_back(keys_[member].mask, member);
  }
  std::ranges::sort(points);
  const auto same = std::ranges::adjacent_find(points, [](const auto& a, const auto& b) { return a.first == b.first; });
  if (same != points.end()) throw PartyError(MemberSet::of(same->second).with(std::next(same)->second), "two public keys are equal");
}

void SecureSumMember::read_shares(std::span<const uint8_t> inbox) {
  MessageReader reader = read(MessageKind::kInbox, id_, inbox);
  with_shares_ = take_quorum(reader, with_keys_, MemberSet::of(id_));
  for (const size_t sender : with_shares_.without(id_).members()) shares_[sender] = open(sender, reader.take(kFrameBytes));
  reader.finish();
}

/// Each direction of each pair has a key of its own, which encrypts one frame.
Aead SecureSumMember::cipher_of(size_t sender, size_t receiver) const {
  const size_t other = sender == id_ ? receiver : sender;
  Key product;
  if (!multiply(encryption_secret_, keys_[other].encryption, product))
    throw PartyError(MemberSet::of(other), "its public key for encryption is a point of small order");
  const std::array direction{static_cast<uint8_t>(sender), static_cast<uint8_t>(receiver)};
  return {Cipher::kChaCha20Poly1305, derive_for(round_, product, "shares", direction)};
}

std::array<uint8_t, kFrameBytes> SecureSumMember::seal(size_t receiver, const Share& of_seed, const Share& of_secret) const {
  const Aead cipher = cipher_of(id_, receiver);  // may throw, and then nothing may be left to overwrite
  std::array<uint8_t, 2 * kKeyBytes> text;
  std::copy_n(of_secret.value.data(), kKeyBytes, std::copy_n(of_seed.value.data(), kKeyBytes, text.data()));
  std::array<uint8_t, kFrameBytes> frame;
  cipher.seal(nonce_of(0, 0), frame_context(round_, key_list_, id_, receiver), std::as_bytes(std::span(text)),
              std::as_writable_bytes(std::span(frame)));
  wipe(text);
  return frame;
}

SecureSumMember::SharePair SecureSumMember::open(size_t sender, std::span<const uint8_t> frame) const {
  std::array<uint8_t, 2 * kKeyBytes> text;
  if (!cipher_of(sender, id_)
           .open(nonce_of(0, 0), frame_context(round_, key_list_, sender, id_), std::as_bytes(frame), std::as_writable_bytes(std::span(text))))
    throw PartyError(MemberSet::of(sender), "its shares cannot be decrypted: it or the coordinator has changed them, or it has another list of keys");
  SharePair pair;
  std::copy_n(text.data(), kKeyBytes, pair.seed.data());
  std::copy_n(text.data() + kKeyBytes, kKeyBytes, pair.mask_secret.data());
  wipe(text);
  return pair;
}

MaskKeys SecureSumMember::mask_keys() const {
  MaskKeys masks;
  masks.insert(self_mask_key(round_, seed_), false);
  for (const size_t other : with_shares_.without(id_).members()) {
    Key key;
    if (!pair_mask_key(round_, mask_secret_, keys_[id_].mask, keys_[other].mask, key))
      throw PartyError(MemberSet::of(other), "its public key for masks is a point of small order");
    masks.insert(std::move(key), subtracts_pair_mask(id_, other));
  }
  return masks;
}

/// Every signature covers the sets that this member knows. A signature of other sets shows that the coordinator has told members different things.
void SecureSumMember::verify_confirmations(std::span<const uint8_t> confirmations) const {
  MessageReader reader = read(MessageKind::kConfirmations, kEverybody, confirmations);
  const MemberSet confirmed = take_quorum(reader, with_masks_, MemberSet());
  for (const size_t member : confirmed.members()) {
    MessageWriter confirmation(MessageKind::kConfirmation, round_, member);
    confirmation.put(reader.take(sizeof(Signature)));
    MessageReader(MessageKind::kConfirmation, round_, member, kCoordinator, confirmation.bytes())
        .verify_signature(member, confirmed_text(key_list_, with_shares_, with_masks_));
  }
  reader.finish();
}

}  // namespace trireme::crypto
