#pragma once
// Byte streams between the ranks of a group that threads beside the main thread may use, which the verbs of a Communicator do not allow. Parameter
// servers use them: a rank serves others while its main thread computes. TCP over IPv4, on loopback alone if all ranks are on one host.
//
// Encrypted connections. The ranks tell each other a random secret over the group, which must be sealed (sealed.h). The keys of a connection, one for
// each direction, are derived from the secrets of both ranks, their ranks, which of them is the client, and 32 random bytes of the server, which it
// sends in clear first; the cipher is the best that both have.
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/link.h"

namespace trireme {

/// Two connections of this rank with each other rank of a group: one that this rank has opened, as a client, and one that the other rank has opened,
/// which this rank serves.
class RankLinks {
 public:
  /// Collective. Ranks recognise each other by a random token of the process that listens. `encrypted`: all connections are; the
  /// group must then be sealed between hosts.
  /// Errors: IoError, on the ranks that it concerns, if a rank cannot be reached within 30 seconds.
  explicit RankLinks(Communicator& group, bool encrypted = false);

  const Link& to_server(int rank) const { return to_servers_[static_cast<size_t>(rank)]; }      ///< as a client of `rank`
  const Link& from_client(int rank) const { return from_clients_[static_cast<size_t>(rank)]; }  ///< as the server of `rank`
  void shut_down() const;

 private:
  std::vector<Link> to_servers_, from_clients_;  ///< by rank; this rank's own entries have no connection
};

}  // namespace trireme
