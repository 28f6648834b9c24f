// Replicas of a shard are equal: one of them enters the gradient norm, checkpoints and counts, and the replica check compares them all.
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

/// What the check finds while one bit of `parameter` is flipped on the ranks with `here`.
std::string with_a_bit_flipped(Trainer& trainer, const std::string& parameter, bool here) {
  Tensor target;
  for (const auto& stage : trainer.stages())
    for (const Unit* unit : stage->params().units())
      for (const auto& param : unit->params())
        if (param->specs.front().name == parameter) target = param->value;
  TRIREME_CHECK(target.defined(), parameter, " is not resident");
  if (here) flip_a_bit(target, 0);
  const std::string found = replica_differences(trainer);
  if (here) flip_a_bit(target, 0);
  return found;
}

}  // namespace

TEST_CASE("the gradient norm counts replicas of a shard once") {
  double serial = 0;
  on_ranks(config_of(1, 1, 0, 1), [&](Trainer& trainer) {
    trainer.initialise();
    serial = trainer.step(kData, 0, 0).grad_norm;
  });
  for (const Config& config : {config_of(1, 3, 0, 1), config_of(1, 4, 3, 2), config_of(2, 2, 0, 1)}) {
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      const double norm = trainer.step(kData, 0, 0).grad_norm;
      TRIREME_CHECK(std::abs(norm - serial) < 1e-4 * serial, "norm ", norm, " instead of ", serial);
    });
  }
}

TEST_CASE("of the replicas of a shard the first saves") {
  on_ranks(config_of(2, 4, 1, 2), [](Trainer& trainer) {
    trainer.initialise();
    const bool is_first = trainer.mesh().at.replicate == 0;
    TRIREME_CHECK(trainer.counts_shard() == is_first, "wrong ranks count");
    TRIREME_CHECK(state_tensors(trainer).empty() != is_first, state_tensors(trainer).size(), " boxes");
  });
}

TEST_CASE("non-finite values are counted in the first of the replicas") {
  on_ranks(config_of(1, 2, 0, 1), [](Trainer& trainer) {
    trainer.initialise();
    for (const OwnedBox& owned : trainer.owned_boxes())
      if (owned.spec->name == "final_norm.weight") owned.weight.data<float>()[0] = NAN;
    TRIREME_CHECK(non_finite_weights(trainer) == (NonFinite{{"final_norm.weight", 1}}), "not counted once");
  });
}

TEST_CASE("the replica check compares replicas of a shard, and copies within one") {
  on_ranks(config_of(2, 2, 0, 1), [](Trainer& trainer) {
    trainer.initialise();
    const bool here = trainer.mesh().at.replicate == 1 && trainer.mesh().at.tensor == 0;
    for (const char* parameter : {"blocks.0.mlp.up.weight", "final_norm.weight"}) {
      const std::string found = with_a_bit_flipped(trainer, parameter, here);
      TRIREME_CHECK(found.find(parameter) != std::string::npos, parameter, ": '", found, "'");
    }
    TRIREME_CHECK(replica_differences(trainer).empty(), "without a flipped bit");
  });
  on_ranks(config_of(1, 4, 1, 2), [](Trainer& trainer) {  // full copies
    trainer.initialise();
    Mesh& mesh = trainer.mesh();
    for (const auto& stage : trainer.stages())
      for (size_t unit = 0; unit < stage->params().units().size(); ++unit) stage->params().unshard(trainer.context(), static_cast<int>(unit));
    for (const auto& stage : trainer.stages())
      for (size_t unit = 0; unit < stage->params().units().size(); ++unit) stage->params().wait(trainer.context(), static_cast<int>(unit));
    for (const bool here : {mesh.at.replicate == 1, mesh.world.rank() == 3}) {
      const std::string found = with_a_bit_flipped(trainer, "embedding.weight", here);
      TRIREME_CHECK(found.find("embedding.weight") != std::string::npos, "'", found, "'");
    }
  });
}

}  // namespace trireme::test
