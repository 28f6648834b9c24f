#include "tests/support/strangers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"

namespace trireme::test {
namespace {

constexpr size_t kMostHeld = 500;

void send_what_fits(int file, const std::string& bytes) { ::send(file, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); }

std::string garbage(uint64_t seed) {
  std::string bytes;
  for (uint64_t i = 0, length = 1 + random_bits(seed, 0) % 3000; i < length; ++i) bytes += static_cast<char>(random_bits(seed, i + 1));
  return bytes;
}

}  // namespace

Strangers::Strangers(int port, std::vector<std::string> forged) : port_(port), forged_(std::move(forged)) {}

Strangers::~Strangers() {
  while (!held_.empty()) close_oldest();
}

void Strangers::close_oldest() {
  ::close(held_.front());
  held_.pop_front();
}

void Strangers::connect(int count) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(port_));
  for (int i = 0; i < count; ++i) {
    const int64_t number = next_++;
    const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    TRIREME_CHECK(file >= 0, "the test has no descriptor left");
    const timeval limit{5, 0};  // for connect() too, while the queue of the listener is full
    ::setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (::connect(file, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
      ::close(file);
      continue;
    }
    ++opened_;
    const auto kind = static_cast<int>(number % kKinds);
    if (kind == 2) send_what_fits(file, garbage(static_cast<uint64_t>(number)));
    if (kind == 3) send_what_fits(file, "{");
    if (kind == 4) send_what_fits(file, std::string(size_t{1} << 20, '['));
    if (kind == 5 && !forged_.empty()) send_what_fits(file, forged_[static_cast<size_t>(number / kKinds) % forged_.size()]);
    if (kind == 6) {
      const linger reset{1, 0};
      ::setsockopt(file, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      send_what_fits(file, "{\"token\": \"");
    }
    if (kind == 7) ::shutdown(file, SHUT_WR);
    if (kind == 0 || kind == 6) {
      ::close(file);
      continue;
    }
    held_.push_back(file);
    if (held_.size() > kMostHeld) close_oldest();
  }
}

void Strangers::drip() const {
  for (const int file : held_) send_what_fits(file, "x");
}

size_t Strangers::open(double seconds) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::deque<int> left = held_;
  for (;;) {
    std::erase_if(left, [](int file) {
      char bytes[4096];
      for (;;) {
        const ssize_t count = ::recv(file, bytes, sizeof bytes, MSG_DONTWAIT);
        if (count <= 0) return count == 0 || (errno != EAGAIN && errno != EINTR);
      }
    });
    if (left.empty() || std::chrono::steady_clock::now() >= end) return left.size();
    ::usleep(20'000);
  }
}

Footprint footprint_of(int process) {
  Footprint result;
  const std::filesystem::path place = concat("/proc/", process);
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(place / "fd")) ++result.descriptors;
  std::ifstream status(place / "status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) result.bytes = std::stoll(line.substr(6)) * 1024;
  TRIREME_CHECK(result.bytes > 0, "no resident bytes of process ", process);
  return result;
}

}  // namespace trireme::test
