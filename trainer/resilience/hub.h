#pragma once
// Side channel that detects dead and hung ranks: every rank's Monitor keeps a TCP connection to one Hub and reports its progress several times a
// second. MPI detects a dead rank late, and never detects a stopped rank, a deadlock or a lost link.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "parallel/crypto/aead.h"
#include "trainer/resilience/verdict.h"

namespace trireme {

struct HubOptions {
  int ranks = 1;
  bool one_host = true;         ///< listens on the loopback interface only
  double silence_seconds = 10;  ///< after that long without a message a rank is stopped, or its host or link is lost. Monitors use it too
  double join_seconds = 600;    ///< timeout for all ranks to join, from the start of the hub
  double failed_seconds = 60;   ///< grace period after a rank has reported an error: mpirun ends the others with its exit code
  int own_rank = -1;            ///< rank of this process, if it is one: `on_verdict` must end it
  std::shared_ptr<const crypto::Key> key = {};  ///< pre-shared with the monitors, whose connections are then encrypted (wire.h)
};

/// Runs a thread from construction to destruction. A connection that closes without a goodbye means a dead rank; silence means a stopped or
/// unreachable rank; no progress for longer than the timeout of the rank means a hung rank. Time in which the hub process itself was suspended does
/// not count. Whoever connects has five seconds for its hello; at most 512 such connections are open, and those refused are counted. After the destructor
/// the remaining ranks continue unmonitored.
class Hub {
 public:
  /// `on_verdict` is called at most once, from the hub's thread, after an order to exit was sent to every reachable rank. The orders may still be in
  /// the kernel's buffers, so a process that ends immediately may lose them. Before a verdict about hung ranks, these ranks get some seconds to write
  /// the stacks of their threads to their logs, which the verdict's text names. Errors: IoError.
  Hub(const HubOptions& options, std::function<void(const Verdict&)> on_verdict);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  /// Address for Monitor: "TOKEN@ADDRESS:PORT,ADDRESS:PORT". The token is random, so that a rank of another or an earlier job cannot join.
  std::string address() const;
  using Answer = std::function<void(const std::vector<RankState>& ranks, double now)>;
  /// Asks all ranks to write the stacks of their threads to their logs, and returns at once. `done` is called from the hub's thread when they have,
  /// at the latest after a few seconds, with the last reports and the current time. It must return soon, because the hub does nothing else meanwhile.
  /// Thread-safe. No effect while an earlier request is being served, or after a verdict.
  void request_stacks(Answer done);
  /// The highest step that a rank has reported.
  int64_t furthest_step() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
