#include "trainer/doctor/examine.h"

#include "kernels/core/check.h"
#include "parallel/comm/mpi.h"
#include "trainer/doctor/bounded.h"
#include "trainer/doctor/needs.h"
#include "trainer/doctor/probe_disk.h"
#include "trainer/doctor/probe_host.h"
#include "trainer/doctor/probe_links.h"
#include "trainer/files/strict_json.h"
#include "trainer/layout/lowered_schedule.h"

namespace trireme::doctor {
namespace {

constexpr double kDiskSeconds = 4, kDataSeconds = 3, kKeySeconds = 1, kReachSeconds = 1.5, kLinkSeconds = 3;

std::string directory_of(const Subject& subject) { return subject.config ? subject.config->run.directory : subject.run_directory; }

/// True on ranks to which a file that rank 0 makes in its run directory is visible in theirs. Collective.
bool sees_rank_0(Communicator& world, const DirectoryFacts& run) {
  const std::string made = world.rank() == 0 && run.error.empty() && !run.stalled ? make_mark(run.probed) : "";
  const std::string mark = all_gather_strings(world, made)[0];
  const bool seen = mark.empty() || run.stalled || has_mark(run.probed, mark);
  world.barrier();
  if (world.rank() == 0) remove_mark(run.probed, mark);
  return seen;
}

}  // namespace

RankFacts examine_start(const Subject& subject, int rank) {
  const bool gpus = !subject.config || subject.config->run.device != DeviceType::kCpu;
  return probe_host(subject.environment, subject.place, rank, gpus);
}

RankFacts examine_host(const Subject& subject, int rank) {
  RankFacts facts = examine_start(subject, rank);
  facts.run = probe_directory(directory_of(subject), subject.place.local_rank == 0, kDiskSeconds);
  if (!subject.config) return facts;
  const Config config = *subject.config;
  const std::optional<DataFacts> data = within(kDataSeconds, [config] { return probe_data(config); });
  facts.data = data.value_or(DataFacts{.error = concat("the data sets could not be opened within ", kDataSeconds, " s")});
  const std::optional<std::vector<KeyFileFacts>> keys = within(kKeySeconds, [config, rank] { return probe_keys(config, rank); });
  facts.keys = keys.value_or(std::vector{KeyFileFacts{.error = concat("the key files could not be opened within ", kKeySeconds, " s")}});
  if (rank >= mesh_shape(config.parallel).world()) return facts;
  try {
    facts.memory.needed = forecast_bytes(config, rank);
  } catch (const std::exception&) {  // a configuration that cannot be forecast is refused by `train` with the reason
  }
  return facts;
}

JobFacts job_of(const Subject& subject, const RankFacts& rank) {
  JobFacts job;
  job.ranks = {rank};
  if (subject.config) job.needs = needs_of(*subject.config);
  job.slurm = {.job = subject.environment.slurm_job.value_or(""),
               .nodes = subject.environment.allocated_nodes.value_or(0),
               .step_tasks = subject.environment.step_tasks.value_or(0)};
  return job;
}

JobFacts examine(Communicator& world, const Subject& subject, const std::function<void(const std::string&)>& stage,
                 const std::function<void(const JobFacts&)>& partial) {
  stage("a probe of this host");  // all ranks have just met to make `world`, so they measure the load while all are idle
  RankFacts mine = examine_host(subject, world.rank());
  if (world.size() > 1) mine.mpi.transports = mpi_transports();
  JobFacts job = job_of(subject, mine);
  partial(job);
  const auto wait_for = [&](int rank) { stage(concat("an answer of rank ", rank)); };
  gather_in_order(world, "", wait_for);  // names a rank that does not answer
  stage("all ranks: their hosts");
  const std::vector<std::string> hosts = all_gather_strings(world, mine.host);
  stage("all ranks: the run directory");
  mine.run.same_as_rank_0 = sees_rank_0(world, mine.run);
  stage("all ranks: TCP connections");
  job.unreachable = probe_reach(world, hosts, kReachSeconds);
  stage("all ranks: clocks");
  const ClockOffset clock = probe_clock(world, hosts);
  mine.ahead = clock.ahead;
  mine.ahead_error = clock.error;
  stage("all ranks: the network between them");
  const Pairs pairs = pairs_of(hosts);
  job.pairs = pairs.count;
  job.links = probe_links(world, hosts, pairs, kLinkSeconds, job.unreachable);
  stage("all ranks: their facts");
  std::vector<RankFacts> all;
  for (const std::string& text : gather_in_order(world, nlohmann::json(mine).dump(), wait_for))
    all.push_back(parse_value(text, "report of a rank").get<RankFacts>());
  if (world.rank() == 0) job.ranks = std::move(all);
  return job;
}

}  // namespace trireme::doctor
