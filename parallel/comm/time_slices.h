#pragma once

namespace trireme {

/// Asks Linux for the shortest time slices, 0.1 ms, for the calling thread and for the threads and processes that it starts from now on. A rank that
/// waits yields its core, which costs it the rest of its slice if another program wants to run. The share of the core stays the same. Before Linux
/// 6.12 all slices have one length, and this has no effect; nor has it under a real-time policy.
void take_short_time_slices();

}  // namespace trireme
