#pragma once
// What an attacker between the hosts of a job could see and change.
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme::test {

/// A message between two hosts, on its way. The parts of an all_to_all have the channel -1.
struct WireMessage {
  std::string group;
  int from, to;  ///< world ranks
  int channel;
  int64_t number;  ///< from 0, among those of the group, channel and direction
  bool outgoing;   ///< at the sender, or at the receiver after it has arrived
  std::span<std::byte> bytes;
};
using Wire = std::function<void(const WireMessage& message)>;

/// Wraps `inner`, a world with ranks on `hosts` (by rank), and its groups. `wire` is called by the thread of the rank that sends or receives, and may
/// change what arrives. A verb of a group on several hosts that is not made of messages is an InternalError: it would bypass the seal.
std::unique_ptr<Communicator> tapped(std::unique_ptr<Communicator> inner, std::vector<int> hosts, Wire wire);

}  // namespace trireme::test
