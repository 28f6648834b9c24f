#include <cmath>

#include "parallel/comm/null.h"
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "trainer/loop/trainer.h"
#include "trainer/model/flops.h"
#include "trainer/model/sampling.h"

namespace trireme::test {
namespace {

ModelConfig gpt2_small() {
  ModelConfig model;
  model.architecture = "gpt2";
  model.layers = 12;
  model.hidden_size = 768;
  model.heads = 12;
  model.kv_heads = 12;
  model.head_size = 64;
  model.ffn_size = 3072;
  model.vocab_size = 50257;
  model.max_positions = 1024;
  return model;
}

/// What one rank of a tensor group declares for block 0.
std::vector<ParamSpec> block_specs(const ModelConfig& model, int tensor_ranks, int rank, bool sequence_parallel) {
  NullCommunicator tensor(rank, tensor_ranks, "tensor");
  const Region region(tensor, sequence_parallel);
  Unit unit("block");
  Declaration(model, region).block(unit, 0, Tensor());
  std::vector<ParamSpec> specs;
  for (const auto& param : unit.params()) specs.insert(specs.end(), param->specs.begin(), param->specs.end());
  return specs;
}

const ParamSpec& find(const std::vector<ParamSpec>& specs, const std::string& name) {
  const auto found = std::find_if(specs.begin(), specs.end(), [&](const ParamSpec& spec) { return spec.name == name; });
  REQUIRE(found != specs.end());
  return *found;
}

}  // namespace

TEST_CASE("GPT-2 small has its published number of parameters") { CHECK(parameter_count(gpt2_small()) == 124439808); }

TEST_CASE("training FLOPs per token: six for each weight of a product, and causal attention") {
  ModelConfig model = gpt2_small();
  const double weights = 12.0 * (4 * 768 * 768 + 2 * 768 * 3072) + 50257.0 * 768;
  CHECK(training_flops_per_token(model, 1024) == Approx(6 * weights + 6.0 * 12 * 768 * 1024));
}

TEST_CASE("the parameter table: decay on matrices only, residual projections of GPT-2 start smaller, names in order") {
  const std::vector<ParamSpec> specs = block_specs(gpt2_small(), 1, 0, false);
  for (const ParamSpec& spec : specs) {
    INFO(spec.name);
    const bool matrix = spec.dims == 2;
    CHECK(spec.decay == matrix);
    CHECK((spec.init.kind == Init::Kind::kNormal) == matrix);
    const bool residual = spec.name.ends_with("attention.output.weight") || spec.name.ends_with("mlp.down.weight");
    if (matrix) CHECK(spec.init.standard_deviation == Approx(residual ? 0.02 / std::sqrt(24.0) : 0.02));
  }
  CHECK(find(specs, "blocks.0.attention_norm.weight").init.kind == Init::Kind::kOnes);
  ModelConfig llama = gpt2_small();
  llama.architecture = "llama";
  CHECK(find(block_specs(llama, 1, 0, false), "blocks.0.mlp.down.weight").init.standard_deviation == Approx(0.02));
}

TEST_CASE("over tensor ranks the counted boxes of every parameter tile it exactly once") {
  ModelConfig model = gpt2_small();
  model.kv_heads = 3;
  for (const int ranks : {1, 2, 3, 6, 12}) {
    if (3 % ranks != 0 && ranks % 3 != 0) continue;
    std::map<std::string, int64_t> counted;
    std::map<std::string, int64_t> whole;
    for (int rank = 0; rank < ranks; ++rank) {
      for (const ParamSpec& spec : block_specs(model, ranks, rank, true)) {
        whole[spec.name] = spec.shape[0] * spec.shape[1];
        if (spec.counted) counted[spec.name] += spec.box.numel();
      }
    }
    CHECK(counted == whole);
  }
}

TEST_CASE("what a gradient is partial over: norms under sequence parallelism, key and value where kv heads are shared") {
  ModelConfig model = gpt2_small();
  model.kv_heads = 2;
  const auto partial = [&](int ranks, bool sp, const char* name) { return find(block_specs(model, ranks, 0, sp), name).partial_over; };
  CHECK(partial(4, true, "blocks.0.mlp_norm.weight") == Partial::kTensor);
  CHECK(partial(4, true, "blocks.0.mlp_norm.bias") == Partial::kTensor);
  CHECK(partial(4, false, "blocks.0.mlp_norm.weight") == Partial::kNone);
  CHECK(partial(4, false, "blocks.0.attention.key.weight") == Partial::kKv);
  CHECK(partial(4, false, "blocks.0.attention.value.bias") == Partial::kKv);
  CHECK(partial(2, false, "blocks.0.attention.key.weight") == Partial::kNone);
  CHECK(partial(4, true, "blocks.0.attention.query.weight") == Partial::kNone);
}

TEST_CASE("boxes of a flat range: at most three, in order, padding left out") {
  NullCommunicator tensor(1, 2, "tensor");
  const ParamSpec spec = split_rows("w", {7, 5}, 2, {1, 2}, 2);  // rows 4..7 and one of padding
  CHECK(spec.local == std::array<int64_t, 2>{4, 5});
  const auto boxes = boxes_of(spec, 3, 20);
  REQUIRE(boxes.size() == 2);
  CHECK(boxes[0].box == Box{{4, 3}, {1, 2}});
  CHECK(boxes[1].box == Box{{5, 0}, {2, 5}});
  const auto three = boxes_of(spec, 3, 12);
  REQUIRE(three.size() == 3);
  CHECK(three[2].box == Box{{6, 0}, {1, 2}});
  CHECK(three[2].offset == 10);
  CHECK(boxes_of(spec, 15, 20).empty());
}

TEST_CASE("sampling: temperature 0 takes the best, top-k and top-p cut the tail, the draw follows the probabilities") {
  const std::vector<double> logits = {0.0, std::log(6.0), std::log(3.0), std::log(2.0)};  // 1 : 6 : 3 : 2
  CHECK(sample_token(logits, {.temperature = 0}, 0.99) == 1);
  CHECK(sample_token(logits, {}, 0.49) == 1);
  CHECK(sample_token(logits, {}, 0.51) == 2);
  CHECK(sample_token(logits, {}, 0.99) == 0);
  CHECK(sample_token(logits, {.top_k = 2}, 0.99) == 2);
  CHECK(sample_token(logits, {.top_p = 0.5}, 0.99) == 1);
  CHECK(sample_token(logits, {.top_p = 0.51}, 0.99) == 2);
  CHECK(sample_token({1.0, 1.0}, {.temperature = 0}, 0) == 0);
}

TEST_CASE("a gradient that is not finite rejects the step and names a parameter, and the next step is as if it had not been") {
  const Config config = parity_config(ParityModel::kLlama, {}, "fp64");
  const RaggedDataset data(29, 12, 61);
  SelfCommunicator world("world");
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  const auto weights = [&] {
    std::vector<double> all;
    for (const OwnedBox& owned : trainer.owned_boxes())
      all.insert(all.end(), owned.weight.data<double>(), owned.weight.data<double>() + owned.box.numel());
    return all;
  };
  const auto poke = [&](double value) {
    for (const OwnedBox& owned : trainer.owned_boxes())
      if (owned.spec->name == "blocks.2.mlp.down.weight") std::swap(owned.weight.data<double>()[5], value);
    trainer.weights_changed();
    return value;
  };
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const double good = poke(bad);
    const StepResult rejected = trainer.step(data, 0, 1e-3);
    CHECK_FALSE(rejected.accepted);
    CHECK_FALSE(rejected.offender.empty());
    CHECK(trainer.accepted_steps() == 0);
    poke(good);
  }
  Trainer fresh(ctx, world, config, true);
  fresh.initialise();
  CHECK(trainer.step(data, 0, 1e-3).loss == fresh.step(data, 0, 1e-3).loss);
  const std::vector<double> after = weights();
  size_t i = 0;
  for (const OwnedBox& owned : fresh.owned_boxes())
    for (int64_t k = 0; k < owned.box.numel(); ++k) REQUIRE(owned.weight.data<double>()[k] == after[i++]);
}

}  // namespace trireme::test
