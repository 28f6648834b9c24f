#pragma once
// Encrypted and authenticated messages between the hosts of a job: a communicator that gives another one only sealed frames to carry to ranks of other
// hosts. Ranks of one host share their memory anyway, and what they exchange stays as it is.
//
// Keys. agree_on_keys() runs one handshake (crypto/handshake.h) for each pair of ranks on different hosts. Its context binds the secret of a pair to
// both ranks, the number of ranks, the division of ranks into hosts and whatever the ranks have agreed on before in clear text. From that secret each
// group derives a key of its own for each direction of the pair: from the name of the group, its ranks, and how many groups of the pair were made
// before it. So a frame of another run, group, pair or direction never opens.
//
// Frames. A message of n bytes becomes n + 16 bytes: encrypted, and the tag. The nonce is the channel (4 bytes) and the number of the message among
// those of its channel and direction (8 bytes), both little endian; neither is sent, because sender and receiver count alike. So a frame that is
// repeated, left out or out of order does not open either. The parts of an all_to_all have a channel of their own, kChannels. The length of a message
// is authenticated with it.
//
// Verbs. exchange, all_to_all, all_to_all_v, broadcast and barrier are sealed here. In a group on several hosts the sums and all_gather of `inner`
// would be made of its own messages in clear, so they are InternalErrors: stepwise() around this communicator makes them of exchange. A group on one
// host has all verbs of `inner`.
//
// Errors. A frame that does not open is an InternalError that names this rank, its peer, both hosts and the group, and says what was wrong as far as
// that can be found out. It ends the job, because nothing that arrives later can be trusted to be in order.
//
// Memory. Frames come from an arena of their own, because they are no part of the model: forecasts of memory do not contain them.
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/crypto/aead.h"

namespace trireme {

struct SealOptions {
  std::vector<int> hosts;          ///< by world rank, numbers that differ between hosts
  std::vector<std::string> names;  ///< by world rank, the name of its host, for messages
  std::string agreed;              ///< what else all ranks have agreed on in clear text: keys agree only if it is the same everywhere
};

/// The secrets of this rank with the ranks on other hosts.
class SealKeys;

/// Collective over `world`, on at least two hosts, while nothing is in flight. Two messages in each direction between ranks on different hosts, in
/// clear and independent of all data. `shared`: the pre-shared key.
/// Errors: ConfigError, on the ranks that it concerns, if another rank has another key or the handshake was changed on its way. The caller must let the
/// ranks agree on that, because others return.
std::shared_ptr<SealKeys> agree_on_keys(Communicator& world, const crypto::Key& shared, SealOptions options);

/// Wraps `world`, the one that agreed on `keys`, and all groups made from it.
std::unique_ptr<Communicator> sealed(std::unique_ptr<Communicator> world, std::shared_ptr<SealKeys> keys);

}  // namespace trireme
