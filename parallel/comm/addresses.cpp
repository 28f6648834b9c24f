#include "parallel/comm/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "kernels/core/check.h"

namespace trireme {

std::vector<std::string> own_addresses(bool others) {
  std::vector<std::string> addresses;
  ifaddrs* interfaces = nullptr;
  if (others && ::getifaddrs(&interfaces) == 0) {
    for (const ifaddrs* each = interfaces; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || (each->ifa_flags & IFF_LOOPBACK) != 0 ||
          (each->ifa_flags & IFF_UP) == 0)
        continue;
      std::array<char, INET_ADDRSTRLEN> text{};
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, text.data(), text.size());
      addresses.emplace_back(text.data());
    }
    ::freeifaddrs(interfaces);
  }
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw IoError(concat("cannot create a random token: ", std::strerror(errno)));
  std::string token;
  for (const unsigned char byte : bytes) token += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return token;
}

bool is_token(std::string_view given, std::string_view expected) {
  if (given.size() != expected.size()) return false;
  int difference = 0;
  for (size_t i = 0; i < given.size(); ++i) difference |= given[i] ^ expected[i];
  return difference == 0;
}

std::string text_of(const Endpoint& endpoint) {
  std::string text;
  for (const std::string& address : endpoint.addresses) text += (text.empty() ? endpoint.token + "@" : ",") + address;
  return text;
}

Endpoint parse_endpoint(const std::string& text) {
  const size_t at = std::min(text.find('@'), text.size());
  Endpoint endpoint{text.substr(0, at), {}};
  for (size_t begin = at + 1; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    endpoint.addresses.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return endpoint;
}

int start_connecting(const std::string& address) {
  const size_t colon = address.find(':');
  uint16_t port = 0;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  if (colon == address.npos || std::from_chars(address.data() + colon + 1, address.data() + address.size(), port).ec != std::errc() ||
      ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &at.sin_addr) != 1) {
    errno = EINVAL;
    return -1;
  }
  at.sin_port = htons(port);
  const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (file < 0 || ::connect(file, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 || errno == EINPROGRESS) return file;
  const int error = errno;
  ::close(file);
  errno = error;
  return -1;
}

}  // namespace trireme
