#include "parallel/comm/rank_links.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <functional>
#include <list>
#include <optional>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/comm/addresses.h"
#include "parallel/comm/refused_connections.h"

namespace trireme {
namespace {

using LinkClock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLinkTimeout{30};
constexpr size_t kTokenBytes = 32;

/// What a client says first.
struct Greeting {
  std::array<char, kTokenBytes> token;
  int32_t rank;
};

[[noreturn]] void throw_link_error(const std::string& what) { throw IoError(concat(what, ": ", std::strerror(errno))); }

std::string host_of_this_process() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ::gethostname(name.data(), HOST_NAME_MAX);
  return name.data();
}

/// Closes its file at the end.
class ListeningSocket {
 public:
  explicit ListeningSocket(bool others) : file_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(others ? INADDR_ANY : INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    if (file_ < 0 || ::bind(file_, reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(file_, SOMAXCONN) != 0 ||
        ::getsockname(file_, reinterpret_cast<sockaddr*>(&at), &size) != 0)
      throw_link_error("cannot listen for other ranks");
    port_ = ntohs(at.sin_port);
  }
  ~ListeningSocket() {
    if (file_ >= 0) ::close(file_);
  }
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;
  int file() const { return file_; }
  int port() const { return port_; }

 private:
  int file_, port_ = 0;
};

/// The connections to a listening socket until they have said a greeting with its token. Strangers cannot keep ranks out: each connection has five
/// seconds, one second if there are many, and all are read as they come.
class Callers {
 public:
  /// `token_of`: what the rank that a caller says it is must say; nothing for a rank that is none.
  Callers(const ListeningSocket& listener, std::function<std::string(int rank)> token_of)
      : listener_(listener.file()), token_of_(std::move(token_of)) {}
  ~Callers() {
    while (!callers_.empty()) refuse(callers_.begin());
    write_without_waiting(refused_.take_warning(0, true));
  }
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;

  /// The next caller that knows the token, and the rank that it says it is. Nothing if none comes until `end`.
  std::optional<std::pair<int, Link>> next(LinkClock::time_point end) {
    for (;;) {
      const auto now = LinkClock::now();
      if (now >= end) return std::nullopt;
      for (auto caller = callers_.begin(); caller != callers_.end();) {
        const bool late = now - caller->since >= kGreetingTimeout;
        const Said said = late ? Said::kNonsense : read(*caller);
        if (said == Said::kGreeting) {
          std::pair<int, Link> found{caller->greeting.rank, std::move(caller->link)};
          callers_.erase(caller);
          return found;
        }
        caller = said == Said::kNonsense ? refuse(caller) : std::next(caller);
      }
      int accepted = 0;
      while (accepted < 64 && accept(now)) ++accepted;
      if (accepted > 0) continue;
      std::vector<pollfd> sources{{callers_.size() < kMostCallers ? listener_ : -1, POLLIN, 0}};
      for (const Caller& caller : callers_) sources.push_back({caller.link.file(), POLLIN, 0});
      ::poll(sources.data(), sources.size(), 100);
    }
  }

 private:
  struct Caller {
    Link link;
    LinkClock::time_point since;
    std::string address;
    Greeting greeting = {};
    size_t bytes = 0;  ///< received so far of `greeting`
  };
  enum class Said { kNothingYet, kGreeting, kNonsense };
  static constexpr size_t kMostCallers = 512;
  static constexpr std::chrono::seconds kGreetingTimeout{5}, kLeastGreetingTime{1};

  Said read(Caller& caller) const {
    const std::span<std::byte> all = std::as_writable_bytes(std::span(&caller.greeting, 1));
    const ssize_t count = ::recv(caller.link.file(), all.data() + caller.bytes, all.size() - caller.bytes, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Said::kNothingYet;
    if (count <= 0) return Said::kNonsense;
    caller.bytes += static_cast<size_t>(count);
    if (caller.bytes < all.size()) return Said::kNothingYet;
    const std::string token = token_of_(caller.greeting.rank);
    return is_token({caller.greeting.token.data(), caller.greeting.token.size()}, token) ? Said::kGreeting : Said::kNonsense;
  }

  /// Accepts what waits in the kernel's queue. False: nothing, or there is no place.
  bool accept(LinkClock::time_point now) {
    if (callers_.size() >= kMostCallers) {
      if (now - callers_.front().since < kLeastGreetingTime) return false;
      refuse(callers_.begin());
    }
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    const int file = ::accept4(listener_, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (file < 0) return false;
    callers_.push_back({Link(file), now, address_text(from)});
    return true;
  }

  std::list<Caller>::iterator refuse(std::list<Caller>::iterator caller) {
    refused_.add(caller->address, 0);
    return callers_.erase(caller);
  }

  int listener_;
  std::function<std::string(int rank)> token_of_;
  std::list<Caller> callers_;  ///< the oldest first
  RefusedConnections refused_{"the connections between ranks", "which did not identify themselves as ranks of this job"};
};

/// Tries the addresses of an endpoint in turn.
Link connect_to(const Endpoint& endpoint, const std::string& token, int rank, int own_rank, const std::string& group, LinkClock::time_point end) {
  for (const std::string& address : endpoint.addresses) {
    const int file = start_connecting(address);
    if (file < 0) continue;
    Link link(file);
    int error = 0;
    socklen_t size = sizeof error;
    const auto soon = std::min(end, LinkClock::now() + kLinkTimeout / static_cast<int>(endpoint.addresses.size() + 1));
    if (!ready_before(file, POLLOUT, soon) || ::getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) continue;
    make_blocking(file);
    Greeting greeting{};
    std::copy_n(token.begin(), std::min(kTokenBytes, token.size()), greeting.token.begin());
    greeting.rank = own_rank;
    link.send(std::as_bytes(std::span(&greeting, 1)));
    return link;
  }
  throw IoError(concat("cannot connect to rank ", rank, " of group '", group, "' at ", text_of(endpoint).substr(endpoint.token.size())));
}

using LinkSecret = std::array<uint8_t, 32>;

std::string text_of_secret(const LinkSecret& secret) { return {reinterpret_cast<const char*>(secret.data()), secret.size()}; }

/// What a rank tells the others: a new secret, and behind it the best cipher of its CPU.
std::string new_secret() {
  LinkSecret secret;
  crypto::draw(secret);
  const bool fast = crypto::is_available(crypto::Cipher::kAes256Gcm);
  return text_of_secret(secret) + static_cast<char>(fast ? crypto::Cipher::kAes256Gcm : crypto::Cipher::kChaCha20Poly1305);
}

/// Secrets of ranks, overwritten at the end.
struct LinkSecrets {
  std::vector<std::string> of_ranks;
  ~LinkSecrets() {
    for (std::string& text : of_ranks) crypto::wipe({reinterpret_cast<uint8_t*>(text.data()), text.size()});
  }
};

/// What the secrets of two ranks and `fresh` give.
crypto::Key shared_key(const std::vector<std::string>& secrets, int client, int server, const LinkSecret& fresh) {
  crypto::Key key;
  std::string all = secrets[static_cast<size_t>(client)] + secrets[static_cast<size_t>(server)] + text_of_secret(fresh);
  const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(all.data()), all.size());
  crypto::digest(bytes, key);
  crypto::wipe(bytes);
  return key;
}

/// The token that a client says first where connections are encrypted. It says nothing about the keys, or about the tokens of other connections.
std::string greeting_token(const std::vector<std::string>& secrets, int client, int server) {
  const crypto::Key token = crypto::derive(shared_key(secrets, client, server, {}), concat("greeting of client ", client, " to server ", server));
  return {reinterpret_cast<const char*>(token.data()), kTokenBytes};
}

/// The keys of the connection that `client` has opened, as `own` uses them. `secrets`: by rank. `fresh`: of the server, for this connection.
crypto::Channel link_keys(const std::vector<std::string>& secrets, int client, int server, const LinkSecret& fresh, bool as_client) {
  const std::string &of_client = secrets[static_cast<size_t>(client)], &of_server = secrets[static_cast<size_t>(server)];
  const crypto::Key key = shared_key(secrets, client, server, fresh);
  const auto cipher = static_cast<crypto::Cipher>(std::min(of_client.back(), of_server.back()));
  const auto from = [&](const char* sender) {
    return crypto::Aead(cipher, crypto::derive(key, concat("connection of client ", client, " to server ", server, ", from the ", sender)));
  };
  return {from(as_client ? "client" : "server"), from(as_client ? "server" : "client")};
}

}  // namespace

RankLinks::RankLinks(Communicator& group, bool encrypted) {
  const auto ranks = static_cast<size_t>(group.size());
  const std::vector<std::string> hosts = all_gather_strings(group, host_of_this_process());
  const bool others = std::ranges::any_of(hosts, [&](const std::string& host) { return host != hosts.front(); });
  const ListeningSocket listener(others);
  LinkSecrets kept;
  std::vector<std::string>& secrets = kept.of_ranks;
  if (encrypted) secrets = all_gather_strings(group, new_secret());
  const auto peer_text = [&](int rank) { return concat("rank ", rank, " of group '", group.name(), "' on host ", hosts[static_cast<size_t>(rank)]); };
  Endpoint own{random_token(), own_addresses(others)};
  for (std::string& address : own.addresses) address += concat(":", listener.port());
  const std::vector<std::string> endpoints = all_gather_strings(group, text_of(own));
  const auto end = LinkClock::now() + kLinkTimeout;
  to_servers_.resize(ranks);
  from_clients_.resize(ranks);
  for (int rank = 0; rank < group.size(); ++rank)
    if (rank != group.rank()) {
      const Endpoint endpoint = parse_endpoint(endpoints[static_cast<size_t>(rank)]);
      const std::string token = encrypted ? greeting_token(secrets, group.rank(), rank) : endpoint.token;
      to_servers_[static_cast<size_t>(rank)] = connect_to(endpoint, token, rank, group.rank(), group.name(), end);
    }
  Callers callers(listener, [&](int rank) {
    if (!encrypted) return own.token;
    return rank >= 0 && rank < group.size() && rank != group.rank() ? greeting_token(secrets, rank, group.rank()) : std::string();
  });
  for (size_t left = ranks - 1; left > 0;) {
    std::optional<std::pair<int, Link>> caller = callers.next(end);
    if (!caller)
      throw IoError(concat("no connection from ", left, " of the ", ranks - 1, " other ranks of group '", group.name(), "' within ",
                           kLinkTimeout.count(), " seconds"));
    auto& [client, link] = *caller;
    if (client < 0 || client >= group.size() || client == group.rank()) continue;
    if (from_clients_[static_cast<size_t>(client)].is_open()) continue;  // a second one that repeats a greeting
    make_blocking(link.file());
    if (encrypted) {
      LinkSecret fresh;
      crypto::draw(fresh);
      link.send(std::as_bytes(std::span(fresh)));
      link.encrypt(link_keys(secrets, client, group.rank(), fresh, false), peer_text(client));
    }
    from_clients_[static_cast<size_t>(client)] = std::move(link);
    --left;
  }
  for (int rank = 0; encrypted && rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    Link& link = to_servers_[static_cast<size_t>(rank)];
    LinkSecret fresh;
    if (!link.receive(std::as_writable_bytes(std::span(fresh)))) throw IoError(concat(peer_text(rank), " has closed its connection"));
    link.encrypt(link_keys(secrets, group.rank(), rank, fresh, true), peer_text(rank));
  }
}

void RankLinks::shut_down() const {
  for (const std::vector<Link>* links : {&to_servers_, &from_clients_})
    for (const Link& link : *links) link.shut_down();
}

}  // namespace trireme
