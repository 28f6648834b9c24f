#include "parallel/comm/refused_connections.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr double kFirstWarning = 1, kWarningInterval = 600;  ///< seconds
constexpr size_t kMostAddresses = 16, kMostNamed = 3;

}  // namespace

void RefusedConnections::add(const std::string& address, double now) {
  if (count_++ == 0) due_ = std::max(has_warned_ ? due_ : 0, now + kFirstWarning);
  const bool known = by_address_.size() < kMostAddresses || by_address_.count(address) == 1;
  ++by_address_[known ? address : "other addresses"];
}

std::string RefusedConnections::take_warning(double now, bool ends) {
  if (count_ == 0 || (!ends && now < due_)) return "";
  std::vector<std::pair<int64_t, std::string>> most;
  for (const auto& [address, count] : by_address_) most.emplace_back(count, address);
  std::sort(most.begin(), most.end(), std::greater<>());
  std::string from;
  for (size_t i = 0; i < std::min(most.size(), kMostNamed); ++i)
    from += concat(i == 0 ? "" : ", ", most[i].second, most.size() == 1 ? "" : concat(" (", most[i].first, ")"));
  if (most.size() > kMostNamed) from += concat(" and ", most.size() - kMostNamed, " more");
  const std::string text =
      concat("warning: ", listener_, " refused ", count_, count_ == 1 ? " connection" : " connections", " from ", from, ", ", why_, "\n");
  by_address_.clear();
  count_ = 0;
  has_warned_ = true;
  due_ = now + kWarningInterval;
  return text;
}

std::string address_text(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bytes = address.ss_family == AF_INET6 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
                                                          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  ::inet_ntop(address.ss_family == AF_INET6 ? AF_INET6 : AF_INET, bytes, text.data(), text.size());
  return text.data();
}

void write_without_waiting(std::string_view text) {
  if (text.empty()) return;
  pollfd output{STDERR_FILENO, POLLOUT, 0};  // a pipe is ready once it takes PIPE_BUF bytes, more than a warning has
  if (::poll(&output, 1, 0) != 1 || (output.revents & POLLOUT) == 0) return;
  const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  (void)written;
}

}  // namespace trireme
