#include "trainer/federation/connection.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/comm/addresses.h"
#include "parallel/comm/refused_connections.h"

namespace trireme::federation {
namespace {

constexpr std::string_view kContext = "trireme federation 1";
constexpr size_t kCoordinatorFrame = sizeof(crypto::Signature) + crypto::kTagBytes;
constexpr size_t kMemberFrame = sizeof(uint32_t) + kCoordinatorFrame;

/// What a side signs. `agreement` differs in every connection, and nobody between the two sides can make both have the same one.
std::string signed_text(const crypto::Agreement& agreement, const Roster& roster, const std::string& role) {
  const crypto::Key transcript = crypto::derive(agreement.secret, "federation transcript");
  return concat(kContext, " ", role, " ", crypto::hex(roster.digest), " ", crypto::hex({transcript.data(), crypto::kKeyBytes}));
}
std::string member_role(int index) { return concat("member ", index); }

template <size_t N>
std::span<const std::byte> bytes_of_array(const std::array<uint8_t, N>& array) {
  return std::as_bytes(std::span(array));
}

using CoordinatorFrame = std::array<std::byte, kCoordinatorFrame>;
using MemberFrame = std::array<std::byte, kMemberFrame>;

CoordinatorFrame sign_as_coordinator(const crypto::Agreement& agreement, const Identity& identity) {
  const crypto::Signature signature = identity.key.sign(signed_text(agreement, identity.roster, "coordinator"));
  CoordinatorFrame frame;
  agreement.channel("federation identity").sends.seal({}, {}, bytes_of_array(signature), frame);
  return frame;
}

bool is_of_coordinator(const crypto::Agreement& agreement, const Roster& roster, const CoordinatorFrame& frame) {
  crypto::Signature signature;
  return agreement.channel("federation identity").receives.open({}, {}, frame, std::as_writable_bytes(std::span(signature))) &&
         crypto::is_signed_by(roster.coordinator, signed_text(agreement, roster, "coordinator"), signature);
}

MemberFrame sign_as_member(const crypto::Agreement& agreement, const Identity& identity) {
  const crypto::Signature signature = identity.key.sign(signed_text(agreement, identity.roster, member_role(identity.index)));
  std::array<uint8_t, sizeof(uint32_t) + sizeof(crypto::Signature)> text;
  crypto::put_little_endian(static_cast<uint64_t>(identity.index), std::span(text).first<sizeof(uint32_t)>());
  std::ranges::copy(signature, text.begin() + sizeof(uint32_t));
  MemberFrame frame;
  agreement.channel("federation identity").sends.seal({}, {}, bytes_of_array(text), frame);
  return frame;
}

/// The member that has signed; nothing if nobody of the roster has.
std::optional<int> member_of(const crypto::Agreement& agreement, const Roster& roster, const MemberFrame& frame) {
  std::array<uint8_t, sizeof(uint32_t) + sizeof(crypto::Signature)> text;
  if (!agreement.channel("federation identity").receives.open({}, {}, frame, std::as_writable_bytes(std::span(text)))) return std::nullopt;
  uint32_t index = 0;
  for (size_t i = sizeof index; i-- > 0;) index = index << 8 | text[i];
  if (index >= roster.members.size()) return std::nullopt;
  crypto::Signature signature;
  std::copy(text.begin() + sizeof index, text.end(), signature.begin());
  const auto member = static_cast<int>(index);
  if (!crypto::is_signed_by(roster.key_of(member), signed_text(agreement, roster, member_role(member)), signature)) return std::nullopt;
  return member;
}

/// A dead host at the other end is noticed after two minutes.
void keep_alive(int file) {
  const int on = 1, idle = 60, interval = 10, probes = 6;
  ::setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(file, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(file, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(file, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/// The IPv4 addresses of "HOST:PORT", as start_connecting() takes them.
std::vector<std::string> resolved_addresses(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == address.npos) return {};
  addrinfo hints{}, *list = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(address.substr(0, colon).c_str(), nullptr, &hints, &list) != 0) return {};
  std::vector<std::string> found;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ai_addr)->sin_addr, text.data(), text.size());
    found.push_back(text.data() + address.substr(colon));
  }
  ::freeaddrinfo(list);
  return found;
}

Link connected(const std::string& address, Clock::time_point end) {
  std::string reason = "no such host";
  for (const std::string& one : resolved_addresses(address)) {
    const int file = start_connecting(one);
    if (file < 0) {
      reason = std::strerror(errno);
      continue;
    }
    Link link(file, concat("the coordinator at ", address));
    int error = ETIMEDOUT;
    socklen_t size = sizeof error;
    if (ready_before(file, POLLOUT, end) && ::getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) {
      make_blocking(file);
      keep_alive(file);
      return link;
    }
    reason = std::strerror(error);
  }
  throw IoError(concat("cannot connect to the coordinator at ", address, ": ", reason));
}

}  // namespace

Link connect_to_coordinator(const std::string& address, const Identity& identity, Clock::time_point end) {
  Link link = connected(address, end);
  link.set_timeout(std::max(std::chrono::seconds(1), std::chrono::duration_cast<std::chrono::seconds>(end - Clock::now())));
  const crypto::Handshake handshake;
  link.send(bytes_of_array(handshake.hello()));
  crypto::Hello hello;
  CoordinatorFrame frame;
  if (!link.receive(std::as_writable_bytes(std::span(hello))) || !link.receive(frame))
    throw IoError(concat(address, " closed the connection before it identified itself as the coordinator of a federation"));
  const std::optional<crypto::Agreement> agreement = handshake.agree(crypto::Key(), hello, crypto::Side::kFirst, kContext);
  if (!agreement || !is_of_coordinator(*agreement, identity.roster, frame))
    throw IoError(concat("the process at ", address, " is not the coordinator of this roster: its key or its roster is different"));
  link.send(sign_as_member(*agreement, identity));
  link.encrypt(agreement->channel("federation"), concat("the coordinator at ", address));
  link.set_timeout(std::chrono::seconds(0));
  return link;
}

struct MemberListener::State {
  State(const std::string& address, int wanted, const Identity& who)
      : identity(who), file(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(wanted));
    if (::inet_pton(AF_INET, address.c_str(), &at.sin_addr) != 1) {
      ::close(file);
      throw ConfigError(concat("security.federation.address=", address, ": is no IPv4 address; allowed such as 127.0.0.1 or 0.0.0.0"));
    }
    const int on = 1;
    socklen_t size = sizeof at;
    ::setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // a coordinator that starts again listens at the same port at once
    if (::bind(file, reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(file, SOMAXCONN) != 0 ||
        ::getsockname(file, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
      const std::string reason = std::strerror(errno);
      ::close(file);
      throw IoError(concat("security.federation.port: cannot listen at ", address, ", port ", wanted, ": ", reason));
    }
    port = ntohs(at.sin_port);
  }
  ~State() {
    while (!callers.empty()) refuse(callers.begin());
    write_without_waiting(refused.take_warning(0, true));
    ::close(file);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  struct Caller {
    Link link;
    Clock::time_point since;
    std::string address;
    std::optional<crypto::Agreement> agreement = {};  ///< after its hello
    crypto::Hello hello = {};
    MemberFrame frame = {};
    size_t bytes = 0;  ///< received of the hello, or then of the frame
  };
  enum class Said { kNothingYet, kMember, kNonsense };
  static constexpr size_t kMostCallers = 512;
  static constexpr std::chrono::seconds kGreetingTimeout{5}, kLeastGreetingTime{1};

  std::list<Caller>::iterator refuse(std::list<Caller>::iterator caller) {
    refused.add(caller->address, seconds_now());
    return callers.erase(caller);
  }
  static double seconds_now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

  /// Answers a complete hello. The answer fits the buffer of a new connection.
  Said answer(Caller& caller) const {
    const crypto::Handshake handshake;
    caller.agreement = handshake.agree(crypto::Key(), caller.hello, crypto::Side::kSecond, kContext);
    if (!caller.agreement) return Said::kNonsense;
    const CoordinatorFrame frame = sign_as_coordinator(*caller.agreement, identity);
    std::vector<std::byte> all;
    for (const std::span<const std::byte> part : {bytes_of_array(handshake.hello()), std::span<const std::byte>(frame)})
      all.insert(all.end(), part.begin(), part.end());
    caller.bytes = 0;
    return ::send(caller.link.file(), all.data(), all.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == std::ssize(all) ? Said::kNothingYet : Said::kNonsense;
  }

  /// Reads what has come. `member`: who it is, if that is known now.
  Said read(Caller& caller, int& member) const {
    const std::span<std::byte> all = caller.agreement ? std::span<std::byte>(caller.frame) : std::as_writable_bytes(std::span(caller.hello));
    const ssize_t count = ::recv(caller.link.file(), all.data() + caller.bytes, all.size() - caller.bytes, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Said::kNothingYet;
    if (count <= 0) return Said::kNonsense;
    caller.bytes += static_cast<size_t>(count);
    if (caller.bytes < all.size()) return Said::kNothingYet;
    if (!caller.agreement) return answer(caller);
    const std::optional<int> found = member_of(*caller.agreement, identity.roster, caller.frame);
    if (found) member = *found;
    return found ? Said::kMember : Said::kNonsense;
  }

  /// Accepts what waits in the kernel's queue. False: nothing, or there is no place.
  bool accept(Clock::time_point now) {
    if (callers.size() >= kMostCallers) {
      if (now - callers.front().since < kLeastGreetingTime) return false;
      refuse(callers.begin());
    }
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    const int accepted = ::accept4(file, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted < 0) return false;
    callers.push_back({.link = Link(accepted, address_text(from)), .since = now, .address = address_text(from)});
    return true;
  }

  std::pair<int, Link> take(std::list<Caller>::iterator caller, int member) {
    Link link = std::move(caller->link);
    make_blocking(link.file());
    keep_alive(link.file());
    link.encrypt(caller->agreement->channel("federation"), concat("member ", identity.roster.name_of(member)));
    callers.erase(caller);
    return {member, std::move(link)};
  }

  const Identity& identity;
  int file, port = 0;
  std::list<Caller> callers;  ///< the oldest first
  RefusedConnections refused{"the coordinator", "which did not identify themselves as members of this federation"};
};

MemberListener::MemberListener(const std::string& address, int port, const Identity& identity)
    : state_(std::make_unique<State>(address, port, identity)) {}
MemberListener::~MemberListener() = default;
int MemberListener::port() const { return state_->port; }

std::optional<std::pair<int, Link>> MemberListener::next(Clock::time_point end) {
  State& s = *state_;
  for (;;) {
    const auto now = Clock::now();
    if (now >= end) return std::nullopt;
    for (auto caller = s.callers.begin(); caller != s.callers.end();) {
      int member = 0;
      const State::Said said = now - caller->since >= State::kGreetingTimeout ? State::Said::kNonsense : s.read(*caller, member);
      if (said == State::Said::kMember) return s.take(caller, member);
      caller = said == State::Said::kNonsense ? s.refuse(caller) : std::next(caller);
    }
    int accepted = 0;
    while (accepted < 64 && s.accept(now)) ++accepted;
    write_without_waiting(s.refused.take_warning(State::seconds_now()));
    if (accepted > 0) continue;
    std::vector<pollfd> sources{{s.callers.size() < State::kMostCallers ? s.file : -1, POLLIN, 0}};
    for (const State::Caller& caller : s.callers) sources.push_back({caller.link.file(), POLLIN, 0});
    ::poll(sources.data(), sources.size(), 100);
  }
}

}  // namespace trireme::federation
