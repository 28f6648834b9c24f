#pragma once
// Byte streams between the ranks of a group that threads beside the main thread may use, which the verbs of a Communicator do not allow. Parameter
// servers use them: a rank serves others while its main thread computes. TCP over IPv4, on loopback alone if all ranks are on one host.
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

/// One end of a connection. A thread may send while another one receives; two threads must not do the same.
class Link {
 public:
  explicit Link(int file = -1) : file_(file) {}
  Link(Link&& other) noexcept;
  Link& operator=(Link&& other) noexcept;
  ~Link();

  /// Sends all of `bytes`. Blocks while the other end does not receive. Errors: IoError if the connection is lost.
  void send(std::span<const std::byte> bytes) const;
  /// Fills `bytes`. Returns false if the other end has closed the connection before the first byte.
  /// Errors: IoError if the connection is lost, or closed after it.
  bool receive(std::span<std::byte> bytes) const;
  /// Ends the connection in both directions: blocked calls return or throw. Thread-safe.
  void shut_down() const;

 private:
  int file_;
};

/// Two connections of this rank with each other rank of a group: one that this rank has opened, as a client, and one that the other rank has opened,
/// which this rank serves.
class RankLinks {
 public:
  /// Collective. Ranks recognise each other by a random token of the process that listens.
  /// Errors: IoError, on the ranks that it concerns, if a rank cannot be reached within 30 seconds.
  explicit RankLinks(Communicator& group);

  const Link& to_server(int rank) const { return to_servers_[static_cast<size_t>(rank)]; }      ///< as a client of `rank`
  const Link& from_client(int rank) const { return from_clients_[static_cast<size_t>(rank)]; }  ///< as the server of `rank`
  void shut_down() const;

 private:
  std::vector<Link> to_servers_, from_clients_;  ///< by rank; this rank's own entries have no connection
};

}  // namespace trireme
