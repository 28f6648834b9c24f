#pragma once
#include <memory>
#include <string>

#include "parallel/comm/progress.h"

namespace trireme {

/// One rank's end of the side channel: a thread, all signals blocked, that reports `progress` to the hub. Told to leave, or when the hub's process has died
/// or its host has been out of reach for ten seconds (the hub's limit), it ends this process at once with ExitCode::kInternal, whatever the main thread
/// hangs in; in the second case it first says why on standard error. A launcher that is merely stopped is waited for, a rank that has the hub only as long as
/// the hub's limit. Destroyed, it says goodbye: the rank left in order, or, while an exception unwinds the stack, has an error of its own to report.
class Monitor {
 public:
  /// Errors: IoError where the hub cannot be reached. `progress` outlives it.
  Monitor(const std::string& hub_address, int rank, const Progress& progress);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
