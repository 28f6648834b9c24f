#include "parallel/crypto/secure_sum_message.h"

#include <utility>

namespace trireme::crypto {
namespace {

constexpr std::string_view kMessageDomain("trireme secure sum message\0", 27);
constexpr size_t kMessageHead = 1 + sizeof(Hash) + 1;

std::string_view as_text(std::span<const uint8_t> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::string signed_text(std::span<const uint8_t> message, std::span<const uint8_t> also) {
  std::string text(kMessageDomain);
  return text.append(as_text(message)).append(as_text(also));
}

std::array<uint8_t, 8> bytes_of_set(MemberSet set) {
  std::array<uint8_t, 8> bytes;
  put_little_endian(set.bits(), std::span(bytes));
  return bytes;
}

}  // namespace

const char* name_of(MessageKind kind) {
  constexpr std::array kNames{"advertised keys", "list of keys",  "shares",         "received shares", "list of members with masked values",
                              "confirmation",    "confirmations", "revealed shares"};
  return kNames[static_cast<size_t>(kind) - 1];
}

MessageWriter::MessageWriter(MessageKind kind, const SumRound& round, size_t party) {
  bytes_.push_back(static_cast<uint8_t>(kind));
  put(round.digest());
  bytes_.push_back(static_cast<uint8_t>(party));
}

void MessageWriter::put(MemberSet set) { put(bytes_of_set(set)); }

Bytes MessageWriter::sign(const SigningKey& key, std::span<const uint8_t> also) {
  put(key.sign(signed_text(bytes_, also)));
  return std::move(bytes_);
}

Bytes MessageWriter::checksum() {
  put(sha256(as_text(bytes_)));
  return std::move(bytes_);
}

MessageReader::MessageReader(MessageKind kind, const SumRound& round, size_t party, MemberSet blamed, std::span<const uint8_t> message)
    : round_(round), kind_(kind), blamed_(blamed), message_(message) {
  if (take<1>()[0] != static_cast<uint8_t>(kind)) refuse("the message is of another kind");
  if (take<sizeof(Hash)>() != round.digest()) refuse("the message belongs to another round, attempt, run, roster or threshold");
  if (take<1>()[0] != party) refuse("the message names another member");
}

void MessageReader::verify_signature(size_t member, std::span<const uint8_t> also) {
  if (message_.size() < next_ + sizeof(Signature)) refuse("the message is too short");
  Signature signature;
  std::ranges::copy(message_.last(sizeof signature), signature.begin());
  message_ = message_.first(message_.size() - sizeof signature);
  if (!is_signed_by(round_.identity(member), signed_text(message_, also), signature)) refuse(concat("the signature is not that of member ", member));
}

void MessageReader::verify_checksum() {
  if (message_.size() < next_ + sizeof(Hash)) refuse("the message is too short");
  const std::span<const uint8_t> sum = message_.last(sizeof(Hash));
  message_ = message_.first(message_.size() - sizeof(Hash));
  if (!std::ranges::equal(sha256(as_text(message_)), sum)) refuse("the checksum is wrong");
}

std::span<const uint8_t> MessageReader::take(size_t bytes) {
  if (message_.size() - next_ < bytes) refuse("the message is too short");
  return message_.subspan(std::exchange(next_, next_ + bytes), bytes);
}

MemberSet MessageReader::take_set() {
  uint64_t bits = 0;
  const std::span<const uint8_t> bytes = take(sizeof bits);
  for (size_t i = sizeof bits; i-- > 0;) bits = bits << 8 | bytes[i];
  const MemberSet set(bits);
  if (!round_.members().includes(set)) refuse(concat("the message names members that the roster of ", round_.size(), " does not have"));
  return set;
}

void MessageReader::finish() const {
  if (!at_end()) refuse("the message is too long");
}

void MessageReader::refuse(const std::string& what) const { throw PartyError(blamed_, concat(name_of(kind_), ": ", what)); }

SignedKeys take_keys(MessageReader& reader) {
  SignedKeys taken;
  taken.keys.encryption = reader.take<kPointBytes>();
  taken.keys.mask = reader.take<kPointBytes>();
  taken.signature = reader.take<sizeof(Signature)>();
  return taken;
}

void put_keys(MessageWriter& message, const SignedKeys& keys) {
  message.put(keys.keys.encryption);
  message.put(keys.keys.mask);
  message.put(keys.signature);
}

void verify_keys(const SumRound& round, size_t member, MemberSet blamed, const SignedKeys& keys) {
  MessageWriter advertised(MessageKind::kAdvertise, round, member);
  put_keys(advertised, keys);
  const Bytes message = advertised.bytes();
  MessageReader(MessageKind::kAdvertise, round, member, blamed, message).verify_signature(member);
}

std::array<uint8_t, 48> confirmed_text(const Hash& key_list, MemberSet with_shares, MemberSet with_masks) {
  std::array<uint8_t, 48> text;
  std::ranges::copy(key_list, text.begin());
  std::ranges::copy(bytes_of_set(with_shares), text.begin() + 32);
  std::ranges::copy(bytes_of_set(with_masks), text.begin() + 40);
  return text;
}

}  // namespace trireme::crypto
