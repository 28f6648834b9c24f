#pragma once
#include <memory>
#include <string>

#include "parallel/crypto/aead.h"
#include "trainer/resilience/rank_record.h"

namespace trireme {

/// A rank's end of the side channel: a thread with all signals blocked. It reports the progress of `record` to the hub, and has the stacks of all
/// threads written into the record when the hub asks for them.
/// It ends this process immediately with ExitCode::kInternal, whatever blocks the main thread, if the hub orders it to exit, if the hub's process has
/// died, or if the hub's host is unreachable for ten seconds (the hub's limit). In the last two cases it first prints the reason to standard error.
/// It waits without a limit for a hub in a stopped launcher, but only up to the hub's limit for one in a stopped rank.
/// The destructor says goodbye: the rank exits normally or, during stack unwinding, has an error to report.
class Monitor {
 public:
  /// `key`: HubOptions::key of the hub. Errors: IoError if the hub cannot be reached, or has another key. `record` must outlive it.
  Monitor(const std::string& hub_address, int rank, RankRecord& record, std::shared_ptr<const crypto::Key> key = {});
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
