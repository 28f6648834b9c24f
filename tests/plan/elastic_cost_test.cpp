// The table of plan for an elastic job: steps with fewer data ranks.
#include "trainer/plan/elastic_cost.h"

#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/elastic.h"
#include "trainer/layout/resolve.h"

namespace trireme {

TEST_CASE("elastic: the table of plan has at most eight rows, from all data ranks down to the minimum, each with its own forecast") {
  ClusterConfig cluster;
  cluster.device.type = "H100";
  cluster.devices_per_node = 8;
  cluster.nodes = 4;
  cluster = resolve_cluster(cluster);
  // More layouts than rows, as many, fewer, and a minimum that is not one.
  for (const auto& [data, minimum, rows] : {std::array<int64_t, 3>{16, 1, 8}, {16, 3, 8}, {9, 2, 8}, {4, 2, 3}, {4, 4, 1}}) {
    CAPTURE(data, minimum);
    const Config config = resolve(parse_config(
        concat("model: {layers: 4, hidden_size: 512, heads: 8, vocab_size: 1000}\nparallel: {tensor: 2, data: ", data, ", zero_stage: 1}\n",
               "training: {steps: 1, sequence_length: 256, global_batch_size: 48, precision: bf16}\ndata: {train: [none]}\n",
               "resilience: {elastic: replicas, minimum_replicas: ", minimum, "}\n"),
        "a test"));
    const std::vector<ElasticStep> steps = elastic_steps(config, cluster, forecast(config, cluster));
    REQUIRE(static_cast<int64_t>(steps.size()) == rows);
    CHECK(steps.front().data == data);
    CHECK(steps.back().data == minimum);
    for (size_t i = 0; i < steps.size(); ++i) {
      if (i > 0) CHECK(steps[i].data < steps[i - 1].data);
      const Forecast alone = forecast(resolve(with_data_ranks(config, steps[i].data).value()), cluster);
      CHECK(steps[i].step_seconds == alone.step_seconds);
      CHECK(steps[i].peak_bytes == largest_peak(alone.memory));
    }
  }
}

}  // namespace trireme
