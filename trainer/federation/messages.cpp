#include "trainer/federation/messages.h"

#include <array>
#include <type_traits>

#include "kernels/core/check.h"
#include "trainer/files/printable.h"
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

nlohmann::json parse_body(const std::string& body, const std::string& peer) { return parse_object(body, concat("a message of ", peer)); }

template <class T>
T member_of_body(const nlohmann::json& body, const char* key, const std::string& peer) {
  try {
    if (!std::is_same_v<T, int64_t> || body.at(key).is_number_integer()) return body.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {  // as below
  }
  throw DataError(concat("a message of ", peer, " has no valid member ", key));
}
std::string body_of(const RoundTerms& terms) {
  return nlohmann::json{{"run", crypto::hex(terms.run)}, {"round", terms.round}, {"attempt", terms.attempt}, {"most_sequences", terms.most_sequences}}
      .dump();
}

RoundTerms parse_round(const std::string& text, const std::string& peer) {
  const nlohmann::json body = parse_body(text, peer);
  RoundTerms terms;
  const bool has_run = crypto::from_hex(member_of_body<std::string>(body, "run", peer), terms.run);
  terms.round = member_of_body<int64_t>(body, "round", peer);
  terms.attempt = static_cast<uint32_t>(member_of_body<int64_t>(body, "attempt", peer));
  terms.most_sequences = member_of_body<int64_t>(body, "most_sequences", peer);
  if (!has_run || terms.round < 1 || terms.most_sequences < 1 || terms.most_sequences > kMostSequences)
    throw DataError(concat(peer, " has sent no valid round"));
  return terms;
}

crypto::RoundName name_of_round(const RoundTerms& terms, const crypto::Hash& weights) {
  const std::string text = concat("trireme federation round ", crypto::hex(terms.run), " ", crypto::hex(weights), " ", terms.most_sequences);
  return {crypto::sha256(text), static_cast<uint64_t>(terms.round), terms.attempt};
}

template bool member_of_body(const nlohmann::json&, const char*, const std::string&);
template int64_t member_of_body(const nlohmann::json&, const char*, const std::string&);
template double member_of_body(const nlohmann::json&, const char*, const std::string&);
template std::string member_of_body(const nlohmann::json&, const char*, const std::string&);

}  // namespace trireme::federation
