#include "trainer/resilience/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
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

}  // namespace trireme
