#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "parallel/comm/shared_memory.h"

namespace trireme {

class SharedGroup;

/// Progresses the operations of all SharedGroups of a process, and lets the process sleep while none can progress. One per world; the ranks of this
/// host share `bells`.
class SharedDriver {
 public:
  static int64_t bytes(int ranks);  ///< size of `bells`
  /// `poll` progresses other operations of this process (MPI). It is called occasionally while waiting, and always when idle while `polled` > 0.
  SharedDriver(std::unique_ptr<SharedMemory> bells, int rank, int ranks, std::function<void()> poll);

  /// True if operations are in flight.
  bool busy() const { return !groups_.empty(); }
  /// Progresses every operation as far as possible without waiting; false if none moved.
  bool advance();
  /// Advances until done() returns true.
  void wait(const std::function<bool()>& done);
  /// Advances until nothing is in flight. Required before a call that blocks without progressing these operations.
  void finish();
  /// Wakes a rank of this host that sleeps in wait(). Before the call, store what the rank should see, then issue a fence.
  void ring(int rank);

  void add(SharedGroup& group) { groups_.push_back(&group); }       ///< for a group that now has operations in flight
  void remove(SharedGroup& group) { std::erase(groups_, &group); }  ///< no-op if the group is absent

  int64_t polled = 0;  ///< operations in flight that only poll() progresses

 private:
  struct Bell;
  Bell& bell(int rank) const;
  void sleep();

  std::unique_ptr<SharedMemory> bells_;
  int rank_;
  int spins_;
  std::function<void()> poll_;
  std::vector<SharedGroup*> groups_;  ///< with operations in flight
};

}  // namespace trireme
