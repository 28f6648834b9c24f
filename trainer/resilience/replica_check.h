#pragma once
#include <string>

#include "trainer/loop/trainer.h"

namespace trireme {

/// Compares replicated state bit for bit: every box of weights and moments that more than one rank owns (replicas under hybrid sharding and ZeRO-0,
/// norms and shared key/value heads over the tensor ranks, a tied embedding on first and last stage), and persistent full copies of parameters on
/// every data rank, which are gathered for the next step. Compares digests: one all-reduce per group, 16 bytes per box on the wire. Collective,
/// between steps. Returns "" if all agree, else, identically on every rank, the tensors that differ and the ranks with each value: at most eight
/// lines such as "exp_avg/final_norm.weight@0,0: ranks 0, 1 hold copy 1; rank 2 holds copy 2".
std::string replica_differences(Trainer& trainer);

}  // namespace trireme
