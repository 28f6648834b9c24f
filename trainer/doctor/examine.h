#pragma once
#include <functional>
#include <optional>
#include <string>

#include "parallel/comm/communicator.h"
#include "trainer/config/config.h"
#include "trainer/doctor/facts.h"
#include "trainer/job/launch_environment.h"
#include "trainer/machine/machine.h"

namespace trireme::doctor {

/// What to examine.
struct Subject {
  LaunchEnvironment environment;
  RankPlace place;
  std::optional<Config> config = {};  ///< resolved
  std::string run_directory = ".";    ///< without a configuration: where files would be written
};

/// Facts that decide whether ranks can be started on this host: a third of a second.
RankFacts examine_start(const Subject& subject, int rank);
/// The same with directories, data, key files and memory forecast: a few seconds.
RankFacts examine_host(const Subject& subject, int rank);

/// Runs all probes on all ranks. The result is complete on rank 0; the other ranks' lacks the other ranks. `stage`: called before each part that waits
/// for other ranks; `partial`: called on rank 0 with what is known before the first such part. Takes at most about ten seconds, unless a rank does not
/// answer. Collective.
JobFacts examine(Communicator& world, const Subject& subject, const std::function<void(const std::string&)>& stage,
                 const std::function<void(const JobFacts&)>& partial);

/// The facts of a job of one rank.
JobFacts job_of(const Subject& subject, const RankFacts& rank);

}  // namespace trireme::doctor
