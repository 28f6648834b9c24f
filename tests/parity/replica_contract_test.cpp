// Gradient norm, checkpoints and the replica check do not assume equal replicas: they follow the run's ReplicaContract.
#include "parallel/sharding/replica_contract.h"

#include <cmath>

#include "tests/parity/layouts.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "trainer/resilience/replica_check.h"

namespace trireme::test {
namespace {

const RaggedDataset kData(29, 12, 61);

Config config_of(int tensor, int data, int zero, int replicate) {
  return parity_config(ParityModel::kGpt2, ParityLayout{{.tensor = tensor, .data = data, .zero = zero, .replicate = replicate}}, "fp32");
}

void flip_a_bit(const Tensor& tensor, int64_t at) { static_cast<unsigned char*>(tensor.raw())[4 * at] ^= 1; }

/// Results of the check under each contract while one bit of `parameter` is flipped on the ranks with `here`.
struct Findings {
  std::string equal, diverging;
};
Findings with_a_bit_flipped(Trainer& trainer, const std::string& parameter, bool here) {
  Tensor target;
  for (const auto& stage : trainer.stages())
    for (const Unit* unit : stage->params().units())
      for (const auto& param : unit->params())
        if (param->specs.front().name == parameter) target = param->value;
  TRIREME_CHECK(target.defined(), parameter, " is not resident");
  if (here) flip_a_bit(target, 0);
  Findings found;
  found.equal = replica_differences(trainer);
  trainer.set_replica_contract(ReplicaContract::kDiverging);
  found.diverging = replica_differences(trainer);
  trainer.set_replica_contract(ReplicaContract::kEqual);
  if (here) flip_a_bit(target, 0);
  return found;
}

}  // namespace

TEST_CASE("replicas of a run are equal by default") {
  on_ranks(config_of(1, 2, 0, 1), [](Trainer& trainer) {
    TRIREME_CHECK(trainer.replica_contract() == ReplicaContract::kEqual, "wrong contract");
    TRIREME_CHECK(trainer.counts_shard() == (trainer.mesh().at.replicate == 0), "wrong ranks count");
  });
}

TEST_CASE("the gradient norm counts equal replicas once, and diverging replicas each") {
  for (const Config& config : {config_of(1, 3, 0, 1), config_of(1, 4, 3, 2), config_of(2, 2, 0, 1)}) {
    on_ranks(config, [](Trainer& trainer) {
      trainer.initialise();
      const double equal = trainer.step(kData, 0, 0).grad_norm;
      trainer.set_replica_contract(ReplicaContract::kDiverging);
      const double diverging = trainer.step(kData, 0, 0).grad_norm;
      const double expected = equal * std::sqrt(trainer.mesh().shape.replicate);
      TRIREME_CHECK(std::abs(diverging - expected) < 1e-9 * expected, "norm ", diverging, " instead of ", expected);
    });
  }
}

TEST_CASE("of equal replicas the first saves, of diverging replicas each") {
  on_ranks(config_of(2, 4, 1, 2), [](Trainer& trainer) {
    trainer.initialise();
    const size_t equal = state_tensors(trainer).size();
    trainer.set_replica_contract(ReplicaContract::kDiverging);
    const size_t diverging = state_tensors(trainer).size();
    TRIREME_CHECK(diverging > 0, "nothing is saved");
    TRIREME_CHECK(equal == (trainer.mesh().at.replicate == 0 ? diverging : 0), equal, " boxes of ", diverging);
  });
}

TEST_CASE("non-finite values are counted in the first of equal replicas, and in each of diverging replicas") {
  on_ranks(config_of(1, 2, 0, 1), [](Trainer& trainer) {
    trainer.initialise();
    for (const OwnedBox& owned : trainer.owned_boxes())
      if (owned.spec->name == "final_norm.weight") owned.weight.data<float>()[0] = NAN;
    TRIREME_CHECK(non_finite_weights(trainer) == (NonFinite{{"final_norm.weight", 1}}), "equal");
    trainer.set_replica_contract(ReplicaContract::kDiverging);
    TRIREME_CHECK(non_finite_weights(trainer) == (NonFinite{{"final_norm.weight", 2}}), "diverging");
  });
}

TEST_CASE("the replica check compares equal replicas, and diverging replicas only within themselves") {
  on_ranks(config_of(2, 2, 0, 1), [](Trainer& trainer) {
    trainer.initialise();
    const MeshCoordinate at = trainer.mesh().at;
    const Findings split = with_a_bit_flipped(trainer, "blocks.0.mlp.up.weight", at.replicate == 1 && at.tensor == 0);
    TRIREME_CHECK(!split.equal.empty() && split.diverging.empty(), "between replicas: '", split.equal, "', '", split.diverging, "'");
    const Findings shared = with_a_bit_flipped(trainer, "final_norm.weight", at.replicate == 1 && at.tensor == 0);
    TRIREME_CHECK(!shared.equal.empty() && !shared.diverging.empty(), "within a replica: '", shared.equal, "', '", shared.diverging, "'");
  });
  on_ranks(config_of(1, 4, 1, 2), [](Trainer& trainer) {  // full copies
    trainer.initialise();
    Mesh& mesh = trainer.mesh();
    for (const auto& stage : trainer.stages())
      for (size_t unit = 0; unit < stage->params().units().size(); ++unit) stage->params().unshard(trainer.context(), static_cast<int>(unit));
    for (const auto& stage : trainer.stages())
      for (size_t unit = 0; unit < stage->params().units().size(); ++unit) stage->params().wait(trainer.context(), static_cast<int>(unit));
    const Findings all = with_a_bit_flipped(trainer, "embedding.weight", mesh.at.replicate == 1);
    TRIREME_CHECK(!all.equal.empty() && all.diverging.empty(), "between replicas: '", all.equal, "', '", all.diverging, "'");
    const Findings one = with_a_bit_flipped(trainer, "embedding.weight", mesh.world.rank() == 3);
    TRIREME_CHECK(!one.equal.empty() && !one.diverging.empty(), "within a replica: '", one.equal, "', '", one.diverging, "'");
  });
}

}  // namespace trireme::test
