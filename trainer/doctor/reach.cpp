#include "trainer/doctor/reach.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "kernels/core/check.h"
#include "parallel/comm/addresses.h"

namespace trireme::doctor {
namespace {

constexpr char kYes = 'y';
constexpr int kTurnMilliseconds = 20;
constexpr size_t kMostVisitors = 256;

/// A connection that has not yet said everything.
struct Visitor {
  int file;
  std::string said;
};

/// An attempt to connect to one address of a door.
struct Attempt {
  size_t door;
  int file;
  std::string token;
  bool greeted = false;
};

/// One attempt for each address of each door.
std::vector<Attempt> attempts_for(const std::vector<std::string>& doors) {
  std::vector<Attempt> attempts;
  for (size_t door = 0; door < doors.size(); ++door) {
    const Endpoint endpoint = parse_endpoint(doors[door]);
    for (const std::string& address : endpoint.addresses)
      if (const int file = start_connecting(address); file >= 0) attempts.push_back({door, file, endpoint.token});
  }
  return attempts;
}

}  // namespace

class Door::Impl {
 public:
  Impl() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), token_(random_token()) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t size = sizeof at;
    if (listener_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(listener_, SOMAXCONN) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) != 0)
      return;
    Endpoint endpoint{token_, own_addresses(true)};
    endpoint.addresses.pop_back();  // loopback, where every host finds itself
    for (std::string& address : endpoint.addresses) address += concat(":", ntohs(at.sin_port));
    address_ = text_of(endpoint);
    thread_ = std::thread([this] { run(); });
  }
  ~Impl() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    for (const Visitor& visitor : visitors_) ::close(visitor.file);
    if (listener_ >= 0) ::close(listener_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const std::string& address() const { return address_; }

 private:
  void run() {
    while (!stop_) {
      std::vector<pollfd> sources{{listener_, POLLIN, 0}};
      for (const Visitor& visitor : visitors_) sources.push_back({visitor.file, POLLIN, 0});
      ::poll(sources.data(), sources.size(), kTurnMilliseconds);
      for (size_t i = visitors_.size(); i > 0; --i)
        if (sources[i].revents != 0 && serve(visitors_[i - 1])) {
          ::close(visitors_[i - 1].file);
          visitors_.erase(visitors_.begin() + static_cast<std::ptrdiff_t>(i - 1));
        }
      if ((sources[0].revents & POLLIN) == 0 || visitors_.size() >= kMostVisitors) continue;
      if (const int file = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); file >= 0) visitors_.push_back({file, ""});
    }
  }

  /// Returns true once the visitor is done.
  bool serve(Visitor& visitor) const {
    std::array<char, 64> bytes;
    const ssize_t count = ::recv(visitor.file, bytes.data(), bytes.size(), 0);
    if (count <= 0) return count == 0 || errno != EAGAIN;
    visitor.said.append(bytes.data(), static_cast<size_t>(count));
    if (visitor.said.size() < token_.size()) return false;
    if (visitor.said == token_) ::send(visitor.file, &kYes, 1, MSG_NOSIGNAL);
    return true;
  }

  int listener_;
  std::string token_, address_;
  std::vector<Visitor> visitors_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

Door::Door() : impl_(std::make_unique<Impl>()) {}
Door::~Door() = default;
const std::string& Door::address() const { return impl_->address(); }

std::vector<bool> reaches(const std::vector<std::string>& doors, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::vector<Attempt> attempts = attempts_for(doors);
  std::vector<bool> opened(doors.size());
  while (!attempts.empty() && Clock::now() < end) {
    std::vector<pollfd> sources;
    for (const Attempt& attempt : attempts) sources.push_back({attempt.file, static_cast<short>(attempt.greeted ? POLLIN : POLLOUT), 0});
    ::poll(sources.data(), sources.size(), kTurnMilliseconds);
    for (size_t i = attempts.size(); i > 0; --i) {
      Attempt& attempt = attempts[i - 1];
      bool over = opened[attempt.door];
      if (sources[i - 1].revents != 0 && !attempt.greeted) {
        over = over || ::send(attempt.file, attempt.token.data(), attempt.token.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(attempt.token.size());
        attempt.greeted = true;
      } else if (sources[i - 1].revents != 0) {
        char answer = 0;
        if (::recv(attempt.file, &answer, 1, 0) == 1 && answer == kYes) opened[attempt.door] = true;
        over = true;
      }
      if (!over) continue;
      ::close(attempt.file);
      attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i - 1));
    }
  }
  for (const Attempt& attempt : attempts) ::close(attempt.file);
  return opened;
}

}  // namespace trireme::doctor
