// Ranks of a CPU machine share its cores: the work of all passes through them, and waits are filled by the others.
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/run_forecast.h"


namespace trireme {
namespace {

Config model(const std::string& parallel, int world) {
  const std::string text = "model: {layers: 8, hidden_size: 256, heads: 8, vocab_size: 4096, tied_embeddings: false}\nparallel: {" + parallel +
                           "}\ntraining: {steps: 1, sequence_length: 256, micro_batch_size: 1, global_batch_size: 8}\ndata: {train: [none]}\n";
  return resolve(parse_config(text, "a test"), world);
}

ClusterConfig machine(double cores, int64_t ranks) {
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster.device.cores = cores;
  cluster = shared_by(resolve_cluster(cluster), ranks);
  cluster.node_link = {.bandwidth = 1e15, .latency = 0, .ramp = 0};
  return cluster;
}

TEST_CASE("forecast: ranks beyond the cores of a machine take turns") {
  const Config data = model("data: 8", 8);
  const double own = forecast_time(data, machine(8, 8)).step_seconds;
  CHECK(forecast_time(data, machine(2, 8)).step_seconds == Approx(4 * own).epsilon(1e-6));
  CHECK(forecast_time(data, machine(16, 8)).step_seconds < 0.7 * own);  // two threads each
}

TEST_CASE("forecast: a pipeline on one core has no bubble and takes as long as one rank there") {
  const Config whole = model("tensor: 1", 1), pipeline = model("pipeline: 4, schedule: gpipe", 4);
  const Forecast alone = forecast_time(whole, machine(1, 1)), turns = forecast_time(pipeline, machine(1, 4)), apart = forecast_time(pipeline, machine(4, 4));
  CHECK(turns.step_seconds == Approx(alone.step_seconds).epsilon(0.01));
  CHECK(turns.bubble < 0.01);
  CHECK(apart.bubble > 0.15);
  CHECK(apart.step_seconds < turns.step_seconds);
}

TEST_CASE("forecast: cores that move the data themselves hide nothing") {
  const Config sharded = model("data: 4, zero_stage: 3", 4);
  ClusterConfig slow = machine(4, 4);
  slow.node_link.bandwidth = 1e9;
  const Forecast forecast = forecast_time(sharded, slow);
  const double moved = forecast.step_seconds - forecast_time(sharded, machine(4, 4)).step_seconds;
  CHECK(moved == Approx(forecast.parts.gather + forecast.parts.reduce).epsilon(0.01));
  CHECK(moved > 0);
}

TEST_CASE("forecast: host memory is asked of all ranks together") {
  SelfCommunicator world("world");
  CHECK_NOTHROW(check_host_memory(world, 2e9, 2e9));
  CHECK_THROWS_AS(check_host_memory(world, 2.1e9, 2e9), Error);
}

}  // namespace
}  // namespace trireme
