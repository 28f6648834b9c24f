// What plan says about steps with relieved ranks.
#include "trainer/plan/reroute_cost.h"

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/rerouting.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/run_forecast.h"
#include "trainer/plan/world_costs.h"

namespace trireme {
namespace {

Config pipelines_of(const std::string& parallel, int64_t batch, const std::string& reroute) {
  return resolve(parse_config(concat("model: {layers: 8, hidden_size: 1024, heads: 16, vocab_size: 32000}\nparallel: {", parallel,
                                     "}\ntraining: {steps: 1, sequence_length: 1024, micro_batch_size: 1, global_batch_size: ", batch,
                                     ", precision: bf16}\ndata: {train: [none]}\nresilience: {reroute: ", reroute, "}\n"),
                              "a test"));
}

ClusterConfig gpus(int64_t devices) {
  ClusterConfig cluster;
  cluster.device.type = "H100";
  cluster.devices_per_node = devices;
  return resolve_cluster(cluster);
}

}  // namespace

TEST_CASE("reroute: plan compares the simulated steps of the same global batch") {
  const ClusterConfig cluster = gpus(12);
  for (const char* const relieved : {"[0/0]", "[1/2]", "[2/3]"}) {
    const Config config = pipelines_of("pipeline: 4, data: 3, zero_stage: 1", 24, relieved);
    const RerouteCost cost = *reroute_cost(config, cluster);
    INFO(relieved << " " << reroute_cost_text(cost));
    CHECK(cost.rerouted_seconds == simulate_step(config, cluster, lowered_schedule(config)).step.step_seconds);
    CHECK(cost.undisturbed_seconds == simulate_step(without_reroute(config), cluster, lowered_schedule(without_reroute(config))).step.step_seconds);
    CHECK(cost.added_microbatches == 4);
    CHECK(cost.fewer_ranks == 2);
    CHECK(cost.fewer_microbatches == 12);
    CHECK(cost.rerouted_seconds > cost.undisturbed_seconds);
    CHECK(cost.rerouted_seconds < 1.01 * *cost.fewer_seconds);
    CHECK(reroute_cost_json(cost).at("fewer_replicas").at("micro_batches") == 12);
    CHECK(reroute_cost_text(cost).find("parallel.data 2 with 12 micro-batches each") != std::string::npos);
    CHECK(reroute_cost_text(cost).find("a helper computes up to 4 micro-batches more") != std::string::npos);
  }
  const Config uneven = pipelines_of("pipeline: 2, data: 4, replicate: 2, zero_stage: 3", 20, "[0/0, 1/1]");
  const RerouteCost cost = *reroute_cost(uneven, gpus(8));
  CHECK(cost.fewer_ranks == 2);
  CHECK(cost.fewer_microbatches == 10);
  CHECK(cost.added_microbatches == 2);
  const RerouteCost odd = *reroute_cost(pipelines_of("pipeline: 2, data: 4, zero_stage: 3", 20, "[0/0]"), gpus(8));
  CHECK(odd.fewer_ranks == 3);
  CHECK(odd.fewer_microbatches == 7);  // 20 micro-batches
  const RerouteCost nobody = *reroute_cost(pipelines_of("pipeline: 2, data: 2", 8, "[0/0, 1/1]"), gpus(4));
  CHECK(!nobody.fewer_seconds);
  CHECK(reroute_cost_json(nobody).at("fewer_replicas").is_null());
  CHECK(!reroute_cost(pipelines_of("pipeline: 2, data: 2", 8, "[]"), gpus(4)));
}

TEST_CASE("reroute: the forecasts of memory and of a run's step count the helpers") {
  const Config config = pipelines_of("pipeline: 2, data: 2, zero_stage: 1", 16, "[1/0]"), plain = without_reroute(config);
  const ClusterConfig cluster = gpus(4);
  const std::vector<RankBytes> routed = counted_memory(config, cluster), undisturbed = counted_memory(plain, cluster);
  CHECK(routed[0].activations > 1.4 * undisturbed[0].activations);
  CHECK(routed[0].peak > undisturbed[0].peak);
  CHECK(routed[1].activations <= 1.1 * undisturbed[1].activations);
  const RerouteCost cost = *reroute_cost(config, cluster);
  const RunForecast slow = *forecast_run(config, 4, 4, "NVIDIA H100 80GB HBM3"), fast = *forecast_run(plain, 4, 4, "NVIDIA H100 80GB HBM3");
  CHECK(slow.time.step_seconds / fast.time.step_seconds == Approx(cost.rerouted_seconds / cost.undisturbed_seconds));
  CHECK(slow.time.mfu * slow.time.step_seconds == Approx(fast.time.mfu * fast.time.step_seconds));
  // A rank computes as much as before, in a longer step.
  CHECK((1 - slow.time.bubble) * slow.time.step_seconds == Approx((1 - fast.time.bubble) * fast.time.step_seconds));
  CHECK(slow.time.bubble > fast.time.bubble);
}

}  // namespace trireme
