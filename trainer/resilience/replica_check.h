#pragma once
#include <string>

#include "trainer/loop/trainer.h"

namespace trireme {

/// Compares what must be equal on several ranks, bit for bit: every box of weights and moments that more than one rank owns (replicas under
/// hybrid sharding and ZeRO-0, norms and shared key/value heads over the tensor ranks, a tied embedding on first and last stage). By digests: 16 bytes a box
/// on the wire. Collective, between steps. Empty if all agree, else, on every rank alike, the parameters that differ with the ranks that hold each value.
std::string replica_differences(Trainer& trainer);

}  // namespace trireme
