#pragma once
// Ranks as threads of one process: the parallel code under test, without processes. Waiting ranks sleep on a condition variable, never spin.
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"

namespace trireme {

/// Another rank brought the world down; its own error is the cause.
struct AbortedError : InternalError {
  using InternalError::InternalError;
};

/// What the ranks of one world share. Strict like NCCL where MPI is lenient:
///  - a verb posts its buffers and returns; the last rank to post moves the data of all, summing in rank order (the same bits every time);
///    Work::wait sleeps until that has happened. A send is over only when its receive is posted.
///  - ranks that call different verbs, dtypes, counts, operations or roots as the n-th operation of a group: the InternalError names both. So it does for
///    counts of an all_to_all_v that differ between sender and receiver.
///  - a world in which every rank waits or has left can never go on: it is aborted, with what each rank waits for.
/// After an abort every pending wait and every later call of any rank throws.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size);
  /// The world communicator of `rank`, to be made once and used and destroyed by the thread that plays this rank. It may outlive the ThreadWorld.
  std::unique_ptr<Communicator> communicator(int rank);
  /// Wakes every waiting rank with AbortedError(reason). The first reason stays.
  void abort(const std::string& reason);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trireme
