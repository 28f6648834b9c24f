#include "trainer/federation/messages.h"

#include <array>

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
    return body.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    throw DataError(concat("a message of ", peer, " has no valid member ", key));
  }
}
template bool member_of_body(const nlohmann::json&, const char*, const std::string&);
template int64_t member_of_body(const nlohmann::json&, const char*, const std::string&);
template double member_of_body(const nlohmann::json&, const char*, const std::string&);
template std::string member_of_body(const nlohmann::json&, const char*, const std::string&);

}  // namespace trireme::federation
