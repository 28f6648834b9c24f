#pragma once
// The simulated NCCL, as tests see it. Ranks are threads, each with a GPU of its own. It is stricter than the real one:
//  - Operations overlap and end in any order, but must be able to run one after the other on each device, in their order of issue over all communicators.
//    An order that could deadlock so is an error as soon as it is issued, whatever the timing.
//  - Ranks that disagree on operation, count, dtype, reduction or root are an error, as are a rank that leaves while others wait for it, buffers that are
//    no memory of the device, and two communicators on a device without NCCL_LAUNCH_ORDER_IMPLICIT=1.
//  - When an operation may begin, its outputs (and what is input and output at once) are filled with 0xFF bytes until it ends: who reads them without
//    waiting gets NaN. A buffer that somebody writes to meanwhile, or an input that changes, is an error.
// An error is told on stderr, is the asynchronous error of all ranks of the communicator, and fails the devices that wait in it. Sums are taken in rank
// order, as those of rank threads on the host are.
#include <string>

namespace cuda_sim {

/// A broken link: the communicators of that name have an asynchronous ncclSystemError on every rank.
void break_communicators(const std::string& name);
/// Initialised and neither destroyed nor aborted, over all ranks.
int live_communicators();

}  // namespace cuda_sim
