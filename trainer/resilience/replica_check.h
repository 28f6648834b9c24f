#pragma once
#include <string>

#include "trainer/loop/trainer.h"

namespace trireme {

/// Compares what must be equal on several ranks, bit for bit: every box of weights and moments that more than one rank owns (replicas under
/// hybrid sharding and ZeRO-0, norms and shared key/value heads over the tensor ranks, a tied embedding on first and last stage), and full copies of
/// parameters that stay on every data rank, which it gathers for the next step. By digests: one reduction a group, 16 bytes a box on the wire.
/// Collective, between steps. Empty if all agree, else, on every rank alike, the parameters that differ with the ranks that hold each value: at most
/// eight lines such as "exp_avg/final_norm.weight@0,0: ranks 0, 1 hold 1f3...; rank 2 holds 9e0...".
std::string replica_differences(Trainer& trainer);

}  // namespace trireme
