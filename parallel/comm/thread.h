#pragma once
// Ranks as threads of one process, to test parallel code without processes. Waiting ranks sleep on a condition variable, never spin.
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"

namespace trireme {

/// The world was aborted because of another rank, whose own error is the cause.
struct AbortedError : InternalError {
  using InternalError::InternalError;
};

/// The shared state of the ranks of one world. Strict like NCCL where MPI is lenient:
///  - A verb posts its buffers and returns; the last rank to post moves the data of all, summing in rank order (the same bits every time);
///    Work::wait sleeps until that has happened. A send completes only when its receive is posted.
///  - If ranks call different verbs, dtypes, counts, operations or roots as the n-th operation of a group, an InternalError names both. The same
///    holds for counts of an all_to_all_v that differ between sender and receiver.
///  - If every rank waits or has exited, the world is deadlocked: it is aborted, and the error lists what each rank waits for.
/// After an abort every pending wait and every later call of any rank throws.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size);
  /// The world communicator of `rank`. Make it once; use and destroy it in the thread of that rank. It may outlive the ThreadWorld.
  std::unique_ptr<Communicator> communicator(int rank);
  /// Wakes every waiting rank with AbortedError(reason). Later calls do not change the reason.
  void abort(const std::string& reason);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trireme
