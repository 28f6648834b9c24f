#include "parallel/comm/link.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr size_t kLongestFrame = 256 * 1024;  ///< without its tag
using FrameLength = std::array<uint8_t, 4>;

}  // namespace

bool ready_before(int file, short events, std::chrono::steady_clock::time_point end) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd source{file, events, 0};
    const int found = ::poll(&source, 1, static_cast<int>(std::max<int64_t>(0, left)));
    if (found > 0) return true;
    if (found == 0 || errno != EINTR) return false;
  }
}

void make_blocking(int file) {
  const int on = 1;
  ::setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (const int flags = ::fcntl(file, F_GETFL); flags >= 0) ::fcntl(file, F_SETFL, flags & ~O_NONBLOCK);
}

struct Link::Seal {
  explicit Seal(crypto::Channel of_link) : keys(std::move(of_link)) {}
  crypto::Channel keys;
  std::vector<std::byte> out = {}, in = {}, text = {};  ///< frames, and what the last received one contained
  std::mutex sending;                                   ///< guards `sent` and `out`
  size_t taken = 0;                                     ///< bytes of `text` that receive() has returned
  uint64_t sent = 0, received = 0;                      ///< frames
};

Link::Link(int file, std::string peer) : file_(file), peer_(std::move(peer)) {}
Link::Link(Link&& other) noexcept : file_(std::exchange(other.file_, -1)), peer_(std::move(other.peer_)), seal_(std::move(other.seal_)) {}
Link& Link::operator=(Link&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(peer_, other.peer_);
  std::swap(seal_, other.seal_);
  return *this;
}
Link::~Link() {
  if (file_ >= 0) ::close(file_);
}

void Link::encrypt(crypto::Channel keys, std::string peer) {
  seal_ = std::make_unique<Seal>(std::move(keys));
  peer_ = std::move(peer);
}

void Link::set_timeout(std::chrono::seconds timeout) const {
  const timeval time{timeout.count(), 0};
  ::setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  ::setsockopt(file_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

void Link::throw_lost() const {
  const bool late = errno == EAGAIN || errno == EWOULDBLOCK;
  throw IoError(late ? concat("no byte passed between this process and ", peer_, " within the timeout")
                     : concat("the connection with ", peer_, " is lost: ", std::strerror(errno)));
}

void Link::throw_cut() const { throw IoError(concat(peer_, " has closed its connection within a message")); }

void Link::send(std::span<const std::byte> bytes) const {
  if (!seal_) return send_plain(bytes);
  const std::lock_guard lock(seal_->sending);
  while (!bytes.empty()) {
    const std::span<const std::byte> text = bytes.first(std::min(bytes.size(), kLongestFrame));
    FrameLength length;
    crypto::put_little_endian(text.size() + crypto::kTagBytes, std::span(length));
    seal_->out.resize(length.size() + text.size() + crypto::kTagBytes);
    std::ranges::copy(std::as_bytes(std::span(length)), seal_->out.begin());
    seal_->keys.sends.seal(crypto::nonce_of(0, seal_->sent++), length, text, std::span(seal_->out).subspan(length.size()));
    send_plain(seal_->out);
    bytes = bytes.subspan(text.size());
  }
}

bool Link::receive(std::span<std::byte> bytes) const {
  if (!seal_) return receive_plain(bytes);
  for (size_t done = 0; done < bytes.size();) {
    if (seal_->taken == seal_->text.size() && !receive_frame()) {
      if (done == 0) return false;
      throw_cut();
    }
    const size_t count = std::min(bytes.size() - done, seal_->text.size() - seal_->taken);
    std::copy_n(seal_->text.begin() + static_cast<std::ptrdiff_t>(seal_->taken), count, bytes.begin() + static_cast<std::ptrdiff_t>(done));
    seal_->taken += count;
    done += count;
  }
  return true;
}

/// Fills seal_->text. False if the other end has closed the connection.
bool Link::receive_frame() const {
  FrameLength length;
  if (!receive_plain(std::as_writable_bytes(std::span(length)))) return false;
  size_t bytes = 0;
  for (size_t i = length.size(); i-- > 0;) bytes = bytes << 8 | length[i];
  const bool possible = bytes > crypto::kTagBytes && bytes <= kLongestFrame + crypto::kTagBytes;
  if (possible) {
    seal_->in.resize(bytes);
    seal_->text.resize(bytes - crypto::kTagBytes);
    seal_->taken = 0;
    if (!receive_plain(seal_->in)) throw_cut();
    if (seal_->keys.receives.open(crypto::nonce_of(0, seal_->received++), length, seal_->in, seal_->text)) return true;
  }
  throw InternalError(
      concat("a message of the connection with ", peer_,
             " is not authentic (security.encryption): it was changed on its way, replayed, out of order, or comes from another run"));
}

void Link::send_plain(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(file_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) throw_lost();
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

bool Link::receive_plain(std::span<std::byte> bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t received = ::recv(file_, bytes.data() + done, bytes.size() - done, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) throw_lost();
    if (received == 0 && done == 0) return false;
    if (received == 0) throw_cut();
    done += static_cast<size_t>(received);
  }
  return true;
}

void Link::shut_down() const {
  if (file_ >= 0) ::shutdown(file_, SHUT_RDWR);
}

}  // namespace trireme
