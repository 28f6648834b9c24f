#pragma once
// The bytes of a secure sum's messages.
//
// A message is: its kind (1 byte), the digest of the round (32), a party (1), the body, and a tail. Members' messages begin with the sender's number
// and end with its Ed25519 signature of "trireme secure sum message\0" and everything before. The coordinator's messages begin with the number of the
// member that they are for, or 255 if they are for all, and end with the SHA-256 of everything before: it finds transmission errors, while the
// members' signatures inside protect against the coordinator itself. A set of members is 8 bytes, little endian, and what belongs to its members
// follows in ascending order, so that a message has no room for repetitions or another order.
//
//   kind  from         body
//   1     member       X25519 public keys for encryption and for masks (32 + 32)
//   2     coordinator  the set U1; for each of it the body and the signature of message 1 (128)
//   3     member       commitment to the self mask (32); the set U1 without the sender; for each of it an encrypted pair of shares (80)
//   4     coordinator  the set U2 without the receiver; for each of it what message 3 has for the receiver (80)
//   5     coordinator  the set U3
//   6     member       none; the signature also covers the SHA-256 of message 2, and the sets U2 and U3
//   7     coordinator  the set U4; for each of it the signature of message 6 (64)
//   8     member       the set U3; for each of it a share of the self mask (32); the set U2 without U3; for each of it a share of the mask key (32)
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/crypto/secure_sum_round.h"
#include "parallel/crypto/x25519.h"

namespace trireme::crypto {

using Bytes = std::vector<uint8_t>;

enum class MessageKind : uint8_t { kAdvertise = 1, kKeyList, kShares, kInbox, kSurvivors, kConfirmation, kConfirmations, kReveal };
const char* name_of(MessageKind kind);  ///< "list of keys"

inline constexpr uint8_t kEverybody = 255;
inline constexpr size_t kFrameBytes = 2 * kKeyBytes + kTagBytes;  ///< an encrypted pair of shares

class MessageWriter {
 public:
  MessageWriter(MessageKind kind, const SumRound& round, size_t party);
  void put(std::span<const uint8_t> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void put(MemberSet set);
  /// Ends the message with the sender's signature, which covers `also` as well.
  Bytes sign(const SigningKey& key, std::span<const uint8_t> also = {});
  /// Ends the message with a checksum.
  Bytes checksum();
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

/// Reads one message. Every error is a PartyError that names `blamed`.
class MessageReader {
 public:
  /// Checks the message's first 34 bytes.
  MessageReader(MessageKind kind, const SumRound& round, size_t party, MemberSet blamed, std::span<const uint8_t> message);

  /// Takes the signature from the end and verifies that it is `member`'s.
  void verify_signature(size_t member, std::span<const uint8_t> also = {});
  /// Takes the checksum from the end and verifies it.
  void verify_checksum();

  std::span<const uint8_t> take(size_t bytes);
  template <size_t N>
  std::array<uint8_t, N> take() {
    std::array<uint8_t, N> value;
    std::ranges::copy(take(N), value.begin());
    return value;
  }
  MemberSet take_set();  ///< members of the roster only
  bool at_end() const { return next_ == message_.size(); }
  /// Refuses a message that has more bytes.
  void finish() const;
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const SumRound& round_;
  MessageKind kind_;
  MemberSet blamed_;
  std::span<const uint8_t> message_;
  size_t next_ = 0;
};

/// What a member advertises.
struct SumKeys {
  Point encryption{}, mask{};
  bool operator==(const SumKeys&) const = default;
};
/// An advertisement as the list of keys contains it.
struct SignedKeys {
  SumKeys keys;
  Signature signature{};
};
SignedKeys take_keys(MessageReader& reader);
void put_keys(MessageWriter& message, const SignedKeys& keys);
/// Errors: PartyError that names `blamed` unless `member` has signed these keys for this round.
void verify_keys(const SumRound& round, size_t member, MemberSet blamed, const SignedKeys& keys);

/// What a confirmation signs beside its own bytes.
std::array<uint8_t, 48> confirmed_text(const Hash& key_list, MemberSet with_shares, MemberSet with_masks);

}  // namespace trireme::crypto
