// Secure sums: bits of the sum, members that leave, coordinators and members that lie.
#include "parallel/crypto/secure_sum.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/check_throws.h"

namespace trireme::crypto {

using namespace trireme::test;

namespace {

using Values = std::vector<uint64_t>;

std::vector<SigningKey> sum_identities(size_t n) {
  std::vector<SigningKey> keys;
  for (size_t i = 0; i < n; ++i) keys.push_back(SigningKey::from_seed(std::vector<uint8_t>(kSeedBytes, static_cast<uint8_t>(i + 1))));
  return keys;
}

std::vector<PublicKey> roster_of(const std::vector<SigningKey>& keys) {
  std::vector<PublicKey> roster;
  for (const SigningKey& key : keys) roster.push_back(key.public_key());
  return roster;
}

MemberSet set_of(std::initializer_list<size_t> members) {
  MemberSet set;
  for (const size_t member : members) set = set.with(member);
  return set;
}

/// All parties of one round, whose identities are the same in every round.
struct SumParties {
  explicit SumParties(size_t n, const RoundName& name = {}, size_t threshold = 0)
      : identities(sum_identities(n)), round(roster_of(identities), threshold == 0 ? default_threshold(n) : threshold, name), coordinator(round) {
    for (size_t id = 0; id < n; ++id) members.emplace_back(round, id, identities[id]);
    masks.resize(n);
  }

  /// Each phase runs without the messages of the members of `absent`, and keeps the coordinator's message.
  void advertise(MemberSet absent = {}) {
    for (const size_t id : coordinator.members().without(absent).members()) coordinator.advertised(id, members[id].advertise());
    keys = coordinator.key_list();
  }
  void share(MemberSet absent = {}) {
    for (const size_t id : coordinator.members().without(absent).members()) coordinator.shared(id, members[id].share(keys));
    inboxes = coordinator.inboxes();
  }
  void mask(MemberSet absent = {}) {
    for (const size_t id : coordinator.members().without(absent).members()) {
      masks[id] = members[id].mask(inboxes[id]);
      coordinator.masked(id);
    }
    survivors = coordinator.survivors();
  }
  void confirm(MemberSet absent = {}) {
    for (const size_t id : coordinator.members().without(absent).members()) coordinator.confirmed(id, members[id].confirm(survivors));
    confirmations = coordinator.confirmations();
  }
  void reveal(MemberSet absent = {}) {
    for (const size_t id : coordinator.members().without(absent).members()) coordinator.revealed(id, members[id].reveal(confirmations));
  }

  /// The unmasked sum of the vectors of `unmask.summed()`.
  Values sum(const std::vector<Values>& vectors, const Unmask& unmask) const {
    Values total(vectors[0].size());
    for (const size_t id : unmask.summed().members()) {
      Values masked = vectors[id];
      masks[id].add(0, masked);
      for (size_t i = 0; i < total.size(); ++i) total[i] += masked[i];
    }
    unmask.remove(0, total);
    return total;
  }

  std::vector<SigningKey> identities;
  SumRound round;
  std::vector<SecureSumMember> members;
  SecureSumCoordinator coordinator;
  std::vector<MaskKeys> masks;
  Bytes keys, survivors, confirmations;
  std::vector<Bytes> inboxes;
};

constexpr int kPhases = 5;
constexpr std::array kPhaseNames{"public keys", "shares", "masked values", "confirmations", "revealed shares"};

/// Runs a round in which members of absent[p] leave before they send the message of phase p.
Unmask run_round(SumParties& parties, const std::array<MemberSet, kPhases>& absent = {}) {
  parties.advertise(absent[0]);
  parties.share(absent[1]);
  parties.mask(absent[2]);
  parties.confirm(absent[3]);
  parties.reveal(absent[4]);
  return parties.coordinator.unmask();
}

std::vector<Values> encoded_vectors(size_t n, size_t length) {
  std::mt19937_64 random(17);
  std::normal_distribution<double> normal;
  const FixedPoint format(24, n);
  std::vector<Values> vectors(n, Values(length));
  for (Values& vector : vectors)
    for (uint64_t& value : vector) value = format.encode(normal(random));
  return vectors;
}

Values plain_sum(const std::vector<Values>& vectors, MemberSet members) {
  Values sum(vectors[0].size());
  for (const size_t id : members.members())
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += vectors[id][i];
  return sum;
}

/// Chi-square of the bytes of `values` against uniform ones, less its degrees of freedom, in standard deviations.
double byte_excess(const Values& values) {
  std::vector<double> counts(256);
  for (const uint64_t value : values)
    for (int shift = 0; shift < 64; shift += 8) ++counts[(value >> shift) & 0xFF];
  const double expected = static_cast<double>(values.size()) / 32;
  double sum = 0;
  for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
  return (sum - 255) / std::sqrt(2.0 * 255);
}

template <class Body>
void check_blames(MemberSet who, Body&& body, const std::vector<std::string>& parts = {}) {
  try {
    body();
  } catch (const PartyError& error) {
    CAPTURE(error.what());
    CHECK(error.members == who);
    for (const std::string& part : parts) CHECK(std::string(error.what()).find(part) != std::string::npos);
    CHECK(std::string(error.what()).find(who.size() == 0 ? "the coordinator" : who.text()) != std::string::npos);
    return;
  }
  FAIL("nothing was thrown");
}

constexpr MemberSet kLyingCoordinator;

/// `message` with the checksum that belongs to it: what a lying coordinator sends.
Bytes with_valid_checksum(Bytes message) {
  message.resize(message.size() - sizeof(Hash));
  const Hash sum = sha256({reinterpret_cast<const char*>(message.data()), message.size()});
  message.insert(message.end(), sum.begin(), sum.end());
  return message;
}

/// `message`, changed and then signed again by `key`: what a lying member sends.
Bytes with_valid_signature(Bytes message, const SigningKey& key) {
  message.resize(message.size() - sizeof(Signature));
  std::string text("trireme secure sum message\0", 27);
  text.append(reinterpret_cast<const char*>(message.data()), message.size());
  const Signature signature = key.sign(text);
  message.insert(message.end(), signature.begin(), signature.end());
  return message;
}

Bytes flipped(Bytes message, size_t bit) {
  message[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  return message;
}

constexpr size_t kHeadBytes = 34, kSetBytes = 8;

Bytes survivors_message(const SumRound& round, MemberSet set) {
  MessageWriter message(MessageKind::kSurvivors, round, kEverybody);
  message.put(set);
  return message.checksum();
}

Bytes confirmations_message(const SumRound& round, MemberSet set, const std::vector<Bytes>& confirmations) {
  MessageWriter message(MessageKind::kConfirmations, round, kEverybody);
  message.put(set);
  for (const size_t id : set.members()) message.put(std::span(confirmations[id]).last(sizeof(Signature)));
  return message.checksum();
}

/// What `sender` has encrypted for `receiver` in `shares`, a message for all members.
std::span<const uint8_t> frame_in(const Bytes& shares, size_t sender, size_t receiver) {
  return std::span(shares).subspan(kHeadBytes + kKeyBytes + kSetBytes + (receiver - (receiver > sender ? 1 : 0)) * kFrameBytes, kFrameBytes);
}

Bytes inbox_message(const SumRound& round, size_t receiver, MemberSet set, const std::vector<Bytes>& shares) {
  MessageWriter message(MessageKind::kInbox, round, receiver);
  message.put(set.without(receiver));
  for (const size_t sender : set.without(receiver).members()) message.put(frame_in(shares[sender], sender, receiver));
  return message.checksum();
}

/// A list of keys from messages 1, which are not verified.
Bytes key_list_message(const SumRound& round, const std::vector<Bytes>& advertised, MemberSet set) {
  MessageWriter message(MessageKind::kKeyList, round, kEverybody);
  message.put(set);
  for (const size_t id : set.members()) message.put(std::span(advertised[id]).subspan(kHeadBytes));
  return message.checksum();
}

std::vector<Bytes> advertised_by_all(SumParties& parties) {
  std::vector<Bytes> messages;
  for (SecureSumMember& member : parties.members) messages.push_back(member.advertise());
  return messages;
}

Key key_from_digits(const std::string& digits) {
  Key key;
  REQUIRE(from_hex(digits, {key.data(), kKeyBytes}));
  return key;
}

RoundName attempt_of(uint64_t number, uint32_t attempt) {
  RoundName name;
  name.number = number;
  name.attempt = attempt;
  return name;
}

}  // namespace

TEST_CASE("secure sum: it is the plain fixed-point sum, bit for bit, of 2 to 16 members") {
  if (!has_sodium()) return;
  for (size_t n = 2; n <= 16; ++n) {
    CAPTURE(n);
    const std::vector<Values> vectors = encoded_vectors(n, 1003);
    SumParties parties(n);
    const Unmask unmask = run_round(parties);
    CHECK(unmask.summed() == MemberSet::first(n));
    CHECK(parties.sum(vectors, unmask) == plain_sum(vectors, MemberSet::first(n)));
    CHECK(parties.members[n - 1].summed() == MemberSet::first(n));
    CHECK(parties.members[n - 1].has_revealed());
  }
}

TEST_CASE("secure sum: 64 members, of whom a third leaves") {
  if (!has_sodium()) return;
  const std::vector<Values> vectors = encoded_vectors(64, 100);
  SumParties parties(64);
  const MemberSet gone(0x8421'0842'1084'2185U & ~uint64_t{1});
  const Unmask unmask = run_round(parties, {set_of({0}), set_of({1}), gone, set_of({3}), set_of({4})});
  CHECK(parties.sum(vectors, unmask) == plain_sum(vectors, MemberSet::first(64).without(set_of({0, 1})).without(gone)));
}

TEST_CASE("secure sum: members that leave in any phase are recovered from, or the round is aborted below the threshold") {
  if (!has_sodium()) return;
  for (const auto& [n, threshold] : {std::pair<size_t, size_t>(2, 2), {4, 3}, {5, 3}}) {
    const std::vector<Values> vectors = encoded_vectors(n, 37);
    // Member i leaves in phase p; another one, or the same, in another phase or the same.
    for (size_t one = 0; one < n; ++one)
      for (int p = 0; p < kPhases; ++p)
        for (size_t other = one; other < n; ++other)
          for (int q = 0; q < kPhases; ++q) {
            if (other == one && q != p) continue;
            INFO("member " << one << " leaves in phase " << p << ", member " << other << " in phase " << q);
            std::array<MemberSet, kPhases> absent;
            absent[static_cast<size_t>(p)] = absent[static_cast<size_t>(p)].with(one);
            absent[static_cast<size_t>(q)] = absent[static_cast<size_t>(q)].with(other);
            MemberSet left = MemberSet::first(n), summed;
            const char* aborted = nullptr;
            for (size_t phase = 0; phase < kPhases && aborted == nullptr; ++phase) {
              left = left.without(absent[phase]);
              if (phase == 2) summed = left;
              if (left.size() < threshold) aborted = kPhaseNames[phase];
            }
            SumParties parties(n, {}, threshold);
            if (aborted != nullptr) {
              check_throws<RoundAborted>([&] { run_round(parties, absent); }, {aborted, left.text(), concat("at least ", threshold)});
              continue;
            }
            const Unmask unmask = run_round(parties, absent);
            CHECK(unmask.summed() == summed);
            CHECK(parties.sum(vectors, unmask) == plain_sum(vectors, summed));
          }
  }
}

TEST_CASE("secure sum: an aborted phase may still be completed by a late message") {
  if (!has_sodium()) return;
  SumParties parties(3);
  const Bytes late = parties.members[1].advertise();
  CHECK_THROWS_AS(parties.advertise(set_of({1})), RoundAborted);
  CHECK(parties.coordinator.arrived() == set_of({0, 2}));
  parties.coordinator.advertised(1, late);
  parties.keys = parties.coordinator.key_list();
  parties.share();
  check_blames(set_of({1}), [&] { parties.coordinator.advertised(1, late); }, {"another phase"});
}

TEST_CASE("secure sum: a masked vector is uniform, as are its differences from others, which the plain vector is not") {
  if (!has_sodium()) return;
  const std::vector<Values> vectors = encoded_vectors(3, 40'000);
  SumParties parties(3);
  run_round(parties);
  std::vector<Values> masked = vectors;
  for (size_t id = 0; id < 3; ++id) parties.masks[id].add(0, masked[id]);
  CHECK(byte_excess(vectors[0]) > 1000);
  CHECK(std::abs(byte_excess(masked[0])) < 6);
  Values difference = masked[0], partial = masked[0];
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= masked[1][i], partial[i] += masked[1][i] + masked[2][i];
  CHECK(std::abs(byte_excess(difference)) < 6);
  CHECK(std::abs(byte_excess(partial)) < 6);  // self masks hide the sum of all masked vectors
}

TEST_CASE("secure sum: words of a mask are those of ChaCha20 at the element's index") {
  if (!has_sodium()) return;
  // Blocks 0 and 1 of RFC 8439, appendix A.1, test vectors 1 and 2: a key and a nonce of zeros.
  MaskKeys masks;
  masks.insert(Key(), false);
  Values values(16);
  masks.add(0, values);
  CHECK(values[0] == 0x903d'f1a0'ade0'b876U);
  CHECK(values[1] == 0x28bd'8653'e56a'5d40U);
  CHECK(values[8] == 0x7a38'5155'bee7'079fU);
  MaskKeys opposite;
  opposite.insert(Key(), true);
  opposite.add(0, values);
  CHECK(values == Values(16));
}

TEST_CASE("secure sum: any split of the vector into ranges has the same masks") {
  if (!has_sodium()) return;
  SumParties parties(3);
  const Unmask unmask = run_round(parties);
  Values whole(3000);
  parties.masks[1].add(0, whole);
  for (const size_t first : {0, 1, 7, 8, 9, 503, 504, 505, 511, 512, 513, 1024, 2999, 3000})
    for (const size_t count : {0, 1, 2, 7, 8, 9, 505, 511, 512, 513, 1025, 3000}) {
      if (first + count > whole.size()) continue;
      CAPTURE(first, count);
      Values part(count);
      parties.masks[1].add(first, part);
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + static_cast<int64_t>(first)));
    }
  Values far(20), part(13);
  constexpr uint64_t kFar = (uint64_t{1} << 40) + 3;
  unmask.remove(kFar, far);
  unmask.remove(kFar + 7, part);
  CHECK(std::equal(part.begin(), part.end(), far.begin() + 7));
}

TEST_CASE("secure sum: keys of masks agree within a pair, and differ between pairs, rounds and purposes") {
  if (!has_sodium()) return;
  const SumRound round = SumParties(3).round, next = SumParties(3, attempt_of(0, 1)).round;
  std::array<Key, 3> secrets;
  for (Key& secret : secrets) draw({secret.data(), kKeyBytes});
  const auto shared = [&](const SumRound& in, size_t own, size_t other) {
    Key key;
    REQUIRE(pair_mask_key(in, secrets[own], public_point(secrets[own]), public_point(secrets[other]), key));
    return key;
  };
  CHECK(equal(shared(round, 0, 1), shared(round, 1, 0)));
  CHECK_FALSE(equal(shared(round, 0, 1), shared(round, 0, 2)));
  CHECK_FALSE(equal(shared(round, 0, 1), shared(next, 0, 1)));
  CHECK_FALSE(equal(self_mask_key(round, secrets[0]), self_mask_key(next, secrets[0])));
  CHECK_FALSE(equal(self_mask_key(round, secrets[0]), self_mask_commitment(round, secrets[0])));
  CHECK(subtracts_pair_mask(1, 0) != subtracts_pair_mask(0, 1));
}

TEST_CASE("secure sum: products of X25519 are those of RFC 7748, and points of small order are refused") {
  if (!has_sodium()) return;
  const Key alice = key_from_digits("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
  const Key bob = key_from_digits("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
  CHECK(hex(public_point(alice)) == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
  Key product;
  for (const auto& [own, other] : {std::pair(&alice, &bob), std::pair(&bob, &alice)}) {
    REQUIRE(multiply(*own, public_point(*other), product));
    CHECK(hex({product.data(), kKeyBytes}) == "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
  }
  CHECK_FALSE(multiply(alice, Point{}, product));
  CHECK_FALSE(multiply(alice, Point{1}, product));
}

// ---- a coordinator that lies ----

TEST_CASE("secure sum: members refuse advertised keys that their owner has not signed for this round") {
  if (!has_sodium()) return;
  const auto list_with = [](SumParties& parties, const auto& change) {
    std::vector<Bytes> advertised = advertised_by_all(parties);
    change(advertised);
    return key_list_message(parties.round, advertised, parties.round.members());
  };
  SumParties changed(4), middle(4), swapped(4), earlier(4), later(4, attempt_of(0, 1));
  const Bytes of_changed = list_with(changed, [](auto& advertised) { advertised[1][kHeadBytes + kPointBytes + 5] ^= 1; });
  check_blames(kLyingCoordinator, [&] { changed.members[0].share(of_changed); }, {"signature", "member 1"});
  // The coordinator puts a key pair of its own between the members.
  const Bytes of_middle = list_with(middle, [](auto& advertised) {
    Key secret;
    draw({secret.data(), kKeyBytes});
    std::ranges::copy(public_point(secret), advertised[1].begin() + kHeadBytes);
    advertised[1] = with_valid_signature(advertised[1], SigningKey::generate());
  });
  check_blames(kLyingCoordinator, [&] { middle.members[0].share(of_middle); }, {"signature", "member 1"});
  const Bytes of_swapped = list_with(swapped, [](auto& advertised) { std::swap(advertised[1], advertised[2]); });
  check_blames(kLyingCoordinator, [&] { swapped.members[0].share(of_swapped); }, {"signature", "member 1"});
  // Keys of an aborted attempt, whose signatures bind that attempt.
  const std::vector<Bytes> old = advertised_by_all(earlier);
  const Bytes of_later = list_with(later, [&](auto& advertised) { advertised[1] = old[1]; });
  check_blames(kLyingCoordinator, [&] { later.members[0].share(of_later); }, {"signature", "member 1"});
}

TEST_CASE("secure sum: members refuse lists without their own keys or with fewer members than the threshold") {
  if (!has_sodium()) return;
  SumParties parties(5);
  std::vector<Bytes> advertised = advertised_by_all(parties);
  const Bytes without = key_list_message(parties.round, advertised, set_of({0, 1, 2, 3}));
  check_blames(kLyingCoordinator, [&] { parties.members[4].share(without); }, {"own keys"});
  const Bytes few = key_list_message(parties.round, advertised, set_of({0, 1, 2}));
  check_blames(kLyingCoordinator, [&] { parties.members[0].share(few); }, {"3 members", "at least 4"});
  // Other keys of the member itself, correctly signed: of a process with the same identity, or of the past.
  SumParties twin(5);
  advertised[1] = twin.members[1].advertise();
  const Bytes foreign = key_list_message(parties.round, advertised, parties.round.members());
  check_blames(kLyingCoordinator, [&] { parties.members[1].share(foreign); }, {"own keys"});
}

TEST_CASE("secure sum: members refuse shares from fewer members than the threshold, and sets that leave them out") {
  if (!has_sodium()) return;
  SumParties parties(5);
  parties.advertise();
  std::vector<Bytes> shares;
  for (size_t id = 0; id < 5; ++id) shares.push_back(parties.members[id].share(parties.keys));
  for (size_t id = 0; id < 5; ++id) parties.coordinator.shared(id, shares[id]);
  parties.inboxes = parties.coordinator.inboxes();
  const Bytes few = inbox_message(parties.round, 0, set_of({0, 1, 2}), shares);
  check_blames(kLyingCoordinator, [&] { parties.members[0].mask(few); }, {"3 members", "at least 4"});
  for (const size_t id : {1, 2, 3}) parties.members[id].mask(parties.inboxes[id]);
  check_blames(kLyingCoordinator, [&] { parties.members[1].confirm(survivors_message(parties.round, set_of({1, 2, 3}))); }, {"3 members"});
  check_blames(kLyingCoordinator, [&] { parties.members[2].confirm(survivors_message(parties.round, set_of({0, 1, 3, 4}))); }, {"left out"});
  check_blames(kLyingCoordinator, [&] { parties.members[3].confirm(survivors_message(parties.round, MemberSet::first(6))); }, {"roster"});
  // A member that has sent no shares cannot have masked values.
  SumParties other(5);
  other.advertise();
  other.share(set_of({4}));
  other.members[0].mask(other.inboxes[0]);
  check_blames(kLyingCoordinator, [&] { other.members[0].confirm(survivors_message(other.round, MemberSet::first(5))); }, {"cannot be left"});
}

TEST_CASE("secure sum: no member reveals shares if the coordinator has told members of different sets") {
  if (!has_sodium()) return;
  SumParties parties(5);
  parties.advertise();
  parties.share();
  parties.mask();
  // Member 4 has left to one half and is present to the other: both shares of member 4 would be revealed.
  const MemberSet all = MemberSet::first(5), four = MemberSet::first(4);
  std::vector<Bytes> confirmed;
  for (size_t id = 0; id < 5; ++id) confirmed.push_back(parties.members[id].confirm(survivors_message(parties.round, id < 2 ? four : all)));
  check_blames(kLyingCoordinator, [&] { parties.members[0].reveal(confirmations_message(parties.round, four, confirmed)); },
               {"signature", "member 2"});
  check_blames(kLyingCoordinator, [&] { parties.members[2].reveal(confirmations_message(parties.round, all, confirmed)); },
               {"signature", "member 0"});
  // Those who have signed the same set are too few.
  check_blames(kLyingCoordinator,
               [&] {
                 parties.members[3].reveal(confirmations_message(parties.round, set_of({2, 3, 4}), confirmed));
               },
               {"3 members"});
  check_blames(kLyingCoordinator, [&] { parties.members[1].reveal(confirmations_message(parties.round, all, confirmed)); }, {"cannot be left"});
  CHECK_FALSE(parties.members[0].has_revealed());
}

TEST_CASE("secure sum: shares do not decrypt if the coordinator has sent members different lists of keys") {
  if (!has_sodium()) return;
  SumParties parties(5);
  const std::vector<Bytes> advertised = advertised_by_all(parties);
  const MemberSet all = MemberSet::first(5), four = MemberSet::first(4);
  std::vector<Bytes> shares;
  for (size_t id = 0; id < 5; ++id) shares.push_back(parties.members[id].share(key_list_message(parties.round, advertised, id == 0 ? four : all)));
  check_blames(set_of({1}), [&] { parties.members[0].mask(inbox_message(parties.round, 0, four, shares)); }, {"another list of keys"});
  check_blames(set_of({0}), [&] { parties.members[1].mask(inbox_message(parties.round, 1, all, shares)); }, {"another list of keys"});
  parties.members[2].mask(inbox_message(parties.round, 2, set_of({1, 2, 3, 4}), shares));
}

TEST_CASE("secure sum: no member reveals shares if members have got shares from different sets") {
  if (!has_sodium()) return;
  SumParties parties(5);
  parties.advertise();
  std::vector<Bytes> shares;
  for (SecureSumMember& member : parties.members) shares.push_back(member.share(parties.keys));
  for (size_t id = 0; id < 5; ++id) parties.coordinator.shared(id, shares[id]);
  parties.inboxes = parties.coordinator.inboxes();
  parties.inboxes[0] = inbox_message(parties.round, 0, MemberSet::first(4), shares);
  std::vector<Bytes> confirmed;
  for (size_t id = 0; id < 5; ++id) parties.members[id].mask(parties.inboxes[id]);
  for (size_t id = 0; id < 5; ++id)
    confirmed.push_back(id < 4 ? parties.members[id].confirm(survivors_message(parties.round, MemberSet::first(4))) : Bytes());
  const Bytes confirmations = confirmations_message(parties.round, MemberSet::first(4), confirmed);
  check_blames(kLyingCoordinator, [&] { parties.members[0].reveal(confirmations); }, {"signature", "member 1"});
  check_blames(kLyingCoordinator, [&] { parties.members[1].reveal(confirmations); }, {"signature", "member 0"});
}

TEST_CASE("secure sum: a member answers each phase once, so that it never reveals both shares of a member") {
  if (!has_sodium()) return;
  SumParties parties(5);
  parties.advertise();
  parties.share();
  parties.mask(set_of({4}));
  std::vector<Bytes> first;
  for (size_t id = 0; id < 4; ++id) first.push_back(parties.members[id].confirm(parties.survivors));
  first.emplace_back();
  const Bytes revealed = parties.members[0].reveal(confirmations_message(parties.round, MemberSet::first(4), first));
  // One share of each member: 4 of self masks, 1 of a mask key.
  CHECK(revealed.size() == kHeadBytes + 2 * kSetBytes + 5 * kKeyBytes + sizeof(Signature));
  CHECK(parties.members[0].has_revealed());
  const Bytes other = survivors_message(parties.round, MemberSet::first(5));
  check_blames(kLyingCoordinator, [&] { parties.members[0].reveal(confirmations_message(parties.round, MemberSet::first(4), first)); }, {"twice"});
  check_blames(kLyingCoordinator, [&] { parties.members[0].confirm(other); }, {"twice"});
  check_blames(kLyingCoordinator, [&] { parties.members[1].confirm(other); }, {"twice"});
  // Being asked twice has ended the round for member 1.
  check_blames(kLyingCoordinator, [&] { parties.members[1].reveal(confirmations_message(parties.round, MemberSet::first(4), first)); }, {"twice"});
  check_blames(kLyingCoordinator, [&] { parties.members[2].mask(parties.inboxes[2]); }, {"order"});
  check_blames(kLyingCoordinator, [&] { parties.members[3].share(parties.keys); }, {"order"});
  check_blames(kLyingCoordinator, [&] { parties.members[3].advertise(); }, {"order"});
}

TEST_CASE("secure sum: shares that are revealed for one member are never of both secrets") {
  if (!has_sodium()) return;
  SumParties parties(6);
  parties.advertise();
  parties.share();
  parties.mask(set_of({2}));
  parties.confirm();
  const Bytes message = parties.members[1].reveal(parties.confirmations);
  const auto set_at = [&](size_t offset) { return MemberSet(message[offset]); };
  CHECK(set_at(kHeadBytes) == set_of({0, 1, 3, 4, 5}));
  CHECK(set_at(kHeadBytes + kSetBytes + 5 * kKeyBytes) == set_of({2}));
}

TEST_CASE("secure sum: messages of another round, attempt, run or roster are refused by all parties") {
  if (!has_sodium()) return;
  RoundName other_run;
  other_run.run[31] = 1;
  for (const RoundName& name : {attempt_of(1, 0), attempt_of(0, 1), other_run}) {
    SumParties then(3), now(3, name);
    for (SumParties* parties : {&then, &now}) {
      std::vector<Bytes> advertised = advertised_by_all(*parties);
      if (parties == &now) check_blames(set_of({0}), [&] { now.coordinator.advertised(0, then.keys); });
      for (size_t id = 0; id < 3; ++id) parties->coordinator.advertised(id, advertised[id]);
      parties->keys = parties->coordinator.key_list();
    }
    check_blames(kLyingCoordinator, [&] { now.members[0].share(then.keys); }, {"another round"});
    const Bytes shares = then.members[1].share(then.keys);
    check_blames(set_of({1}), [&] { now.coordinator.shared(1, shares); }, {"another round"});
    // The same with the head of the current round: signatures bind the round as well.
    Bytes rewritten = shares;
    std::ranges::copy(now.round.digest(), rewritten.begin() + 1);
    check_blames(set_of({1}), [&] { now.coordinator.shared(1, rewritten); }, {"signature"});
  }
  CHECK(SumParties(3, {}, 2).round.digest() != SumParties(3, {}, 3).round.digest());
  CHECK(SumParties(3).round.digest() != SumParties(4, {}, 3).round.digest());
}

TEST_CASE("secure sum: confirmations of an earlier attempt do not count in a later one") {
  if (!has_sodium()) return;
  SumParties then(3), now(3, attempt_of(0, 1));
  std::vector<Bytes> old(3);
  for (SumParties* parties : {&then, &now}) {
    parties->advertise();
    parties->share();
    parties->mask();
    for (size_t id = 0; id < 3; ++id) {
      const Bytes confirmed = parties->members[id].confirm(parties->survivors);
      if (parties == &then)
        old[id] = confirmed;
      else
        parties->coordinator.confirmed(id, confirmed);
    }
  }
  check_blames(kLyingCoordinator, [&] { now.members[0].reveal(confirmations_message(now.round, MemberSet::first(3), old)); }, {"signature"});
}

TEST_CASE("secure sum: shares of as many members as the threshold give a self mask, and of fewer do not") {
  if (!has_sodium()) return;
  SumParties parties(4);
  parties.advertise();
  std::vector<Bytes> shares;
  for (SecureSumMember& member : parties.members) shares.push_back(member.share(parties.keys));
  for (size_t id = 0; id < 4; ++id) parties.coordinator.shared(id, shares[id]);
  parties.inboxes = parties.coordinator.inboxes();
  parties.mask();
  parties.confirm();
  std::vector<Share> of_2;
  for (size_t id = 0; id < 4; ++id) {
    const Bytes revealed = parties.members[id].reveal(parties.confirmations);
    of_2.push_back({static_cast<uint8_t>(id + 1), {}});
    std::copy_n(revealed.begin() + kHeadBytes + kSetBytes + 2 * kKeyBytes, kKeyBytes, of_2.back().value.data());
  }
  const auto gives_the_seed = [&](std::span<const Share> some) {
    const Key commitment = self_mask_commitment(parties.round, combine(some));
    return std::equal(commitment.data(), commitment.data() + kKeyBytes, shares[2].begin() + kHeadBytes);
  };
  CHECK(gives_the_seed(std::span(of_2).first(3)));
  CHECK(gives_the_seed(std::span(of_2).last(3)));
  CHECK_FALSE(gives_the_seed(std::span(of_2).first(2)));
  CHECK_FALSE(gives_the_seed(std::span(of_2).last(2)));
}

// ---- members that lie ----

TEST_CASE("secure sum: the coordinator refuses keys that are copied, weak, or another member's, and names the members") {
  if (!has_sodium()) return;
  SumParties parties(4);
  std::vector<Bytes> advertised = advertised_by_all(parties);
  parties.coordinator.advertised(1, advertised[1]);
  check_blames(set_of({2}), [&] { parties.coordinator.advertised(2, advertised[1]); }, {"another member"});
  check_blames(set_of({1}), [&] { parties.coordinator.advertised(1, advertised[1]); }, {"already"});
  const auto changed = [&](size_t to, std::span<const uint8_t> point) {
    Bytes message = advertised[2];
    std::ranges::copy(point, message.begin() + static_cast<int64_t>(to));
    return with_valid_signature(message, parties.identities[2]);
  };
  const std::span<const uint8_t> copied = std::span<const uint8_t>(advertised[1]).subspan(kHeadBytes + kPointBytes, kPointBytes);
  check_blames(set_of({1, 2}), [&] { parties.coordinator.advertised(2, changed(kHeadBytes, copied)); }, {"equal"});
  check_blames(set_of({1, 2}), [&] { parties.coordinator.advertised(2, changed(kHeadBytes + kPointBytes, copied)); }, {"equal"});
  check_blames(set_of({2}), [&] {
    parties.coordinator.advertised(2, changed(kHeadBytes, std::span(advertised[2]).subspan(kHeadBytes + kPointBytes, kPointBytes)));
  });
  check_blames(set_of({2}), [&] { parties.coordinator.advertised(2, changed(kHeadBytes, Point{})); }, {"small order"});
  check_blames(set_of({2}), [&] { parties.coordinator.advertised(2, changed(kHeadBytes + kPointBytes, Point{1})); }, {"small order"});
  // A coordinator that passes such keys on is of no use to it.
  advertised[2] = changed(kHeadBytes, copied);
  check_blames(set_of({1, 2}), [&] { parties.members[0].share(key_list_message(parties.round, advertised, MemberSet::first(4))); }, {"equal"});
  advertised[2] = changed(kHeadBytes, Point{});
  check_blames(set_of({2}), [&] { parties.members[1].share(key_list_message(parties.round, advertised, MemberSet::first(4))); }, {"small order"});
  advertised[2] = changed(kHeadBytes + kPointBytes, Point{1});
  CHECK_THROWS_AS(parties.members[2].share(key_list_message(parties.round, advertised, MemberSet::first(4))), PartyError);
}

TEST_CASE("secure sum: a frame of shares that was changed, swapped or reflected does not open, and its sender is named") {
  if (!has_sodium()) return;
  const auto run_with = [](const auto& change) {
    auto parties = std::make_unique<SumParties>(3);
    parties->advertise();
    std::vector<Bytes> shares;
    for (SecureSumMember& member : parties->members) shares.push_back(member.share(parties->keys));
    change(shares);
    for (size_t id = 0; id < 3; ++id) parties->coordinator.shared(id, with_valid_signature(shares[id], parties->identities[id]));
    parties->inboxes = parties->coordinator.inboxes();
    return parties;
  };
  constexpr size_t kFirstFrame = kHeadBytes + kKeyBytes + kSetBytes, kSecondFrame = kFirstFrame + kFrameBytes;
  const auto changed = run_with([](auto& shares) { shares[1][kFirstFrame] ^= 1; });
  check_blames(set_of({1}), [&] { changed->members[0].mask(changed->inboxes[0]); }, {"decrypted"});
  changed->members[2].mask(changed->inboxes[2]);
  const auto swapped = run_with(
      [](auto& shares) { std::swap_ranges(shares[1].begin() + kFirstFrame, shares[1].begin() + kSecondFrame, shares[1].begin() + kSecondFrame); });
  for (const size_t id : {0, 2}) check_blames(set_of({1}), [&] { swapped->members[id].mask(swapped->inboxes[id]); }, {"decrypted"});
  // Member 1 returns to member 0 what it has received from it.
  const auto reflected = run_with([](auto& shares) { std::copy_n(shares[0].begin() + kFirstFrame, kFrameBytes, shares[1].begin() + kFirstFrame); });
  check_blames(set_of({1}), [&] { reflected->members[0].mask(reflected->inboxes[0]); }, {"decrypted"});
}

TEST_CASE("secure sum: no two frames of shares are encrypted with the same keystream") {
  if (!has_sodium()) return;
  SumParties parties(4);
  parties.advertise();
  std::vector<Bytes> shares, streams;
  for (SecureSumMember& member : parties.members) shares.push_back(member.share(parties.keys));
  for (size_t id = 0; id < 4; ++id) parties.coordinator.shared(id, shares[id]);
  parties.inboxes = parties.coordinator.inboxes();
  parties.mask();
  parties.confirm();
  // The revealed shares of self masks are the first 32 bytes of the encrypted texts.
  for (size_t receiver = 0; receiver < 4; ++receiver) {
    const Bytes revealed = parties.members[receiver].reveal(parties.confirmations);
    for (size_t sender = 0; sender < 4; ++sender) {
      if (sender == receiver) continue;
      Bytes stream(kKeyBytes);
      for (size_t i = 0; i < kKeyBytes; ++i)
        stream[i] = frame_in(shares[sender], sender, receiver)[i] ^ revealed[kHeadBytes + kSetBytes + sender * kKeyBytes + i];
      streams.push_back(stream);
    }
  }
  std::ranges::sort(streams);
  CHECK(streams.size() == 12);
  CHECK(std::ranges::adjacent_find(streams) == streams.end());
}

TEST_CASE("secure sum: a secret that differs from the announced one is found, and those who may have lied are named") {
  if (!has_sodium()) return;
  // A wrong share of a self mask, of a dropped member's mask key, and a commitment to another self mask.
  const auto revealed_with = [](size_t byte) {
    SumParties parties(4);
    parties.advertise();
    parties.share();
    parties.mask(set_of({3}));
    parties.confirm();
    for (size_t id = 0; id < 3; ++id) {
      Bytes message = parties.members[id].reveal(parties.confirmations);
      if (id == 1) message[byte] ^= 1;
      parties.coordinator.revealed(id, with_valid_signature(message, parties.identities[id]));
    }
    parties.coordinator.unmask();
  };
  constexpr size_t kShareOf2 = kHeadBytes + kSetBytes + 2 * kKeyBytes, kShareOf3 = kShareOf2 + kKeyBytes + kSetBytes;
  check_blames(set_of({0, 1, 2}), [&] { revealed_with(kShareOf2 + 7); }, {"member 2's secret"});
  check_blames(set_of({0, 1, 2, 3}), [&] { revealed_with(kShareOf3 + 7); }, {"member 3's secret"});

  SumParties parties(3);
  parties.advertise();
  for (size_t id = 0; id < 3; ++id) {
    Bytes message = parties.members[id].share(parties.keys);
    if (id == 1) message[kHeadBytes] ^= 1;
    parties.coordinator.shared(id, with_valid_signature(message, parties.identities[id]));
  }
  parties.inboxes = parties.coordinator.inboxes();
  parties.mask();
  parties.confirm();
  parties.reveal();
  check_blames(set_of({0, 1, 2}), [&] { parties.coordinator.unmask(); }, {"member 1's secret"});
}

TEST_CASE("secure sum: one wrong share of a secret is found and replaced if there is one share more than the threshold") {
  if (!has_sodium()) return;
  const std::vector<Values> vectors = encoded_vectors(5, 50);
  for (const size_t liar : {0, 1, 2, 3}) {
    CAPTURE(liar);
    SumParties parties(5, {}, 3);
    parties.advertise();
    parties.share();
    parties.mask(set_of({4}));
    parties.confirm();
    for (size_t id = 0; id < 4; ++id) {
      Bytes message = parties.members[id].reveal(parties.confirmations);
      if (id == liar) message[kHeadBytes + kSetBytes + 2 * kKeyBytes] ^= 1;                      // of member 2's self mask
      if (id == liar) message[kHeadBytes + 2 * kSetBytes + 4 * kKeyBytes + kKeyBytes - 1] ^= 1;  // of member 4's mask key
      parties.coordinator.revealed(id, with_valid_signature(message, parties.identities[id]));
    }
    const Unmask unmask = parties.coordinator.unmask();
    CHECK(parties.sum(vectors, unmask) == plain_sum(vectors, MemberSet::first(4)));
    REQUIRE(unmask.wrong_shares().size() == (liar < 3 ? 2 : 0));  // the share of member 3 is not needed
    for (size_t i = 0; i < unmask.wrong_shares().size(); ++i) {
      CHECK(unmask.wrong_shares()[i].owner == (i == 0 ? 2 : 4));
      CHECK(unmask.wrong_shares()[i].revealer == liar);
    }
  }
}

TEST_CASE("secure sum: the coordinator refuses shares for other sets, messages of others, and whoever has left") {
  if (!has_sodium()) return;
  SumParties parties(5);
  parties.advertise(set_of({4}));
  const Bytes of_0 = parties.members[0].share(parties.keys), of_1 = parties.members[1].share(parties.keys);
  check_blames(set_of({1}), [&] { parties.coordinator.shared(1, of_0); }, {"another member"});
  check_blames(set_of({4}), [&] { parties.coordinator.shared(4, of_0); }, {"not part of the round"});
  check_blames(set_of({0}), [&] { parties.coordinator.confirmed(0, of_0); }, {"another phase"});
  Bytes other_set = of_0;
  other_set[kHeadBytes + kKeyBytes] = 0b10110;
  check_blames(set_of({0}), [&] { parties.coordinator.shared(0, with_valid_signature(other_set, parties.identities[0])); }, {"all other members"});
  parties.coordinator.shared(0, of_0);
  parties.coordinator.shared(1, of_1);
  for (const size_t id : {2, 3}) parties.coordinator.shared(id, parties.members[id].share(parties.keys));
  parties.inboxes = parties.coordinator.inboxes();
  CHECK(parties.inboxes[4].empty());
  parties.mask();
  parties.confirm();
  Bytes revealed = parties.members[0].reveal(parties.confirmations);
  revealed[kHeadBytes] = 0b0111;
  check_blames(set_of({0}), [&] { parties.coordinator.revealed(0, with_valid_signature(revealed, parties.identities[0])); }, {"not those"});
}

// ---- changed bits ----

namespace {

/// How many of the messages with one flipped bit the receiver takes; also messages that are shorter or longer.
template <class Receive>
int accepted_changes(const Bytes& message, size_t step, const Receive& receive) {
  std::vector<Bytes> changed{Bytes(), Bytes(message.begin(), message.end() - 1), Bytes(message.begin(), message.begin() + kHeadBytes)};
  changed.push_back(message);
  changed.back().push_back(0);
  for (size_t bit = 0; bit < 8 * message.size(); bit += step) changed.push_back(flipped(message, bit));
  int accepted = 0;
  for (const Bytes& bytes : changed) try {
      receive(bytes);
      ++accepted;
    } catch (const PartyError&) {
    }
  return accepted;
}

/// For messages to members, of which each change needs a round of its own. `until` runs the round up to the message and returns it.
template <class Until, class Receive>
int accepted_by_member(size_t step, const Until& until, const Receive& receive, Bytes (*repair)(Bytes) = nullptr) {
  SumParties parties(2);
  const size_t bits = 8 * until(parties).size();
  int accepted = 0;
  for (size_t bit = 0; bit < bits; bit += step) {
    SumParties fresh(2);
    Bytes message = flipped(until(fresh), bit);
    if (repair != nullptr) message = repair(message);
    try {
      receive(fresh, message);
      ++accepted;
    } catch (const PartyError&) {
    }
  }
  return accepted;
}

/// Steps that are odd visit every bit of a byte.
void check_changes_to_members(size_t step) {
  const auto keys = [](SumParties& parties) {
    parties.advertise();
    return parties.keys;
  };
  const auto inbox = [&](SumParties& parties) {
    keys(parties);
    parties.share();
    return parties.inboxes[0];
  };
  const auto survivors = [&](SumParties& parties) {
    inbox(parties);
    parties.mask();
    return parties.survivors;
  };
  const auto confirmations = [&](SumParties& parties) {
    survivors(parties);
    parties.confirm();
    return parties.confirmations;
  };
  const auto to_share = [](SumParties& parties, const Bytes& message) { parties.members[0].share(message); };
  const auto to_mask = [](SumParties& parties, const Bytes& message) { parties.members[0].mask(message); };
  const auto to_confirm = [](SumParties& parties, const Bytes& message) { parties.members[0].confirm(message); };
  const auto to_reveal = [](SumParties& parties, const Bytes& message) { parties.members[0].reveal(message); };
  CHECK(accepted_by_member(step, keys, to_share) == 0);
  CHECK(accepted_by_member(step, inbox, to_mask) == 0);
  CHECK(accepted_by_member(step, survivors, to_confirm) == 0);
  CHECK(accepted_by_member(step, confirmations, to_reveal) == 0);
}

}  // namespace

TEST_CASE("secure sum: no message with a flipped bit, a missing byte or one too many is taken by the coordinator") {
  if (!has_sodium()) return;
  SumParties parties(4);
  SecureSumCoordinator& coordinator = parties.coordinator;
  std::vector<Bytes> messages = advertised_by_all(parties);
  CHECK(accepted_changes(messages[0], 1, [&](const Bytes& bytes) { coordinator.advertised(0, bytes); }) == 0);
  for (size_t id = 0; id < 4; ++id) coordinator.advertised(id, messages[id]);
  parties.keys = coordinator.key_list();
  for (size_t id = 0; id < 4; ++id) messages[id] = parties.members[id].share(parties.keys);
  CHECK(accepted_changes(messages[0], 1, [&](const Bytes& bytes) { coordinator.shared(0, bytes); }) == 0);
  for (size_t id = 0; id < 4; ++id) coordinator.shared(id, messages[id]);
  parties.inboxes = coordinator.inboxes();
  parties.mask(set_of({3}));
  for (size_t id = 0; id < 3; ++id) messages[id] = parties.members[id].confirm(parties.survivors);
  CHECK(accepted_changes(messages[0], 1, [&](const Bytes& bytes) { coordinator.confirmed(0, bytes); }) == 0);
  for (size_t id = 0; id < 3; ++id) coordinator.confirmed(id, messages[id]);
  parties.confirmations = coordinator.confirmations();
  for (size_t id = 0; id < 3; ++id) messages[id] = parties.members[id].reveal(parties.confirmations);
  CHECK(accepted_changes(messages[0], 1, [&](const Bytes& bytes) { coordinator.revealed(0, bytes); }) == 0);
  for (size_t id = 0; id < 3; ++id) coordinator.revealed(id, messages[id]);
  coordinator.unmask();
}

TEST_CASE("secure sum: no message with a flipped bit is taken by a member") {
  if (has_sodium()) check_changes_to_members(11);
}

TEST_CASE("secure sum: no message with a flipped bit is taken by a member, every bit", "[slow]") {
  if (has_sodium()) check_changes_to_members(1);
}

TEST_CASE("secure sum: a coordinator that changes a bit and corrects the checksum is found") {
  if (!has_sodium()) return;
  const auto inbox = [](SumParties& parties) {
    parties.advertise();
    parties.share();
    return parties.inboxes[0];
  };
  const auto is_within_body = [](const Bytes& message, size_t bit) { return bit / 8 >= kHeadBytes && bit / 8 < message.size() - sizeof(Hash); };
  int keys = 0, shares = 0, tries = 0;
  for (size_t bit = 0;; bit += 13) {
    SumParties parties(2);
    parties.advertise();
    if (bit >= 8 * parties.keys.size()) break;
    if (!is_within_body(parties.keys, bit)) continue;
    ++tries;
    try {
      parties.members[0].share(with_valid_checksum(flipped(parties.keys, bit)));
      ++keys;
    } catch (const PartyError&) {
    }
  }
  for (size_t bit = 0;; bit += 7) {
    SumParties parties(2);
    if (const Bytes message = inbox(parties); bit >= 8 * message.size())
      break;
    else if (is_within_body(message, bit))
      try {
        ++tries;
        parties.members[0].mask(with_valid_checksum(flipped(message, bit)));
        ++shares;
      } catch (const PartyError&) {
      }
  }
  CHECK(tries > 200);
  CHECK(keys == 0);
  CHECK(shares == 0);
}

// ---- what is decided before a round ----

TEST_CASE("secure sum: the default threshold leaves no room for two groups that honest members keep apart") {
  for (size_t n = 2; n <= kMaxSumMembers; ++n) {
    const size_t t = default_threshold(n), adversaries = (n - 1) / 3;
    CAPTURE(n, t);
    CHECK(t == static_cast<size_t>(std::floor(2.0 * static_cast<double>(n) / 3)) + 1);
    CHECK(t <= n);
    CHECK(2 * t > n + adversaries);
  }
  CHECK(default_threshold(2) == 2);
}

TEST_CASE("secure sum: rosters and thresholds that cannot be are refused") {
  if (!has_sodium()) return;
  const auto round_of = [](size_t n, size_t threshold) { SumRound(roster_of(sum_identities(n)), threshold, {}); };
  check_throws<ConfigError>([&] { round_of(1, 1); }, {"1 members", "2 to 64"});
  check_throws<ConfigError>([&] { round_of(65, 60); }, {"65 members", "2 to 64"});
  check_throws<ConfigError>([&] { round_of(4, 2); }, {"threshold 2", "3 to 4"});
  check_throws<ConfigError>([&] { round_of(4, 5); }, {"threshold 5", "3 to 4"});
  std::vector<PublicKey> repeated = roster_of(sum_identities(3));
  repeated[2] = repeated[0];
  check_throws<ConfigError>([&] { SumRound(repeated, 3, {}); }, {"same public key"});
  const std::vector<SigningKey> keys = sum_identities(3);
  const SumRound round(roster_of(keys), 3, {});
  check_throws<ConfigError>([&] { SecureSumMember(round, 0, keys[1]); }, {"member 0"});
  check_throws<ConfigError>([&] { SecureSumMember(round, 3, keys[1]); }, {"member 3"});
}

TEST_CASE("secure sum: sets of members in words") {
  CHECK(MemberSet().text() == "no members");
  CHECK(set_of({5}).text() == "member 5");
  CHECK(set_of({63, 0, 7}).text() == "members 0, 7 and 63");
  CHECK(MemberSet::first(64).size() == 64);
  CHECK(MemberSet::first(0).size() == 0);
  CHECK_FALSE(MemberSet::first(3).contains(3));
  CHECK(MemberSet::first(3).includes(set_of({1, 2})));
  CHECK_FALSE(set_of({1, 2}).includes(MemberSet::first(3)));
}

TEST_CASE("secure sum: how fast masks are added", "[.bench]") {
  if (!has_sodium()) return;
  using Clock = std::chrono::steady_clock;
  constexpr size_t kCount = size_t{1} << 17;
  Values values(kCount);
  for (const size_t streams : {1, 3, 8}) {
    MaskKeys masks;
    for (size_t i = 0; i < streams; ++i) masks.insert(derive(Key(), std::to_string(i)), i % 2 == 1);
    double best = 1e9;
    for (int trial = 0; trial < 300; ++trial) {
      const Clock::time_point start = Clock::now();
      masks.add(0, values);
      best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
    const double gigabytes = static_cast<double>(kCount * sizeof(uint64_t)) / 1e9;
    WARN(streams << " streams: " << gigabytes / best << " GB/s of values, " << gigabytes * static_cast<double>(streams) / best << " GB/s of masks");
  }
}

}  // namespace trireme::crypto
