// Valid configurations: reading, resolving and writing.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/command_output.h"
#include "tests/support/places.h"
#include "tests/support/scratch.h"
#include "trainer/config/fields.h"
#include "trainer/config/write.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/model/declare.h"

namespace trireme {
namespace {

const std::string kSmall = R"(
model: {architecture: llama, layers: 4, hidden_size: 96, heads: 6, kv_heads: 2}
training: {steps: 100, sequence_length: 32, global_batch_size: 8}
data: {train: [data/a], validation: [data/v]}
)";

Config load(const std::string& text, const std::vector<std::string>& sets = {}) { return parse_config(text, "run.yaml", sets).config; }

TEST_CASE("config: values of every type are read, absent ones keep their default") {
  const Config c = load(R"(
run: {name: "a: b", seed: 9223372036854775807}
model: {layers: 2, hidden_size: 64, heads: 4, tied_embeddings: false, dropout: 0.25, rope_theta: 500000, norm_epsilon: 1e-6, init_std: 1.0e-2}
parallel:
  pipeline: 2
  layers_per_stage:
    - 1
    - 1
training:
  epochs: 2
  optimizer: {weight_decay: 0}
data:
  train: [a/b, 'c d']
)");
  CHECK(c.run.name == "a: b");
  CHECK(c.run.seed == INT64_MAX);
  CHECK(c.model.layers == 2);
  CHECK_FALSE(c.model.tied_embeddings);
  CHECK(c.model.dropout == 0.25);
  CHECK(c.model.rope_theta == 500000.0);
  CHECK(c.model.norm_epsilon == 1e-6);
  CHECK(c.model.init_std == 0.01);
  CHECK(c.parallel.layers_per_stage == std::vector<int64_t>{1, 1});
  CHECK(c.training.epochs == 2);
  CHECK_FALSE(c.training.steps);
  CHECK(c.training.optimizer.weight_decay == 0);
  CHECK(c.data.train == std::vector<std::string>{"a/b", "c d"});
  CHECK(c.data.validation.empty());
  CHECK(c.checkpoint == CheckpointConfig{});
}

TEST_CASE("config: --set takes every type, lists included, and the last one wins") {
  const Config c = load(kSmall, {"data.train=[x, y/z]", "model.dropout=0.5", "parallel.tensor=3", "parallel.tensor=2", "model.tied_embeddings=false",
                                 "run.name=with=equals", "model.kv_heads=auto", "parallel.layers_per_stage=[4]", "checkpoint.every=7",
                                 "training.optimizer.learning_rate=1e-2"});
  CHECK(c.data.train == std::vector<std::string>{"x", "y/z"});
  CHECK(c.model.dropout == 0.5);
  CHECK(c.parallel.tensor == 2);
  CHECK_FALSE(c.model.tied_embeddings);
  CHECK(c.run.name == "with=equals");
  CHECK_FALSE(c.model.kv_heads);
  CHECK(c.parallel.layers_per_stage == std::vector<int64_t>{4});
  CHECK(c.checkpoint.every == 7);
  CHECK(c.training.optimizer.learning_rate == 0.01);
  CHECK_FALSE(load(kSmall, {"model.window=8"}).model.window_layers);
  CHECK_FALSE(load(kSmall, {"model.window=8", "model.window_layers=all"}).model.window_layers);
  CHECK(load(kSmall, {"model.window=8", "model.window_layers=[0, 3]"}).model.window_layers == std::vector<int64_t>{0, 3});
}

TEST_CASE("config: null unsets optional keys that allow it, and is refused elsewhere") {
  const auto decay = [](const std::string& ema) {
    const Config c = resolve(load("training: {steps: 1, ema: " + ema + "}\ndata: {train: [a]}"));
    CHECK(load(to_yaml(c)) == c);
    return c.training.ema.decay;
  };
  CHECK(decay("{decay: 0.999}") == 0.999);
  for (const char* none : {"{decay: null}", "{decay: ~}", "{}"}) CHECK(!decay(none));
  CHECK(load(kSmall, {"training.ema.decay=0.5"}).training.ema.decay == 0.5);
  CHECK(!load(kSmall, {"training.ema.decay=0.5", "training.ema.decay=null"}).training.ema.decay);
  CHECK_THROWS_AS(load(kSmall, {"training.epochs=null"}), ConfigError);
  const LoadedConfig loaded = parse_config(kSmall, "run.yaml", {});
  CHECK(explain(loaded, resolve(loaded)).find("training.ema.decay = not set    # default\n") != std::string::npos);
  CHECK(explain(loaded, resolve(loaded)).find("Allowed: number above 0 to below 1, or null.\n") != std::string::npos);
}

TEST_CASE("config: a switch that may be a path, and optional texts") {
  const auto board = [](const std::string& value) {
    const Config c = resolve(load("training: {steps: 1}\ndata: {train: [a]}\nobserve: {tensorboard: " + value + "}"));
    CHECK(load(to_yaml(c)) == c);
    return c.observe.tensorboard;
  };
  CHECK(board("true") == SwitchOrPath(true));
  CHECK(board("false") == SwitchOrPath(false));
  CHECK(board("boards/a b") == SwitchOrPath(std::string("boards/a b")));
  CHECK(board("'true'") == SwitchOrPath(std::string("true")));  // quotes make it a directory of that name
  CHECK(board("\"on\"") == SwitchOrPath(std::string("on")));
  CHECK(resolve(load(kSmall)).observe.tensorboard == SwitchOrPath(false));
  const Config c =
      resolve(load(kSmall, {"observe.prometheus.port=9464", "observe.prometheus.address=::1", "observe.prometheus.textfile=a/run.prom"}));
  CHECK(load(to_yaml(c)) == c);
  CHECK(c.observe.prometheus.port == 9464);
  CHECK(c.observe.prometheus.address == "::1");
  CHECK(c.observe.prometheus.textfile == "a/run.prom");
  CHECK(load(kSmall, {"observe.prometheus.textfile=a.prom", "observe.prometheus.textfile=null"}).observe.prometheus == PrometheusConfig{});
}

TEST_CASE("config: a list of every layer resolves to all") {
  const Config all = resolve(load(kSmall, {"model.window=8"}));
  CHECK(resolve(load(kSmall, {"model.window=8", "model.window_layers=[0, 1, 2, 3]"})) == all);
  CHECK_FALSE(resolve(load(kSmall, {"model.window=8", "model.window_layers=[0, 1, 3]"})) == all);
}

TEST_CASE("what a preset of an architecture leaves open is resolved, and a resolved configuration resolves to itself") {
  for (const ArchitecturePreset& preset : kPresets) {
    INFO(name_of(preset.architecture));
    const Config c = resolve(load(kSmall, {concat("model.architecture=", name_of(preset.architecture)), "model.kv_heads=auto"}));
    CHECK(c.model.residual == preset.residual);
    CHECK(c.model.activation == preset.activation);
    CHECK(c.model.rope_share == (preset.positions == PositionKind::kRope ? std::optional(preset.rope_share) : std::nullopt));
    CHECK(resolve(c) == c);
    CHECK(resolve(parse_config(to_yaml(c), "run.yaml").config) == c);
  }
}

TEST_CASE("config: resolve fills every auto") {
  SECTION("llama") {
    const Config c = resolve(load(kSmall, {"run.name=small", "parallel.data=auto", "parallel.tensor=2", "parallel.zero_stage=2"}), 8);
    CHECK(c.run.directory == "runs/small");
    CHECK(c.run.device == DeviceType::kAuto);  // ranks detect GPUs at run time
    CHECK(c.training.reduce_dtype == ReduceDtype::kFp32);
    CHECK(c.model.kv_heads == 2);
    CHECK(c.model.head_size == 16);
    CHECK(c.model.ffn_size == 256);
    CHECK(c.model.vocab_size == 256);
    CHECK(c.model.max_positions == 32);
    CHECK(c.parallel.data == 4);
    CHECK(c.parallel.layers_per_stage == std::vector<int64_t>{4});
    CHECK(c.parallel.gradient_accumulation == GradientAccumulation::kSharded);
  }
  SECTION("gpt2") {
    const Config c = resolve(load(kSmall, {"model.architecture=gpt2", "model.kv_heads=auto", "parallel.data=auto"}));
    CHECK(c.model.kv_heads == 6);
    CHECK(c.model.ffn_size == 384);
    CHECK(c.model.qkv_bias);
    CHECK(c.parallel.data == 1);
    CHECK(c.parallel.gradient_accumulation == GradientAccumulation::kFull);
  }
  SECTION("8/3 of 4096 is 10922.7, rounded up to a multiple of 64") {
    CHECK(resolve(load(kSmall, {"model.hidden_size=4096", "model.heads=32"})).model.ffn_size == 10944);
  }
  SECTION("the final decay of wsd is a tenth of the steps and never overlaps the warmup") {
    const std::vector<std::string> wsd = {"training.schedule.name=wsd"};
    CHECK(resolve(load(kSmall, wsd)).training.schedule.decay_steps == 10);
    CHECK(resolve(load(kSmall, {wsd[0], "training.schedule.warmup_steps=97"})).training.schedule.decay_steps == 3);
  }
  SECTION("resolving twice gives the same result") {
    const Config once = resolve(load(kSmall, {"parallel.pipeline=3"}));
    CHECK(resolve(once) == once);
  }
  SECTION("a configuration made in code is checked too") {
    Config c = load(kSmall);
    c.parallel.tensor = 4;
    CHECK_THROWS_WITH(resolve(c), Catch::Matchers::StartsWith("parallel.tensor=4: does not divide model.heads 6"));
    c.parallel.tensor = 2;
    c.model.heads = 0;
    CHECK_THROWS_WITH(resolve(c), Catch::Matchers::StartsWith("model.heads=0: out of range"));
  }
}

TEST_CASE("config: hang_seconds auto is longer on GPUs and on several hosts") {
  const Config automatic = resolve(load(kSmall)), given = resolve(load(kSmall, {"resilience.hang_seconds=2.5"}));
  CHECK(hang_seconds(automatic, false, true) == 10);
  CHECK(hang_seconds(automatic, true, true) == 120);
  CHECK(hang_seconds(automatic, false, false) == 120);
  CHECK(hang_seconds(given, false, true) == 2.5);
  CHECK(hang_seconds(given, true, false) == 2.5);
}

TEST_CASE("config: logits_chunk auto is at least 4,096 rows on a GPU") {
  const auto rows = [](const std::string& device, const std::vector<std::string>& sets) {
    std::vector<std::string> all = sets;
    all.push_back("run.device=" + device);
    return logits_chunk(resolve(load(kSmall, all)));
  };
  const std::vector<std::string> large = {"model.vocab_size=128256", "training.precision=bf16"};
  CHECK(rows("cpu", large) == 256);
  CHECK(rows("auto", large) == 256);
  CHECK(rows("cuda", large) == 4096);
  CHECK(rows("cuda", {}) == rows("cpu", {}));  // 64 MiB have more rows of this vocabulary
  CHECK(rows("cpu", {}) == 65536);
  CHECK(rows("cuda", {"model.vocab_size=128256", "training.logits_chunk=100"}) == 100);
}

TEST_CASE("config: the world must be the product of the degrees") {
  const LoadedConfig loaded = parse_config(kSmall, "run.yaml", {"parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2"});
  CHECK(resolve(loaded, 8).parallel.data == 2);
  CHECK_THROWS_WITH(resolve(loaded, 6),
                    Catch::Matchers::StartsWith("--set:parallel.data parallel.data=2: tensor 2 x pipeline 2 x data 2 = 8 ranks, but 6 were "
                                                "started; allowed a product of 6, or starting 8 ranks; nearest valid "
                                                "tensor 1 x pipeline 3 x data 2 or tensor 2 x pipeline 3 x data 1"));
  const LoadedConfig free = parse_config(kSmall, "run.yaml", {"parallel.tensor=2", "parallel.pipeline=2", "parallel.data=auto"});
  CHECK(resolve(free, 4).parallel.data == 1);
  CHECK_THROWS_WITH(resolve(free, 6), Catch::Matchers::Contains("parallel.data=auto") && Catch::Matchers::Contains("6 were started"));
  // Rules that need the resolved `data`: 8 sequences over 3 data ranks.
  CHECK_THROWS_WITH(resolve(free, 12), Catch::Matchers::Contains("training.global_batch_size=8: not a multiple of micro_batch_size 1 x data 3 = 3"));
}

TEST_CASE("config: a step with too many actions for the memory is refused") {
  const auto with_batch = [](const char* sequences) {
    return resolve(parse_config(kSmall, "run.yaml", {concat("training.global_batch_size=", sequences)}), 1);
  };
  CHECK_NOTHROW(with_batch("20000000"));
  CHECK_THROWS_WITH(with_batch("20000001"), Catch::Matchers::Contains("a step of 20000001 micro-batches on 1 stage has too many actions") &&
                                                Catch::Matchers::Contains("nearest valid 20000000"));
}

TEST_CASE("config: the first and the last stage may have no layers, with fewer layers than stages too") {
  const auto split = [](const std::vector<std::string>& sets) { return resolve(parse_config(kSmall, "run.yaml", sets)).parallel.layers_per_stage; };
  using Split = std::vector<int64_t>;
  for (const char* ends : {"[0, 4, 0]", "[0, 1, 3]", "[3, 1, 0]"}) {
    INFO(ends);
    CHECK(split({"parallel.pipeline=3", concat("parallel.layers_per_stage=", ends)})->size() == 3);
  }
  CHECK(split({"parallel.pipeline=2", "parallel.layers_per_stage=[0, 4]"}) == Split{0, 4});
  CHECK(split({"parallel.pipeline=2", "parallel.layers_per_stage=[4, 0]"}) == Split{4, 0});
  CHECK(split({"parallel.pipeline=6", "parallel.layers_per_stage=[0, 1, 1, 1, 1, 0]"}) == Split{0, 1, 1, 1, 1, 0});
  CHECK(split({"parallel.pipeline=3", "parallel.schedule=zb_v", "parallel.layers_per_stage=[0, 1, 1, 1, 1, 0]"}) == Split{0, 1, 1, 1, 1, 0});
  CHECK(split({"parallel.schedule=interleaved_1f1b", "parallel.virtual_stages=6", "parallel.layers_per_stage=[0, 1, 1, 1, 1, 0]"})->size() == 6);
  CHECK(split({"parallel.pipeline=2", "model.layers=1", "parallel.layers_per_stage=[1, 0]"}) == Split{1, 0});
  // `auto` gives every stage a layer, however large the head is.
  CHECK(split({"parallel.pipeline=4", "model.vocab_size=1000000"}) == Split{1, 1, 1, 1});
}

TEST_CASE("config: balance_layers") {
  using Split = std::vector<int64_t>;
  const auto uniform = [](int64_t layers, double first, double last, int64_t stages) {
    return balance_layers(std::vector<double>(static_cast<size_t>(layers), 1.0), first, last, stages, false);
  };
  CHECK(uniform(8, 0, 0, 1) == Split{8});
  CHECK(uniform(8, 0, 0, 4) == Split{2, 2, 2, 2});
  CHECK(uniform(4, 0, 0, 4) == Split{1, 1, 1, 1});
  CHECK(uniform(5, 0, 0, 4) == Split{1, 1, 1, 2});
  CHECK(uniform(9, 0, 0, 4) == Split{2, 2, 2, 3});
  CHECK(uniform(9, 0, 1, 4) == Split{2, 2, 3, 2});  // the head makes the last stage the expensive one
  CHECK(uniform(8, 0, 3, 3) == Split{3, 4, 1});
  CHECK(uniform(8, 3, 0, 3) == Split{1, 3, 4});
  CHECK(uniform(3, 0, 100, 3) == Split{1, 1, 1});  // never an empty stage
  const auto open_ended = [](int64_t layers, double first, double last, int64_t stages) {
    return balance_layers(std::vector<double>(static_cast<size_t>(layers), 1.0), first, last, stages, true);
  };
  CHECK(open_ended(3, 0, 100, 3) == Split{1, 2, 0});
  CHECK(open_ended(8, 0.1, 0.9, 4) == Split{2, 2, 2, 2});
  CHECK(open_ended(6, 4, 4, 4) == Split{0, 3, 3, 0});
  CHECK(open_ended(2, 1, 1, 2) == Split{1, 1});
  CHECK(open_ended(1, 0, 0, 1) == Split{1});
  CHECK(balance_layers({5, 1, 1, 1, 1, 1}, 0, 0, 2, false) == Split{1, 5});
  CHECK(balance_layers({1, 1, 1, 9, 1, 1}, 0, 0, 3, false) == Split{3, 1, 2});

  // Exhaustively, against every split of up to 7 uneven layers over 3 stages.
  for (int64_t layers = 3; layers <= 7; ++layers) {
    std::vector<double> cost;
    for (int64_t i = 0; i < layers; ++i) cost.push_back(static_cast<double>(1 + (i * 5) % 7));
    const auto largest = [&](const Split& split) {
      double worst = 0;
      size_t at = 0;
      for (size_t s = 0; s < split.size(); ++s) {
        double sum = s == 0 ? 2.0 : s + 1 == split.size() ? 4.0 : 0.0;
        for (int64_t n = 0; n < split[s]; ++n) sum += cost[at++];
        worst = std::max(worst, sum);
      }
      return worst;
    };
    double best = 1e9;
    for (int64_t a = 1; a < layers - 1; ++a)
      for (int64_t b = 1; a + b < layers; ++b) best = std::min(best, largest({a, b, layers - a - b}));
    CHECK(largest(balance_layers(cost, 2, 4, 3, false)) == best);
    for (int64_t a = 0; a < layers; ++a)
      for (int64_t b = 1; a + b <= layers; ++b) best = std::min(best, largest({a, b, layers - a - b}));
    CHECK(largest(balance_layers(cost, 2, 4, 3, true)) == best);
  }
}

TEST_CASE("config: the resolved file loads again and is equal") {
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"model.architecture=gpt2", "model.init_std=0.1234567890123456789", "training.optimizer.learning_rate=1.0000000000000002"},
      {"training.schedule.name=wsd", "training.schedule.final_learning_rate=1e-300", "parallel.data=2", "parallel.zero_stage=3",
       "parallel.reshard=after_step"},
      {"training.schedule.name=constant", "training.optimizer.learning_rate_scaling=sqrt", "training.optimizer.reference_batch_size=64"},
      {"parallel.pipeline=3", "parallel.layers_per_stage=[1, 1, 2]", "run.seed=9223372036854775807"},
      {"training.ema.decay=0.9999"},
      {"training.compression.method=int4", "training.compression.block=64", "parallel.data=2", "parallel.zero_stage=3"},
      {"training.compression.method=top_k", "training.compression.ratio=0.05", "training.compression.error_feedback=false"},
      {"training.compression.method=power_sgd", "training.compression.rank=2", "parallel.data=2", "parallel.zero_stage=2"},
      {"training.compression.method=one_bit_adam", "training.compression.warmup_steps=20", "parallel.data=2", "parallel.zero_stage=1"},
      {"security.aggregation.rule=krum", "security.aggregation.byzantine=1", "parallel.data=8"},
      {"security.aggregation.rule=centered_clipping", "security.aggregation.byzantine=1", "parallel.data=4", "security.aggregation.radius=0.5"},
      {"model.window=8"},
      {"model.window=8", "model.window_layers=[0, 3]"},
      {"training.precision=fp16", "training.loss_scale.initial=8", "training.loss_scale.growth_interval=5"},
      {"run.name=\"010\"", "run.directory=\"a \\\"b\\\" \\\\ c: # d\\té\"", "data.train=[\"true\", null_, '~', '- x', \"[\", 'it''s']",
       "data.validation=['*x']"},
      {"data.tokenizer=" + test::in_checkout("tests/golden/tokenizers/llama3.json")},
      {"run.directory=\"two\\nlines\\x01\\x7f\""}};
  for (const auto& sets : variants) {
    const Config resolved = resolve(load(kSmall, sets));
    const std::string yaml = to_yaml(resolved);
    CAPTURE(yaml);
    CHECK(load(yaml) == resolved);
    CHECK(resolve(load(yaml)) == resolved);
    CHECK(to_yaml(load(yaml)) == yaml);
  }
  // A section without effect at this precision is not written, because its keys would be refused.
  CHECK(to_yaml(resolve(load(kSmall))).find("loss_scale") == std::string::npos);
  CHECK(to_yaml(resolve(load(kSmall, {"training.precision=fp16"}))).find("  loss_scale:\n    initial: 65536\n") != std::string::npos);
  CHECK(resolve(load(kSmall, {"training.precision=fp64"})).run.device == DeviceType::kCpu);
  const auto accumulation = [](const std::string& scope) {
    return resolve(load(kSmall, {"parallel.data=4", "parallel.replicate=2", "parallel.zero_stage=3", "training.compression.method=int8",
                                 "training.compression.scope=" + scope}))
        .parallel.gradient_accumulation.value();
  };
  CHECK(accumulation("data") == GradientAccumulation::kFull);  // a step's gradient is encoded once
  CHECK(accumulation("replicate") == GradientAccumulation::kSharded);
  const auto momentum = [](const std::string& rule) {
    return *resolve(load(kSmall, {"parallel.data=8", "security.aggregation.byzantine=1", "security.aggregation.rule=" + rule}))
                .security.aggregation.momentum;
  };
  CHECK(momentum("centered_clipping") == 0.9);
  CHECK(momentum("geometric_median") == 0);
  // wsd counted in epochs keeps decay_steps auto, which depends on the dataset.
  const Config epochs = resolve(load("training: {epochs: 1, schedule: {name: wsd}}\ndata: {train: [a]}"));
  CHECK(load(to_yaml(epochs)) == epochs);
  // Not resolved: auto stays auto.
  CHECK(load(to_yaml(load(kSmall, {"parallel.data=auto"}))) == load(kSmall, {"parallel.data=auto"}));
}

TEST_CASE("config: the largest rank of power_sgd is that of the parameter table") {
  const std::vector<std::vector<std::string>> variants = {{},
                                                          {"parallel.tensor=2"},
                                                          {"parallel.tensor=2", "model.ffn_size=900"},
                                                          {"model.architecture=gpt2", "model.kv_heads=6", "model.max_positions=4000"},
                                                          {"model.architecture=gpt2", "model.kv_heads=6", "model.max_positions=4000",
                                                           "parallel.tensor=3", "parallel.sequence_parallel=true", "training.sequence_length=33"},
                                                          {"model.head_size=200", "model.ffn_size=300", "parallel.tensor=6"}};
  for (auto sets : variants) {
    sets.insert(sets.end(), {"training.compression.method=power_sgd", "training.compression.rank=1"});
    const Config config = resolve(load(kSmall, sets));
    const TensorRank first{0, static_cast<int>(config.parallel.tensor)};
    int64_t largest = 0;
    for (int64_t rank = 1; rank < 200; ++rank)
      for (const ParamSpec& spec : parameters_of(config.model, first, config.parallel.sequence_parallel))
        if (has_low_rank(spec, rank)) largest = rank;
    CAPTURE(sets, largest);
    REQUIRE(largest > 10);
    sets.back() = concat("training.compression.rank=", largest);
    CHECK_NOTHROW(resolve(load(kSmall, sets)));
    sets.back() = concat("training.compression.rank=", largest + 1);
    CHECK_THROWS_WITH(resolve(load(kSmall, sets)), Catch::Matchers::Contains(concat("allowed 1 to ", largest, ";")));
  }
}

const nlohmann::json& property(const nlohmann::json& schema, std::string path) {
  const nlohmann::json* at = &schema;
  for (size_t dot = 0; dot != path.npos; path.erase(0, dot + 1)) {
    dot = path.find('.');
    at = &at->at("properties").at(path.substr(0, dot));
    if (dot == path.npos) break;
  }
  return *at;
}

TEST_CASE("config: text is quoted only if a parser could read it as another type") {
  const auto text = [](const std::string& value) { return text_of(FieldValue(value)); };
  for (const std::string plain : {"1f1b", "after_use", "data/train", "/a/b.c-d", "3x"}) CHECK(text(plain) == plain);
  for (const std::string quoted : {"", "true", "No", "null", "auto", "12", "1e3", "0x10", "1_0", "-a", ".nan", "a b", "a:b", "#a", "*a", "~"})
    CHECK(text(quoted) == '"' + quoted + '"');
}

TEST_CASE("config: numbers are written so that every YAML parser reads numbers") {
  const Config config = resolve(
      load(kSmall, {"data.train=[t, u]", "data.weights=[1.0e-9, 2.5e-7]", "model.norm_epsilon=0.00001", "training.optimizer.learning_rate=3.0e-7"}));
  const std::string text = to_yaml(config);
  CAPTURE(text);
  CHECK(text.find("  norm_epsilon: 1.0e-05\n") != text.npos);
  CHECK(text.find("    learning_rate: 3.0e-07\n") != text.npos);
  CHECK(text.find("  weights: [1.0e-09, 2.5e-07]\n") != text.npos);
  const std::regex without_point("[ \\[][-+]?[0-9]+e");  // YAML 1.1 reads such a number as text
  CHECK_FALSE(std::regex_search(text, without_point));
  CHECK(resolve(load(text)) == config);
  CHECK(text_of(FieldValue(1e-5)) == "1e-05");  // messages
}

TEST_CASE("config: the schema is JSON and describes every key") {
  const nlohmann::json schema = nlohmann::json::parse(json_schema());
  CHECK(schema.at("$schema") == "https://json-schema.org/draft/2020-12/schema");
  for (const FieldRow& row : table_of(Config{}).fields) {
    CAPTURE(row.path);
    CHECK(property(schema, row.path).at("description").get<std::string>().find(row.field.doc) == 0);
  }
  for (const SectionRow& row : table_of(Config{}).sections) CHECK(property(schema, row.path).at("additionalProperties") == false);
  CHECK(property(schema, "model.dropout").at("exclusiveMaximum") == 1.0);
  CHECK(property(schema, "model.layers").at("type") == "integer");
  CHECK(property(schema, "parallel.zero_stage").at("maximum") == 3);
  CHECK(property(schema, "parallel.schedule").at("enum") == nlohmann::json({"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "file"}));
  CHECK(property(schema, "model.kv_heads").at("anyOf").at(1).at("const") == "auto");
  CHECK(property(schema, "model.kv_heads").at("default") == "auto");
  CHECK(property(schema, "model.window_layers").at("anyOf").at(1).at("const") == "all");
  CHECK(property(schema, "model.window_layers").at("default") == "all");
  CHECK(property(schema, "training.ema.decay").at("anyOf").at(1).at("type") == "null");
  const nlohmann::json& whole = schema.at("then");  // a file that includes none
  CHECK(schema.at("if") == nlohmann::json::parse(R"({"not": {"required": ["include"]}})"));
  CHECK(property(whole, "data").at("required") == nlohmann::json({"train"}));
  CHECK(whole.at("required") == nlohmann::json({"data", "training"}));
  CHECK_FALSE(schema.contains("required"));
}

TEST_CASE("config: the schema beside the files in configs/ is the program's, and every file names it") {
  const std::filesystem::path folder = test::in_checkout("configs");
  CHECK(test::slurp(folder / "trireme.schema.json") == json_schema());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path());
    CHECK(test::slurp(entry.path()).starts_with("# yaml-language-server: $schema=trireme.schema.json\n"));
    ++files;
  }
  CHECK(files >= 9);
}

TEST_CASE("config: the schema of a cluster file describes every key") {
  const nlohmann::json schema = nlohmann::json::parse(cluster_schema());
  for (const FieldRow& row : table_of(ClusterConfig{}).fields) {
    CAPTURE(row.path);
    CHECK(property(schema, row.path).at("description").get<std::string>().find(row.field.doc) == 0);
  }
  CHECK(property(schema, "software.straggler").at("minimum") == 1.0);
  CHECK(property(schema, "network.bandwidth").at("anyOf").at(1).at("const") == "auto");
  CHECK(schema.at("additionalProperties") == false);
}

TEST_CASE("config: explain names the origin of every value") {
  const LoadedConfig loaded = parse_config(kSmall, "run.yaml", {"parallel.tensor=2"});
  const std::string text = explain(loaded, resolve(loaded));
  const auto line = [&](const std::string& wanted) { return text.find(wanted + "\n") != text.npos; };
  CHECK(line("model.layers = 4    # run.yaml:2:38"));
  CHECK(line("parallel.tensor = 2    # --set:parallel.tensor"));
  CHECK(line("checkpoint.keep = 3    # default"));
  CHECK(line("model.head_size = 16    # default, auto: hidden_size / heads"));
  CHECK(line("training.epochs = not set    # default"));
  const LoadedConfig given = parse_config(kSmall, "run.yaml", {"model.head_size=16"});
  const std::string explained = explain(given, resolve(given));
  CHECK(explained.find("model.head_size = 16    # --set:model.head_size\n") != text.npos);
  CHECK(explained.find(", or auto. auto: hidden_size / heads.\n") != text.npos);
  CHECK(line("model.window_layers = all    # default, all: every layer, without effect: model.window is not set"));
  CHECK(line("training.loss_scale.initial = 65536    # default, without effect: only precision fp16 scales the loss"));
  for (const FieldRow& row : table_of(loaded.config).fields) {
    CAPTURE(row.path);
    CHECK(text.find(row.path + " = ") != text.npos);
    CHECK(text.find(row.field.doc) != text.npos);
  }
}

TEST_CASE("config: the commands print the output of the functions") {
  const std::string file = test::in_checkout("configs/quickstart.yaml");
  const auto printed = [](const std::string& arguments) {
    const auto [exit_code, text] = test::config_output(arguments);
    CHECK(exit_code == 0);
    return text;
  };
  CHECK(printed("config show " + file) == to_yaml(resolve(load_config(file))));
  const LoadedConfig changed = load_config(file, {"parallel.tensor=4", "run.seed=2"});
  CHECK(printed("config show " + file + " --set parallel.tensor=4 --set run.seed=2") == to_yaml(resolve(changed)));
  CHECK(printed("config explain --set parallel.tensor=4 --set run.seed=2 " + file) == explain(changed, resolve(changed)));
  CHECK(printed("config schema") == json_schema());
  CHECK(printed("config schema " + file) == json_schema());
  CHECK(printed("config schema --cluster") == cluster_schema());
  CHECK_THROWS_AS(printed("config schema --cluster " + file), CLI::ParseError);
  CHECK_THROWS_AS(printed("config schema " + file + " --set parallel.tensor=3"), ConfigError);
  CHECK_THROWS_AS(printed("config show " + file + ".none"), MissingFileError);
  CHECK_THROWS_AS(printed("config show"), CLI::ParseError);
  CHECK_THROWS_AS(printed("config schema --set run.seed=2"), CLI::ParseError);
}

TEST_CASE("config: the files in configs/ resolve at their intended world sizes") {
  const std::string folder = test::in_checkout("configs/");
  const Config quickstart = resolve(load_config(folder + "quickstart.yaml"), 8);
  CHECK(quickstart.parallel.layers_per_stage->size() == 2);
  CHECK(resolve(load_config(folder + "gpt2-124m-cpu.yaml"), 4).model.qkv_bias);
  CHECK(resolve(load_config(folder + "llama-110m-cpu.yaml"), 4).training.schedule.decay_steps == 2000);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CAPTURE(entry.path().string());
    if (entry.path().extension() == ".yaml") CHECK_NOTHROW(resolve(load_config(entry.path().string())));
  }
}

}  // namespace
}  // namespace trireme
