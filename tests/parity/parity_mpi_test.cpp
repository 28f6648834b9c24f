// Some layouts on real processes: `parity_mpi_test` starts 8 ranks; ranks beyond a layout's world idle. Sends complete only with their receive, as in
// NCCL.
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "parallel/comm/mpi.h"
#include "parallel/comm/self.h"
#include "tests/support/parity.h"
#include "trainer/job/launcher.h"

using namespace trireme;
using namespace trireme::test;

namespace {

struct Case {
  ParityModel model;
  int tensor, pipeline, data, zero, replicate;
  bool sequence_parallel;
  ScheduleKind schedule;
  int virtual_stages = 1;
  RecomputeMode recompute = RecomputeMode::kNone;
  std::vector<std::string> relieved = {};  ///< resilience.reroute
  int64_t from = 0;
};

const std::vector<Case> kCases = {
    {ParityModel::kLlamaGrouped, 2, 2, 2, 3, 1, true, ScheduleKind::k1F1B},
    {ParityModel::kLlamaGrouped, 4, 2, 1, 1, 1, true, ScheduleKind::k1F1B},
    {ParityModel::kLlamaGrouped, 4, 1, 2, 2, 1, false, ScheduleKind::kGPipe},
    {ParityModel::kLlamaGrouped, 1, 4, 2, 3, 2, false, ScheduleKind::k1F1B},
    {ParityModel::kLlamaGrouped, 1, 2, 4, 3, 2, false, ScheduleKind::kGPipe},
    {ParityModel::kLlama, 3, 2, 1, 0, 1, true, ScheduleKind::k1F1B},
    {ParityModel::kLlama, 2, 1, 4, 2, 2, true, ScheduleKind::k1F1B},
    {ParityModel::kLlama, 1, 4, 1, 0, 1, false, ScheduleKind::kGPipe},
    {ParityModel::kGpt2, 2, 2, 2, 1, 1, false, ScheduleKind::k1F1B},
    {ParityModel::kGpt2, 3, 1, 2, 3, 1, true, ScheduleKind::k1F1B},
    {ParityModel::kGpt2Dropout, 2, 4, 1, 3, 1, true, ScheduleKind::k1F1B},
    {ParityModel::kGpt2Dropout, 2, 2, 2, 3, 1, true, ScheduleKind::kGPipe},
    {ParityModel::kLlamaGrouped, 2, 2, 2, 3, 1, true, ScheduleKind::kInterleaved1F1B, 2, RecomputeMode::kSelective},
    {ParityModel::kLlamaGrouped, 2, 2, 2, 3, 1, true, ScheduleKind::kZbV, 2},
    {ParityModel::kGpt2Dropout, 1, 2, 4, 3, 2, false, ScheduleKind::kZbV, 2, RecomputeMode::kFull},
    {ParityModel::kLlama, 1, 4, 2, 3, 1, false, ScheduleKind::kZbH2},
    {ParityModel::kLlamaGrouped, 2, 2, 2, 3, 1, true, ScheduleKind::k1F1B, 1, RecomputeMode::kNone, {"1/0"}},
    {ParityModel::kGpt2Dropout, 1, 2, 4, 2, 2, false, ScheduleKind::kGPipe, 1, RecomputeMode::kNone, {"3/1"}, 1},
    {ParityModel::kLlamaGrouped, 1, 4, 2, 0, 1, false, ScheduleKind::k1F1B, 1, RecomputeMode::kFull, {"0/1", "1/2"}},
    {ParityModel::kLlama, 1, 2, 3, 3, 1, false, ScheduleKind::kZbH1, 1, RecomputeMode::kNone, {"0/0"}},
};

constexpr int kSteps = 3;  // the ranks of eight processes share few cores

int run(const MpiEnvironment& mpi) {
  const std::unique_ptr<Communicator> world = mpi.world({.synchronous_sends = true});
  std::map<ParityModel, RunRecord> one_rank;
  int failures = 0;
  for (const Case& c : kCases) {
    ParityLayout layout;
    layout.tensor = c.tensor;
    layout.pipeline = c.pipeline;
    layout.data = c.data;
    layout.zero = c.zero;
    layout.replicate = c.replicate;
    layout.sequence_parallel = c.sequence_parallel;
    layout.schedule = c.schedule;
    layout.virtual_stages = c.virtual_stages;
    layout.recompute = c.recompute;
    if (layout.world() > world->size() || !is_legal(c.model, layout)) throw InternalError("invalid layout for this world: " + layout.str());
    std::vector<int> ranks(static_cast<size_t>(layout.world()));
    std::iota(ranks.begin(), ranks.end(), 0);
    if (world->rank() < layout.world()) {
      const std::unique_ptr<Communicator> group = world->group(ranks, "world");
      Config config = parity_config(c.model, layout, "fp64");
      config.resilience.reroute = c.relieved;
      config.resilience.reroute_from = c.from;
      const RunRecord record = train(*group, config, kSteps, Device::kReference);
      if (world->rank() == 0) {
        SelfCommunicator alone("world");
        RunRecord& expected = one_rank[c.model];
        if (expected.loss.empty()) expected = train(alone, parity_config(c.model, {}, "fp64"), kSteps, Device::kReference);
        const std::string problem = difference(expected, record, 1e-10);
        std::printf("%s %s%s: %s\n", name_of(c.model), layout.str().c_str(), c.relieved.empty() ? "" : (" relieved " + c.relieved.front()).c_str(),
                    problem.empty() ? "equal" : problem.c_str());
        failures += !problem.empty();
      }
    }
    world->barrier();
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main() {
  const LaunchEnvironment environment = read_launch_environment();
  if (!environment.is_rank()) return launch(environment, 8, {});
  MpiEnvironment mpi;
  try {
    announce_start(environment, mpi.rank(), mpi.size());
    return run(mpi);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(1);
  }
}
