#pragma once
// The hosts of the jobs that a launcher starts one after the other.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/job/host_pool.h"
#include "trainer/job/host_probe.h"
#include "trainer/job/job_directory.h"
#include "trainer/job/launch_environment.h"
#include "trainer/job/stop_signals.h"
#include "trainer/resilience/verdict.h"

namespace trireme {

struct JobHostsOptions {
  std::optional<std::string> hosts_file = {};          ///< nullopt, and no allocation_hosts: all ranks run on this host, or in the Slurm allocation
  std::function<std::string()> allocation_hosts = {};  ///< LaunchOptions::allocation_hosts, which takes the place of the file
  std::vector<int> worlds;                             ///< numbers of ranks that a job may have, in descending order
  int64_t strikes = 2;                                 ///< resilience.host_strikes
  double wait_seconds = 600;                           ///< resilience.host_wait_seconds
};

/// Chooses hosts for each job: the hosts of the file without those that have made jobs fail or cannot be reached. The file may change at any time; changed
/// hosts begin without strikes. If the file gives no slots, all hosts are used, and mpirun decides.
class JobHosts {
 public:
  /// `say`: prints a line for the user. Errors: those of count_hosts(); ConfigError if there are several worlds, and hosts without slots.
  JobHosts(const LaunchEnvironment& environment, JobHostsOptions options, std::function<void(const std::string&)> say);

  struct World {
    int ranks = 0;
    std::optional<std::string> hosts_file = {};
    int host_ranks = 0;  ///< ranks of the host that has most
  };
  /// Hosts for the next job. Waits for hosts as long as the options allow; nullopt if there are too few then, or if a stop was requested.
  std::optional<World> next(const StopRequest& stop);
  /// How long the last call of next() has waited for hosts; 0 if there were enough.
  double waited_seconds() const { return waited_; }
  /// The job on the last world failed. `verdict`: the hub's, if it has one; else `first_rank` is the rank that failed first, if mpirun knows it. Their host
  /// gets a strike, unless ranks of several hosts failed together, as with a network. Returns true if the next job will use other hosts.
  bool failed(const std::optional<Verdict>& verdict, std::optional<int> first_rank = {});
  /// True if the running job should save and continue with other ranks or hosts, because the hosts file has changed or a lost host is back. Only jobs that may
  /// have several numbers of ranks move. Looks at the file once a second, at an allocation every ten.
  bool should_move();

 private:
  using Clock = std::chrono::steady_clock;

  bool chooses() const { return pool_.has_value(); }
  std::string read_text_of_hosts() const;
  bool read_hosts();
  bool start_probe(const std::vector<Host>& hosts);
  void probe_all(const StopRequest& stop);
  const std::filesystem::path& directory();
  void take_answers(const std::vector<HostProbe::Answer>& answers);
  World undecided();
  std::string written(const std::string& text);
  World use(const Placement& placement);
  void report(const Placement& placement) const;

  const LaunchEnvironment& environment_;
  JobHostsOptions options_;
  std::function<void(const std::string&)> say_;
  std::optional<LockedTemporaryDirectory> directory_;  ///< for hostfiles
  std::string text_;                                   ///< of the hosts file
  std::optional<HostPool> pool_;                       ///< nullopt: there is nothing to choose
  std::optional<Placement> current_;
  std::optional<HostProbe> probe_;
  bool has_failed_ = false;  ///< the last job has
  double waited_ = 0;        ///< seconds
  Clock::time_point next_look_, next_probe_;
};

}  // namespace trireme
