#pragma once
// One TCP connection as a byte stream, encrypted on request.
//
// What is sent over an encrypted connection is cut into frames: 4 bytes of length, little endian, and that many encrypted bytes with their tag. The
// nonce is the number of the frame; the length is authenticated with it.
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "parallel/crypto/handshake.h"

namespace trireme {

/// One end of a connection. A thread may send while another one receives; two threads must not do the same.
class Link {
 public:
  /// Closes `file`, a blocking socket, at its end. `peer`: the other end, for messages.
  explicit Link(int file = -1, std::string peer = "another island");
  Link(Link&& other) noexcept;
  Link& operator=(Link&& other) noexcept;
  ~Link();

  /// From now on both directions are encrypted.
  void encrypt(crypto::Channel keys, std::string peer);
  /// From now on a call fails if nothing of it progresses for this long.
  void set_timeout(std::chrono::seconds timeout) const;
  /// Sends all of `bytes`. Blocks while the other end does not receive. Errors: IoError if the connection is lost.
  void send(std::span<const std::byte> bytes) const;
  /// Fills `bytes`. Returns false if the other end has closed the connection before the first byte.
  /// Errors: IoError if the connection is lost, or closed after it; InternalError that names the peer if a frame does not open.
  bool receive(std::span<std::byte> bytes) const;
  /// Ends the connection in both directions: blocked calls return or throw. Thread-safe.
  void shut_down() const;
  bool is_open() const { return file_ >= 0; }
  int file() const { return file_; }
  const std::string& peer() const { return peer_; }

 private:
  struct Seal;
  bool receive_plain(std::span<std::byte> bytes) const;
  bool receive_frame() const;
  void send_plain(std::span<const std::byte> bytes) const;
  [[noreturn]] void throw_lost() const;
  [[noreturn]] void throw_cut() const;

  int file_;
  std::string peer_;
  std::unique_ptr<Seal> seal_;  ///< null: not encrypted
};

/// Waits until `file` is ready for `events` of poll(); false if that takes until `end`.
bool ready_before(int file, short events, std::chrono::steady_clock::time_point end);

/// Makes a connected socket blocking, without Nagle's delay of small messages.
void make_blocking(int file);

}  // namespace trireme
