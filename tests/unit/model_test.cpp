#include <cmath>
#include <numbers>

#include "parallel/comm/null.h"
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/environment.h"
#include "trainer/model/flops.h"
#include "trainer/model/rope_frequencies.h"
#include "trainer/model/sampling.h"

namespace trireme::test {
namespace {

ModelConfig gpt2_small() {
  ModelConfig model;
  model.architecture = Architecture::kGpt2;
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

ModelConfig qwen3_small() {
  ModelConfig model;
  model.architecture = Architecture::kLlama;
  model.layers = 28;
  model.hidden_size = 1024;
  model.heads = 16;
  model.kv_heads = 8;
  model.head_size = 128;
  model.ffn_size = 3072;
  model.vocab_size = 151936;
  model.max_positions = 40960;
  model.qk_norm = true;
  return model;
}

/// The parameters that one tensor rank declares for block 0.
std::vector<ParamSpec> block_specs(const ModelConfig& model, int tensor_ranks, int rank, bool sequence_parallel) {
  NullCommunicator tensor(rank, tensor_ranks, "tensor");
  const Region region(tensor, sequence_parallel);
  Unit unit("block");
  Declaration(model, region).block(unit, parts_of(model, whole_range(model))[1], Tensor());
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

TEST_CASE("GPT-2 small and Qwen3-0.6B have their published numbers of parameters") {
  CHECK(parameter_count(gpt2_small()) == 124439808);
  CHECK(parameter_count(qwen3_small()) == 596049920);
}

TEST_CASE("training FLOPs per token: six per weight of a product, plus causal attention") {
  ModelConfig model = gpt2_small();
  const double weights = 12.0 * (4 * 768 * 768 + 2 * 768 * 3072) + 50257.0 * 768;
  CHECK(training_flops_per_token(model, 1024) == Approx(6 * weights + 6.0 * 12 * 768 * 1024));
}

TEST_CASE("QK norms count as parameters, but not as FLOPs") {
  const ModelConfig with = qwen3_small();
  ModelConfig without = with;
  without.qk_norm = false;
  CHECK(parameter_count(with) - parameter_count(without) == 28 * 2 * 128);
  CHECK(training_flops_per_token(with, 1024) == training_flops_per_token(without, 1024));
}

TEST_CASE("RoPE frequencies: unscaled, linear and llama3 scaling") {
  const auto near = [](const std::vector<double>& actual, const std::vector<double>& expected) {
    REQUIRE(actual.size() == expected.size());
    for (size_t i = 0; i < actual.size(); ++i) CHECK(actual[i] == Approx(expected[i]).epsilon(1e-14));
  };
  RopeScalingConfig scaling;
  near(rope_frequencies(10000, 8, scaling), {1, 0.1, 0.01, 0.001});
  near(rope_frequencies(16, 4, scaling), {1, 0.25});
  scaling.type = RopeScaling::kLinear;
  scaling.factor = 4;
  near(rope_frequencies(10000, 8, scaling), {0.25, 0.025, 0.0025, 0.00025});
  scaling.type = RopeScaling::kLlama3;
  scaling.factor = 8;
  scaling.low_frequency_factor = 1;
  scaling.high_frequency_factor = 4;
  scaling.original_max_positions = 128;
  // Wavelengths 6.3, 63, 630 and 6300: those below 32 stay, those above 128 are divided. 63 lies between, where 128 / 63 is (6.4 / pi - 1) / 3
  // of the way from 1 to 4.
  const double kept = (6.4 / std::numbers::pi - 1) / 3;
  near(rope_frequencies(10000, 8, scaling), {1, 0.1 * (kept + (1 - kept) / 8), 0.01 / 8, 0.001 / 8});
}

TEST_CASE("a checkpoint's model description contains every key that affects the computation") {
  const ModelConfig model = qwen3_small();
  const auto differs = [&](auto&& change) {
    ModelConfig other = model;
    change(other);
    return describe_model(other) != describe_model(model);
  };
  CHECK_FALSE(differs([](ModelConfig&) {}));
  CHECK(differs([](ModelConfig& m) { m.qk_norm = false; }));
  CHECK(differs([](ModelConfig& m) { m.qkv_bias = true; }));
  CHECK(differs([](ModelConfig& m) { m.rope_theta = 1e6; }));
  CHECK(differs([](ModelConfig& m) { m.rope_scaling.type = RopeScaling::kLinear; }));
  CHECK(differs([](ModelConfig& m) { m.window = 8; }));
  ModelConfig windowed = model;
  windowed.window = 8;
  CHECK(describe_model(windowed)["window"] == 8);
  CHECK_FALSE(describe_model(windowed).contains("window_layers"));
  windowed.window_layers = {0, 5};
  CHECK(describe_model(windowed)["window_layers"] == nlohmann::json{0, 5});
  ModelConfig scaled = model;
  scaled.rope_scaling.type = RopeScaling::kLlama3;
  CHECK(describe_model(scaled)["rope_scaling"] ==
        nlohmann::json{
            {"type", "llama3"}, {"factor", 1.0}, {"low_frequency_factor", 1.0}, {"high_frequency_factor", 4.0}, {"original_max_positions", 8192}});
}

TEST_CASE("the JSON description of a model, byte by byte") {
  const auto text = [](ModelConfig model, RopeScaling scaling) {
    model.rope_scaling.type = scaling;
    return describe_model(model).dump();
  };
  CHECK(
      text(gpt2_small(), RopeScaling::kNone) ==
      R"({"architecture":"gpt2","ffn_size":3072,"head_size":64,"heads":12,"hidden_size":768,"kv_heads":12,"layers":12,"max_positions":1024,)"
      R"("norm_epsilon":1e-05,"qk_norm":false,"qkv_bias":true,"rope_scaling":{"type":"none"},"rope_theta":10000.0,"tied_embeddings":true,"vocab_size":50257})");
  CHECK(
      text(qwen3_small(), RopeScaling::kLinear) ==
      R"({"architecture":"llama","ffn_size":3072,"head_size":128,"heads":16,"hidden_size":1024,"kv_heads":8,"layers":28,)"
      R"("max_positions":40960,"norm_epsilon":1e-05,"qk_norm":true,"qkv_bias":false,"rope_scaling":{"factor":1.0,"type":"linear"},"rope_theta":10000.0,"tied_embeddings":true,"vocab_size":151936})");
  CHECK(
      text(qwen3_small(), RopeScaling::kLlama3) ==
      R"({"architecture":"llama","ffn_size":3072,"head_size":128,"heads":16,"hidden_size":1024,"kv_heads":8,"layers":28,)"
      R"("max_positions":40960,"norm_epsilon":1e-05,"qk_norm":true,"qkv_bias":false,"rope_scaling":{"factor":1.0,"high_frequency_factor":4.0,"low_frequency_factor":1.0,"original_max_positions":8192,"type":"llama3"},"rope_theta":10000.0,"tied_embeddings":true,"vocab_size":151936})");
}

TEST_CASE("the parameter table: decay only on matrices, smaller initial residual projections of GPT-2, names in order") {
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
  llama.architecture = Architecture::kLlama;
  CHECK(find(block_specs(llama, 1, 0, false), "blocks.0.mlp.down.weight").init.standard_deviation == Approx(0.02));
  for (const char* name : {"blocks.0.attention.query_norm.weight", "blocks.0.attention.key_norm.weight"}) {
    const std::vector<ParamSpec> qwen3 = block_specs(qwen3_small(), 4, 1, false);
    INFO(name);
    CHECK(find(qwen3, name).shape == std::array<int64_t, 2>{128, 1});
    CHECK(find(qwen3, name).init.kind == Init::Kind::kOnes);
    CHECK_FALSE(find(qwen3, name).decay);
    CHECK_FALSE(find(qwen3, name).is_primary_copy);  // rank 0 counts it
  }
}

TEST_CASE("the stored vocabulary: rows of padding beyond the box, up to a multiple of 128 or, below 1024 tokens of a rank, of 8") {
  struct Row {
    int64_t vocabulary;
    int ranks;
    int64_t box, stored;  ///< rows of rank 0
  };
  for (const auto& [vocabulary, ranks, box, stored] : std::vector<Row>{{50257, 1, 50257, 50304},
                                                                       {50257, 4, 12565, 12672},
                                                                       {151936, 8, 18992, 19072},
                                                                       {1025, 1, 1025, 1152},
                                                                       {1024, 1, 1024, 1024},
                                                                       {1023, 1, 1023, 1024},
                                                                       {1009, 1, 1009, 1016},
                                                                       {61, 2, 31, 32},
                                                                       {56, 1, 56, 56},
                                                                       {5, 4, 2, 8}}) {
    CAPTURE(vocabulary, ranks);
    ModelConfig model = gpt2_small();
    model.vocab_size = vocabulary;
    NullCommunicator tensor(0, ranks, "tensor");
    const Region region(tensor, false);
    Unit unit("model");
    const Declaration declare(model, region);
    declare.embedding(unit);
    declare.tied_embedding(unit);
    declare.head(unit);
    for (const auto& param : unit.params()) {
      const ParamSpec& spec = param->specs.front();
      CHECK(spec.shape == std::array<int64_t, 2>{vocabulary, 768});
      CHECK(spec.box == Box{{0, 0}, {box, 768}});
      CHECK(spec.local == std::array<int64_t, 2>{stored, 768});
      CHECK(boxes_of(spec, box * 768, stored * 768).empty());
    }
  }
}

TEST_CASE("the counted boxes of all tensor ranks tile each parameter exactly once") {
  ModelConfig model = gpt2_small();
  model.kv_heads = 3;
  for (const int ranks : {1, 2, 3, 6, 12}) {
    if (3 % ranks != 0 && ranks % 3 != 0) continue;
    std::map<std::string, int64_t> counted;
    std::map<std::string, int64_t> whole;
    for (int rank = 0; rank < ranks; ++rank) {
      for (const ParamSpec& spec : block_specs(model, ranks, rank, true)) {
        whole[spec.name] = spec.shape[0] * spec.shape[1];
        if (spec.is_primary_copy) counted[spec.name] += spec.box.numel();
      }
    }
    CHECK(counted == whole);
  }
}

TEST_CASE("partial gradients: norms under sequence parallelism, key and value with shared kv heads") {
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
  model = qwen3_small();
  for (const bool sp : {false, true}) {
    CHECK(partial(2, sp, "blocks.0.attention.query_norm.weight") == Partial::kTensor);
    CHECK(partial(16, sp, "blocks.0.attention.key_norm.weight") == Partial::kTensor);
  }
}

TEST_CASE("boxes of a flat range: at most three, in order, padding left out") {
  NullCommunicator tensor(1, 2, "tensor");
  const ParamSpec spec = split_rows("w", {7, 5}, 2, {1, 2}, 2);  // rows 4..7 and one row of padding
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

TEST_CASE("sampling: temperature 0 selects the most likely token, top-k and top-p cut the tail, draws follow the probabilities") {
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

TEST_CASE("a non-finite gradient rejects the step and names a parameter, and does not affect the next step") {
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
    CHECK(trainer.scalars().accepted_steps() == 0);
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
