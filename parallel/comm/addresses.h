#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// IPv4 addresses at which processes can connect to this one. `others`: also from other hosts, at every interface that is up; loopback comes last.
std::vector<std::string> own_addresses(bool others);

/// 32 random hexadecimal digits, which a process of another job cannot guess. Errors: IoError.
std::string random_token();

/// Compares in a time that does not depend on where `given` differs.
bool is_token(std::string_view given, std::string_view expected);

/// Where a process listens, and the token that it expects. As text: "TOKEN@ADDRESS:PORT,ADDRESS:PORT".
struct Endpoint {
  std::string token;
  std::vector<std::string> addresses;  ///< "A.B.C.D:PORT"
};
std::string text_of(const Endpoint& endpoint);  ///< empty without an address
/// A text without '@' is a token without an address.
Endpoint parse_endpoint(const std::string& text);

/// Starts to connect to "A.B.C.D:PORT". Returns a non-blocking socket that is connected or still connecting, or -1 with errno.
int start_connecting(const std::string& address);

}  // namespace trireme
