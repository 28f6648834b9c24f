#include "trainer/federation/messages.h"

#include <limits>

#include "kernels/core/check.h"
#include "trainer/files/strict_json.h"

namespace trireme::federation {
namespace {

struct MessageHead {
  uint32_t kind;
  uint32_t bytes;
};
constexpr uint32_t kLongestBody = 16 << 20;

}  // namespace

void send(const Link& link, const Message& message) {
  TRIREME_CHECK(message.body.size() <= kLongestBody, "a message of ", message.body.size(), " bytes");
  const MessageHead head{static_cast<uint32_t>(message.kind), static_cast<uint32_t>(message.body.size())};
  std::string all(reinterpret_cast<const char*>(&head), sizeof head);
  all += message.body;
  link.send(std::as_bytes(std::span(all)));
}

std::optional<Message> receive(const Link& link) {
  MessageHead head{};
  if (!link.receive(std::as_writable_bytes(std::span(&head, 1)))) return std::nullopt;
  if (head.kind < static_cast<uint32_t>(Kind::kConfiguration) || head.kind > static_cast<uint32_t>(Kind::kRefusal) || head.bytes > kLongestBody)
    throw DataError(concat(link.peer(), " has sent a message that this version does not know"));
  Message message{static_cast<Kind>(head.kind), std::string(head.bytes, '\0')};
  if (head.bytes > 0 && !link.receive(std::as_writable_bytes(std::span(message.body))))
    throw IoError(concat(link.peer(), " has closed its connection within a message"));
  return message;
}

std::string body_of_peer(const std::string& peer) { return concat("a message of ", peer); }
nlohmann::json parse_body(const std::string& body, const std::string& peer) { return parse_object(body, body_of_peer(peer)); }

std::string body_of(const RoundTerms& terms) {
  return nlohmann::json{{"run", crypto::hex(terms.run)}, {"round", terms.round}, {"attempt", terms.attempt}, {"most_sequences", terms.whole_weight}}
      .dump();
}

RoundTerms parse_round(const std::string& text, const std::string& peer) {
  const nlohmann::json body = parse_body(text, peer);
  const std::string where = body_of_peer(peer);
  RoundTerms terms;
  if (!crypto::from_hex(string_member(body, "run", where), terms.run)) throw DataError(concat(where, ": no valid run"));
  terms.round = integer_member(body, "round", where, 1);
  terms.attempt = static_cast<uint32_t>(integer_member(body, "attempt", where, 0, std::numeric_limits<uint32_t>::max()));
  terms.whole_weight = integer_member(body, "most_sequences", where, 1, kMostSequences);
  return terms;
}

crypto::RoundName name_of_round(const RoundTerms& terms, const crypto::Hash& weights) {
  const std::string text = concat("trireme federation round ", crypto::hex(terms.run), " ", crypto::hex(weights), " ", terms.whole_weight);
  return {crypto::sha256(text), static_cast<uint64_t>(terms.round), terms.attempt};
}

}  // namespace trireme::federation
