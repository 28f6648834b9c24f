#pragma once
// What a coordinator and its members say over a connection. The coordinator asks, and a member answers each question by kAnswer or kRefusal:
//
//   question        body                                   answer
//   kConfiguration  terms (JSON)                           {"sequences": of its training data}
//   kWeights        {"step", "bytes"}; the weights          {"loss": of its held-out data, or null; "tokens"}
//   kTrain          RoundTerms (JSON)                      {"steps"}, after the last step of the round
//   kAdvertise      empty                                  its keys of this attempt          \.
//   kShare          everybody's keys                       its encrypted shares               | parallel/crypto/secure_sum.h
//   kMask           the shares for it                      its masked update as a stream      |
//   kAgree          who has sent an update                 its signature of that              |
//   kUnmask         the signatures                         its shares of masks to remove     /
//   kEnd            empty                                  {}
//
// Without secure aggregation only kMask of the phases of the sum is asked, with an empty body.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "parallel/comm/link.h"
#include "parallel/crypto/secure_sum.h"

namespace trireme::federation {

enum class Kind : uint32_t { kConfiguration = 1, kWeights, kTrain, kAdvertise, kShare, kMask, kAgree, kUnmask, kEnd, kAnswer, kRefusal };

struct Message {
  Kind kind = Kind::kAnswer;
  std::string body = {};
};

/// Errors: those of Link.
void send(const Link& link, const Message& message);
/// Nothing if the other end has closed the connection. Errors: those of Link; DataError for an unknown kind or a body longer than 16 MiB.
std::optional<Message> receive(const Link& link);

/// JSON of a message's body. Errors: DataError that names `peer`.
nlohmann::json parse_body(const std::string& body, const std::string& peer);
/// The beginning of messages about a body from `peer`, for the functions of files/strict_json.h.
std::string body_of_peer(const std::string& peer);

/// What identifies an attempt at a round, as the coordinator states it in kTrain.
struct RoundTerms {
  std::array<uint8_t, 32> run{};
  int64_t round = 0;  ///< from 1
  uint32_t attempt = 0;
  int64_t whole_weight = 1;  ///< with weighting by samples, a member's weight is its number of sequences divided by this, and at most 1 (votes.h)
};
std::string body_of(const RoundTerms& terms);
/// Errors: DataError that names `peer`.
RoundTerms parse_round(const std::string& body, const std::string& peer);
/// The name of the secure sum. It depends on the terms and on the SHA-256 of the weights from which the member has trained, so that a coordinator that gives
/// members different ones gets no valid signatures.
crypto::RoundName name_of_round(const RoundTerms& terms, const crypto::Hash& weights);
inline constexpr int64_t kMostSequences = int64_t{1} << 40;

/// Bits after the point of the fixed-point numbers that are summed.
inline constexpr int kFractionBits = 40;

/// A run of elements in a stream of an update: `count` values of 8 bytes follow, little endian. `count` 0 ends the stream.
struct Range {
  uint64_t first = 0, count = 0;
};
inline constexpr uint64_t kLongestRange = 1 << 17;  ///< elements, 1 MiB

}  // namespace trireme::federation
