#pragma once
// What every party of a secure sum knows before a round begins, and the errors that name parties.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/crypto/sodium.h"

namespace trireme::crypto {

inline constexpr size_t kMaxSumMembers = 64;

/// A set of members, which are numbered by their positions in the roster.
class MemberSet {
 public:
  constexpr MemberSet() = default;
  /// Bit i stands for member i.
  explicit constexpr MemberSet(uint64_t bits) : bits_(bits) {}
  static constexpr MemberSet of(size_t member) { return MemberSet(uint64_t{1} << member); }
  /// Members 0 to n - 1, n at most 64.
  static constexpr MemberSet first(size_t n) { return MemberSet(n == 0 ? 0 : ~uint64_t{0} >> (kMaxSumMembers - n)); }

  constexpr uint64_t bits() const { return bits_; }
  constexpr size_t size() const { return static_cast<size_t>(std::popcount(bits_)); }
  constexpr bool contains(size_t member) const { return member < kMaxSumMembers && ((bits_ >> member) & 1) != 0; }
  constexpr bool includes(MemberSet other) const { return (other.bits_ & ~bits_) == 0; }
  constexpr MemberSet with(size_t member) const { return MemberSet(bits_ | of(member).bits_); }
  constexpr MemberSet without(MemberSet other) const { return MemberSet(bits_ & ~other.bits_); }
  constexpr MemberSet without(size_t member) const { return without(of(member)); }
  constexpr bool operator==(const MemberSet&) const = default;
  std::vector<size_t> members() const;  ///< ascending
  std::string text() const;             ///< "members 0, 2 and 5"

 private:
  uint64_t bits_ = 0;
};

/// A party has sent what the protocol does not allow, or what is not its own. `members` are those that may have done so; it is empty for the
/// coordinator.
struct PartyError : DataError {
  PartyError(MemberSet who, const std::string& what)
      : DataError(concat("secure sum: ", who.size() == 0 ? "the coordinator" : who.text(), ": ", what)), members(who) {}
  MemberSet members;
};

/// Fewer members than the threshold are left. Nothing is known against them, and another attempt with new keys may succeed.
struct RoundAborted : Error {
  RoundAborted(const std::string& phase, MemberSet present, size_t threshold);
  MemberSet members;  ///< those that are left
};

/// floor(2n/3) + 1, the smallest threshold at which a lying coordinator together with any third of the members, rounded up and less one, learns
/// nothing but the sum (Bonawitz et al., section 6.2). secure_sum.h has the reason.
constexpr size_t default_threshold(size_t members) { return 2 * members / 3 + 1; }

/// Identifies one attempt at one sum among all others.
struct RoundName {
  std::array<uint8_t, 32> run{};  ///< drawn at random at the start of a run
  uint64_t number = 0;            ///< number of the round in the run
  uint32_t attempt = 0;           ///< counts the rounds of this number that were aborted before this one
};

/// One attempt at one sum, as all parties know it.
class SumRound {
 public:
  /// `roster`: the members' Ed25519 identities. Errors: ConfigError unless there are 2 to 64 distinct ones and the threshold is floor(n/2) + 1 to n.
  /// At a lower threshold two disjoint groups of members could each confirm another result.
  SumRound(std::vector<PublicKey> roster, size_t threshold, const RoundName& name);

  size_t size() const { return roster_.size(); }
  size_t threshold() const { return threshold_; }
  MemberSet members() const { return MemberSet::first(size()); }
  const PublicKey& identity(size_t member) const { return roster_[member]; }
  /// SHA-256 of "trireme secure sum round\0", the run, the number (8 bytes, little endian), the attempt (4), the threshold (1), the number of members
  /// (1) and the roster. Every signature, derived key and frame of the round depends on it.
  const Hash& digest() const { return digest_; }

 private:
  std::vector<PublicKey> roster_;
  size_t threshold_;
  Hash digest_{};
};

}  // namespace trireme::crypto
