#include "parallel/crypto/secure_sum_round.h"

#include <algorithm>
#include <span>
#include <utility>

#include "parallel/crypto/aead.h"

namespace trireme::crypto {
namespace {

template <size_t N>
void add_number(Sha256& hash, uint64_t number) {
  std::array<uint8_t, N> bytes;
  put_little_endian(number, std::span(bytes));
  hash.update(bytes.data(), N);
}

void refuse_invalid(std::vector<PublicKey> roster, size_t threshold) {
  const size_t n = roster.size();
  if (n < 2 || n > kMaxSumMembers) throw ConfigError(concat("a secure sum of ", n, " members; allowed 2 to ", kMaxSumMembers));
  std::ranges::sort(roster);
  if (std::ranges::adjacent_find(roster) != roster.end()) throw ConfigError("two members of a secure sum have the same public key");
  if (threshold <= n / 2 || threshold > n)
    throw ConfigError(concat("invalid threshold ", threshold, " of a secure sum of ", n, " members; allowed ", n / 2 + 1, " to ", n));
}

}  // namespace

std::vector<size_t> MemberSet::members() const {
  std::vector<size_t> ids;
  for (uint64_t rest = bits_; rest != 0; rest &= rest - 1) ids.push_back(static_cast<size_t>(std::countr_zero(rest)));
  return ids;
}

std::string MemberSet::text() const {
  const std::vector<size_t> ids = members();
  if (ids.empty()) return "no members";
  std::string text = concat(ids.size() == 1 ? "member " : "members ", ids[0]);
  for (size_t i = 1; i < ids.size(); ++i) text += concat(i + 1 == ids.size() ? " and " : ", ", ids[i]);
  return text;
}

RoundAborted::RoundAborted(const std::string& phase, MemberSet present, size_t threshold)
    : Error(ExitCode::kIo, concat("secure sum: the round is aborted: of ", phase, " only ", present.text(), " sent a valid message; at least ",
                                  threshold, " members must")),
      members(present) {}

SumRound::SumRound(std::vector<PublicKey> roster, size_t threshold, const RoundName& name) : roster_(std::move(roster)), threshold_(threshold) {
  refuse_invalid(roster_, threshold);
  Sha256 hash;
  hash.update(std::string_view("trireme secure sum round\0", 25));
  hash.update(name.run.data(), name.run.size());
  add_number<8>(hash, name.number);
  add_number<4>(hash, name.attempt);
  add_number<1>(hash, threshold);
  add_number<1>(hash, size());
  for (const PublicKey& identity : roster_) hash.update(identity.data(), identity.size());
  digest_ = hash.finish();
}

}  // namespace trireme::crypto
