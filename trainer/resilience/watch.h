#pragma once
#include <memory>
#include <optional>
#include <string>

#include "parallel/comm/communicator.h"
#include "trainer/resilience/hub.h"
#include "trainer/resilience/monitor.h"

namespace trireme {

/// Watches this rank of a run. The hub is the launcher's where there is one, for it outlives every rank; else rank 0 has it. A world of one rank that nobody
/// launched has none. To be made as early as the configuration is known: what happens before is not watched.
class Watch {
 public:
  /// Collective over `world`, all of whose ranks are on this host if `one_host`. `silence_seconds`: HubOptions, of rank 0's hub. `launchers_hub`: its
  /// address, on every rank where there is one. Errors: IoError.
  Watch(Communicator& world, bool one_host, double silence_seconds, const std::optional<std::string>& launchers_hub);

  Progress& progress() { return progress_; }

 private:
  Progress progress_;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<Monitor> monitor_;
};

/// Dies with its parent (mpirun, a daemon of it, srun), so that nothing is left of a job whose launcher was killed. To be called first thing in a rank.
void die_with_parent();

}  // namespace trireme
