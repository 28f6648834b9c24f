#pragma once
// Connections between a coordinator and its members: TCP over IPv4, encrypted, and authenticated by the Ed25519 keys of a roster.
//
// The member, which connects, sends a hello with an ephemeral X25519 key in clear, and the coordinator answers with its own (parallel/crypto/handshake.h,
// without a pre-shared key). Then each signs what both have agreed on, together with its role and the digest of its roster: first the coordinator, and
// the member only if that is right. Signatures travel encrypted, so that others do not learn who connects. Whoever has another roster, or a key that is
// not in it, is refused. All further bytes are frames of Link.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "parallel/comm/link.h"
#include "trainer/federation/roster.h"

namespace trireme::federation {

using Clock = std::chrono::steady_clock;
inline constexpr std::chrono::milliseconds kLook{100};  ///< between two looks for a stop request

/// Connects a member to the coordinator at "HOST:PORT". Errors: IoError if it does not answer until `end`, or is not the coordinator of the roster.
Link connect_to_coordinator(const std::string& address, const Identity& identity, Clock::time_point end);

/// The port of the coordinator, and whoever connects to it until it is known as a member. Each connection has five seconds to identify itself, one
/// second if there are hundreds; those that do not are closed and counted for a warning.
class MemberListener {
 public:
  /// `address`: "A.B.C.D". `port` 0: any that is free. Errors: IoError if it cannot listen there; ConfigError if that is no address.
  MemberListener(const std::string& address, int port, const Identity& identity);
  ~MemberListener();
  int port() const;
  /// The next member that connects, and its connection; nothing if none does until `end`.
  std::optional<std::pair<int, Link>> next(Clock::time_point end);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::federation
