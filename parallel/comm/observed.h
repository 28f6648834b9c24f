#pragma once
// A communicator that shows every buffer that its rank sends or receives.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

/// One buffer of one operation.
struct ObservedBuffer {
  const std::string& group;       ///< "shard"
  const std::vector<int>& ranks;  ///< world ranks of the group
  const char* verb;               ///< "all_gather"
  bool outgoing;                  ///< true: about to be sent; false: has been received
  /// Collective operations of a group are numbered from 1, and so are the messages from one rank to another. All ranks agree on the numbers.
  int64_t number;
  int peer;  ///< world rank at the other end of a message; -1 in a collective operation
  const Tensor& buffer;
};
/// Called with what is sent before the operation starts, and with what was received after its wait.
using BufferObserver = std::function<void(Context& ctx, const ObservedBuffer& traffic)>;

/// Wraps `inner`, a world, and every group made from it. Operations on the meta device are not shown. `inner` outlives it.
std::unique_ptr<Communicator> observed(Communicator& inner, BufferObserver observer);

}  // namespace trireme
