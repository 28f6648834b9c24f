#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "parallel/comm/shared_memory.h"

namespace trireme {

class SharedGroup;

/// Moves the operations of all SharedGroups of a process and lets it sleep while there is nothing to move. One for a world, whose ranks of this host share
/// `bells`.
class SharedDriver {
 public:
  static int64_t bytes(int ranks);  ///< of bells
  /// `poll` moves what else is under way in this process (MPI); called now and then while waiting, always if `polled` says so.
  SharedDriver(std::unique_ptr<SharedMemory> bells, int rank, int ranks, std::function<void()> poll);

  /// Operations in flight.
  bool busy() const { return !groups_.empty(); }
  /// As far as every operation goes now; false: no further than before.
  bool advance();
  /// Advances until done() holds.
  void wait(const std::function<bool()>& done);
  /// Until nothing is in flight: before what blocks without driving them.
  void finish();
  /// Wakes a rank of this host that sleeps in wait(). What it should see has been stored before, and a fence stands in between.
  void ring(int rank);

  void add(SharedGroup& group) { groups_.push_back(&group); }     ///< which has come to have operations in flight
  void remove(SharedGroup& group) { std::erase(groups_, &group); }  ///< if it is there

  int64_t polled = 0;  ///< operations in flight that only poll() moves

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
