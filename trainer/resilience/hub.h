#pragma once
// The side channel that finds dead and hung ranks: every rank's Monitor keeps a TCP connection to one Hub and tells it several times a second what it is
// doing. MPI notices a dead rank late, and never a stopped one, a deadlock, or a lost link.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trainer/resilience/verdict.h"

namespace trireme {

struct HubOptions {
  int ranks = 1;
  bool one_host = true;         ///< listens on the loopback interface only
  double silence_seconds = 10;  ///< without a word from a connected rank: it is stopped, or its host or link is lost. Monitors take the same limit
  double join_seconds = 600;    ///< from the hub's beginning until all ranks have joined
  double failed_seconds = 60;   ///< after a rank has failed with an error of its own: mpirun ends the others with its exit code
  int own_rank = -1;            ///< of this process, if it is a rank itself: `on_verdict` ends it
};

/// Runs a thread from construction to destruction. A connection that ends without a goodbye is a dead rank, silence a stopped or unreachable one, progress
/// that stands still for longer than the rank's timeout a hung one. Time in which the hub itself did not run does not count. Destroyed, it lets the ranks
/// that are left go on unwatched.
class Hub {
 public:
  /// `on_verdict` is called at most once, from the hub's thread, after every rank that can be reached was told to leave: the words are with the kernel, so
  /// a process that ends at once may still lose them. Errors: IoError.
  Hub(const HubOptions& options, std::function<void(const Verdict&)> on_verdict);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  /// For Monitor: "TOKEN@ADDRESS:PORT,ADDRESS:PORT"; the token is random, so that a rank of another or an earlier job cannot join.
  std::string address() const;
  /// The furthest step a rank has said to be in.
  int64_t furthest_step() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
