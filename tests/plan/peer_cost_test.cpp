#include "trainer/plan/peer_cost.h"

#include <cmath>

#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/state.h"
#include "trainer/model/flops.h"

namespace trireme::test {

TEST_CASE("peer copies take twice the state and its copies, and their time is that of the network") {
  const auto config_with = [](const std::vector<std::string>& sets) {
    const std::string text =
        "model: {architecture: gpt2, layers: 24, hidden_size: 1024, heads: 16, vocab_size: 50304}\n"
        "parallel: {tensor: 2, pipeline: 2, data: 4, zero_stage: 1, sequence_parallel: true}\n"
        "training: {steps: 1000, sequence_length: 1024, micro_batch_size: 1, global_batch_size: 64, precision: bf16}\n"
        "resilience: {peer_copies: 2, peer_every: 10}\n"
        "data: {train: [data/train]}\n";
    return resolve(parse_config(text, "gpt.yaml", sets), 16);
  };
  ClusterConfig cluster;
  cluster.device.type = "H100";
  cluster.nodes = 2;
  cluster.network.bandwidth = 25e9;
  cluster = resolve_cluster(cluster);
  const Config config = config_with({});
  // AdamW: weight and two moments in fp32, 12 bytes a parameter; each of 2 x 2 x 4 ranks owns a sixteenth.
  const double state = 12 * static_cast<double>(parameter_count(config.model));
  const PeerCost cost = peer_cost(config, cluster, 0.5);
  CHECK(cost.node_bytes == Approx(2 * 3 * state / 2));
  CHECK(cost.send_seconds == Approx(2 * state / 16 / 25e9));
  CHECK(cost.interval_seconds == Approx(5));
  CHECK(cost.fits_interval());
  CHECK(peer_cost_text(config, cost).find("too short") == std::string::npos);
  // Without shards one data rank saves, and sends, all of a tensor and pipeline rank's state.
  const PeerCost whole = peer_cost(config_with({"parallel.zero_stage=0"}), cluster, 1e-3);
  CHECK(whole.send_seconds == Approx(2 * state / 4 / 25e9));
  CHECK_FALSE(whole.fits_interval());
  const int64_t needed = static_cast<int64_t>(std::ceil(whole.send_seconds / 1e-3));
  CHECK(peer_cost_text(config, whole).ends_with(concat("which is too short; allowed peer_every from ", needed, "\n")));
  const PeerCost replicated = peer_cost(config_with({"parallel.replicate=2"}), cluster, 0.5);
  CHECK(replicated.send_seconds == Approx(2 * state / 8 / 25e9));
}

}  // namespace trireme::test
