#pragma once
#include <memory>
#include <optional>
#include <string>

#include "parallel/comm/communicator.h"
#include "trainer/resilience/hub.h"
#include "trainer/resilience/monitor.h"

namespace trireme {

/// Monitors this rank of a run. The hub is in the launcher if there is one, because it outlives every rank; else in rank 0. A world of one rank
/// without a launcher has none. Create it as soon as the configuration is known: earlier failures are not detected.
class Watch {
 public:
  /// Collective over `world`. `one_host`: all ranks are on this host. `silence_seconds`: HubOptions::silence_seconds of rank 0's hub.
  /// `launchers_hub`: address of the launcher's hub, on every rank, if there is one. `key`: HubOptions::key, for either hub. Errors: IoError.
  Watch(Communicator& world, bool one_host, double silence_seconds, const std::optional<std::string>& launchers_hub,
        const std::shared_ptr<const crypto::Key>& key = {});

  RankRecord& record() { return record_; }
  Progress& progress() { return record_.progress(); }

 private:
  RankRecord record_;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<Monitor> monitor_;
};

/// Makes this process die with its parent (mpirun, its daemon, srun), so that no rank survives a killed launcher. Call it first in a rank.
void die_with_parent();

}  // namespace trireme
