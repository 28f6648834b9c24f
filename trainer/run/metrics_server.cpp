#include "trainer/run/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <list>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/comm/refused_connections.h"

namespace trireme {
namespace {

using ServerClock = std::chrono::steady_clock;
constexpr size_t kMostConnections = 64;
constexpr size_t kLongestRequest = 8192;
constexpr auto kTimeout = std::chrono::seconds(5);
constexpr auto kLeastTime = std::chrono::seconds(1);  ///< that a client has, however many others wait
constexpr const char* kTextFormat = "text/plain; version=0.0.4; charset=utf-8";

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress socket_address(const std::string& address, int port) {
  SocketAddress result;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
  if (::inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    result.size = sizeof *v4;
  } else if (::inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    result.size = sizeof *v6;
  } else {
    throw IoError(concat("'", address, "' is not an IPv4 or IPv6 address"));
  }
  return result;
}

int port_of(int socket) {
  SocketAddress bound;
  bound.size = sizeof bound.storage;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
  const bool v6 = bound.storage.ss_family == AF_INET6;
  return ntohs(v6 ? reinterpret_cast<const sockaddr_in6*>(&bound.storage)->sin6_port
                  : reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
}

int listening_socket(const std::string& address, int port) {
  const SocketAddress wanted = socket_address(address, port);
  const int file = ::socket(wanted.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  // The connections of a run that has just ended may still be in TIME_WAIT.
  const bool ready = file >= 0 && ::setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && ::bind(file, wanted.get(), wanted.size) == 0 &&
                     ::listen(file, SOMAXCONN) == 0;
  if (ready) return file;
  const int error = errno;
  if (file >= 0) ::close(file);
  throw IoError(concat("cannot listen on ", address, " port ", port, ": ", std::strerror(error)));
}

std::string http_answer(const char* status, const char* type, const std::string& body, bool with_body, const char* more = "") {
  const std::string head =
      concat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n", more, "\r\n");
  return with_body ? head + body : head;
}

std::string http_error(const char* status, const char* more = "") { return http_answer(status, "text/plain", concat(status, "\n"), true, more); }

/// The answer to a complete request.
std::string answer_to(std::string_view request, const std::function<std::string()>& body) {
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const size_t first = line.find(' '), second = line.find(' ', first + 1);
  if (first == line.npos || second == line.npos || !line.substr(second + 1).starts_with("HTTP/1.")) return http_error("400 Bad Request");
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, second - first - 1);
  if (method != "GET" && method != "HEAD") return http_error("405 Method Not Allowed", "Allow: GET, HEAD\r\n");
  if (target.substr(0, target.find('?')) != "/metrics") return http_error("404 Not Found");
  return http_answer("200 OK", kTextFormat, body(), method == "GET");
}

/// One client: its request is read, then the answer is sent, then whatever else the client sends is dropped until it closes, because closing earlier
/// would make the kernel discard the answer.
class HttpClient {
 public:
  HttpClient(int file, std::string address) : file_(file), address_(std::move(address)) {}

  pollfd interest() const { return {file_, static_cast<int16_t>(answer_.empty() ? POLLIN : POLLOUT), 0}; }
  ServerClock::time_point deadline() const { return deadline_; }
  /// From then on it may have to make place for others.
  ServerClock::time_point replaceable() const { return since_ + kLeastTime; }
  const std::string& address() const { return address_; }
  /// It has sent a request that the server understands.
  bool understood() const { return understood_; }

  /// Returns false at the end of the connection.
  bool advance(const std::function<std::string()>& body) {
    if (!answer_.empty()) return send();
    char bytes[1024];
    const ssize_t count = ::recv(file_, bytes, sizeof bytes, 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    if (answered_) return true;
    request_.append(bytes, static_cast<size_t>(count));
    if (request_.find("\r\n\r\n") != request_.npos || request_.find("\n\n") != request_.npos) {
      answer_ = answer_to(request_, body);
      understood_ = !answer_.starts_with("HTTP/1.1 400");
    } else if (request_.size() >= kLongestRequest) {
      answer_ = http_error("431 Request Header Fields Too Large");
    }
    return true;
  }

 private:
  bool send() {
    const ssize_t count = ::send(file_, answer_.data(), answer_.size(), MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    answer_.erase(0, static_cast<size_t>(count));
    if (!answer_.empty()) return true;
    answered_ = true;
    return ::shutdown(file_, SHUT_WR) == 0;
  }

  const Descriptor file_;
  const std::string address_;
  const ServerClock::time_point since_ = ServerClock::now(), deadline_ = since_ + kTimeout;
  std::string request_, answer_;
  bool answered_ = false, understood_ = false;
};

}  // namespace

MetricsServer::MetricsServer(const std::string& address, int port, std::function<std::string()> body)
    : body_(std::move(body)), listening_(listening_socket(address, port)), stop_(::eventfd(0, EFD_CLOEXEC)), port_(port_of(listening_)) {
  if (stop_ < 0) throw IoError(concat("cannot create an eventfd: ", std::strerror(errno)));
  thread_ = std::thread([this] {
    try {
      serve();
    } catch (const std::exception&) {  // out of memory: that ends the endpoint, not the run
    }
  });
}

MetricsServer::~MetricsServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_, &one, sizeof one);
  thread_.join();
}

void MetricsServer::serve() {
  ::pthread_setname_np(::pthread_self(), "metrics http");
  std::list<HttpClient> clients;  // the oldest first
  RefusedConnections refused("the server of observe.prometheus.port", "which sent no request that it understands");
  const auto seconds = [] { return std::chrono::duration<double>(ServerClock::now().time_since_epoch()).count(); };
  const auto warn = [&](bool ends) { write_without_waiting(refused.take_warning(seconds(), ends)); };
  const auto end = [&](std::list<HttpClient>::iterator client) {
    if (!client->understood()) refused.add(client->address(), seconds());
    return clients.erase(client);
  };
  for (;;) {
    const bool full = clients.size() >= kMostConnections;
    const bool has_place = !full || ServerClock::now() >= clients.front().replaceable();
    // A descriptor of -1 is ignored: without a place no client is accepted.
    std::vector<pollfd> files = {{stop_, POLLIN, 0}, {has_place ? listening_ : -1, POLLIN, 0}};
    auto deadline = full && !has_place ? clients.front().replaceable() : ServerClock::time_point::max();
    if (refused.pending()) deadline = std::min(deadline, ServerClock::now() + std::chrono::seconds(1));
    for (const HttpClient& client : clients) {
      files.push_back(client.interest());
      deadline = std::min(deadline, client.deadline());
    }
    int milliseconds = -1;
    if (deadline != ServerClock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - ServerClock::now()).count();
      milliseconds = static_cast<int>(std::max<int64_t>(left, 0));
    }
    if (::poll(files.data(), files.size(), milliseconds) < 0 && errno != EINTR) return;
    if (files[0].revents != 0) return warn(true);
    warn(false);
    const auto now = ServerClock::now();
    size_t next = 2;
    for (auto client = clients.begin(); client != clients.end(); ++next) {
      const bool open = files[next].revents == 0 || client->advance(body_);
      client = open && now < client->deadline() ? std::next(client) : end(client);
    }
    if ((files[1].revents & POLLIN) == 0) continue;
    if (clients.size() >= kMostConnections) end(clients.begin());
    SocketAddress from;
    from.size = sizeof from.storage;
    const int accepted = ::accept4(listening_, reinterpret_cast<sockaddr*>(&from.storage), &from.size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted >= 0) clients.emplace_back(accepted, address_text(from.storage));
    // Without free descriptors the connection stays in the queue, and poll() returns at once.
    if (accepted < 0 && (errno == EMFILE || errno == ENFILE)) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace trireme
