// Forecasts with more tensor ranks than kv heads: each rank then has a full kv head, replicated on neighbouring ranks.
#include "tests/support/catch.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/step_costs.h"

namespace trireme {
namespace {

Config model(int64_t kv_heads, int64_t tensor) {
  Config c;
  c.data.train = {"none"};
  c.run.device = DeviceType::kCpu;
  c.model.layers = 4;
  c.model.hidden_size = 1024;
  c.model.heads = 16;
  c.model.kv_heads = kv_heads;
  c.model.vocab_size = 5003;
  c.training.steps = 1;
  c.training.sequence_length = 512;
  c.training.micro_batch_size = 2;
  c.training.global_batch_size = 4;
  c.training.precision = Arithmetic::kBf16;
  c.parallel.tensor = tensor;
  return resolve(c);
}

ClusterConfig resolved_machine(const std::string& type) {
  ClusterConfig cluster;
  cluster.device.type = type;
  if (type == "cpu") cluster.device.cores = 2;
  return resolve_cluster(cluster);
}

}  // namespace

TEST_CASE("memory by formula equals counted memory: more tensor ranks than kv heads") {
  const int64_t kv_heads = GENERATE(1, 2, 4), tensor = GENERATE(8, 16);
  const RecomputeMode recompute = GENERATE(RecomputeMode::kNone, RecomputeMode::kSelective);
  CAPTURE(kv_heads, tensor, name_of(recompute));
  Config config = model(kv_heads, tensor);
  config.training.recompute = recompute;
  const std::vector<RankBytes> counted = counted_memory(config, resolved_machine("cpu")), formula = formula_memory(config, resolved_machine("cpu"));
  REQUIRE(formula.size() == counted.size());
  CHECK(formula[0].parameters == counted[0].parameters);
  CHECK(formula[0].optimizer == counted[0].optimizer);
  CHECK(formula[0].activations == Approx(counted[0].activations).epsilon(0.005));  // keys and values are 6 to 11 percent of a rank's activations
  CHECK(formula[0].peak == Approx(counted[0].peak).epsilon(0.005));
}

TEST_CASE("a replicated kv head takes as long as an unreplicated one") {
  const ModelSeconds own = model_seconds(model(8, 8), resolved_machine("H100"));
  for (const int64_t kv_heads : {1, 2, 4}) {
    CAPTURE(kv_heads);
    const ModelSeconds shared = model_seconds(model(kv_heads, 8), resolved_machine("H100"));
    for (size_t kind = 0; kind < own.mean_block.size(); ++kind) {
      CHECK(shared.mean_block[kind].forward == own.mean_block[kind].forward);
      CHECK(shared.mean_block[kind].total() == own.mean_block[kind].total());
    }
  }
}

}  // namespace trireme
