// The section adapter: what is refused, and with which message; which layers get an adapter; what the clone of `trireme verify` has.
#include <algorithm>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/model/declare.h"
#include "trainer/verify/clone.h"

namespace trireme {
namespace {

const std::string kAdapterText = R"(model: {layers: 12, hidden_size: 96, heads: 12, kv_heads: 2, ffn_size: 256, vocab_size: 300}
training: {steps: 100, sequence_length: 32, micro_batch_size: 1, global_batch_size: 12}
data: {tokenizer: none, train: [data/a]}
)";

Config adapter_config(std::vector<std::string> sets) {
  if (sets.empty() || !sets.front().starts_with("adapter.rank=")) sets.insert(sets.begin(), "adapter.rank=8");
  return resolve(parse_config(kAdapterText, "run.yaml", sets), std::nullopt);
}

/// The refusal; empty if it is accepted.
std::string adapter_refusal(const std::vector<std::string>& sets) {
  try {
    adapter_config(sets);
    return "";
  } catch (const Error& error) {
    CHECK(static_cast<int>(error.code()) == 64);
    return error.what();
  }
}

/// Adapted layers, by name.
std::vector<std::string> adapted_layers(const ModelConfig& model) {
  std::vector<std::string> names;
  for (int64_t block = 0; block < model.layers; ++block)
    for (const std::string& layer : block_spec(model, block).adapter.layers) names.push_back(concat("blocks.", block, ".", layer));
  return names;
}

}  // namespace

TEST_CASE("adapter: targets name linear layers by their whole name or its last part") {
  CHECK(adapted_layers(adapter_config({}).model).size() == 12 * 7);
  CHECK(adapted_layers(adapter_config({"adapter.targets=[query, value]"}).model).size() == 12 * 2);
  CHECK(adapted_layers(adapter_config({"adapter.targets=['blocks.1?.mlp.*', blocks.3.attention.key]"}).model) ==
        std::vector<std::string>{"blocks.3.attention.key", "blocks.10.mlp.gate", "blocks.10.mlp.up", "blocks.10.mlp.down", "blocks.11.mlp.gate",
                                 "blocks.11.mlp.up", "blocks.11.mlp.down"});
  CHECK(adapted_layers(adapter_config({"adapter.rank=0"}).model).empty());
  CHECK_THAT(adapter_refusal({"adapter.targets=[quary]"}),
             Catch::Contains("adapter.targets=quary: names no linear layer of a block") && Catch::Contains("nearest valid query"));
  CHECK_THAT(adapter_refusal({"adapter.targets=[q_proj]"}), Catch::Contains("patterns of query, key, value, output, gate, up, down"));
  CHECK_THAT(adapter_refusal({"adapter.targets=[blocks.12.mlp.up]"}), Catch::Contains("names no linear layer"));
  CHECK_THAT(adapter_refusal({"adapter.targets=[attention_norm]"}), Catch::Contains("names no linear layer"));
  CHECK_THAT(adapter_refusal({"adapter.targets=['[q]uery']"}), Catch::Contains("names no linear layer"));
  CHECK_THAT(adapter_refusal({"adapter.targets=[]"}), Catch::Contains("names no layer"));
  CHECK_THAT(adapter_refusal({"model.architecture=gpt2", "adapter.targets=[gate]"}), Catch::Contains("names no linear layer"));
}

TEST_CASE("adapter: rank and scale are checked, and keys without a rank are refused") {
  CHECK_THAT(adapter_refusal({"adapter.rank=-1"}), Catch::Contains("adapter.rank"));
  CHECK_THAT(adapter_refusal({"adapter.alpha=0"}), Catch::Contains("adapter.alpha"));
  CHECK_THAT(adapter_refusal({"adapter.scale=rslora"}), Catch::Contains("alpha_over_rank") && Catch::Contains("alpha_over_root_rank"));
  CHECK_THAT(adapter_refusal({"adapter.rank=0", "adapter.alpha=3"}), Catch::Contains("adapter.rank is 0"));
  CHECK_THAT(adapter_refusal({"training.optimizer.name=muon"}), Catch::Contains("training.optimizer.name=muon: updates matrices of linear layers"));
  CHECK_THAT(adapter_refusal({"training.optimizer.name=muon", "model.frozen=['*.weight']", "model.qkv_bias=true"}), Catch::Contains("muon"));
  CHECK(adapter_refusal({"training.optimizer.name=muon", "model.frozen=[embedding.weight]"}).empty());
  CHECK(adapter_scale(adapter_config({"adapter.alpha=4"}).model.adapter) == 0.5);
  CHECK(adapter_scale(adapter_config({"adapter.rank=16", "adapter.alpha=4", "adapter.scale=alpha_over_root_rank"}).model.adapter) == 1);
}

TEST_CASE("adapter: without model.frozen all other parameters are frozen, with it only those that it names") {
  const auto trained = [](const ModelConfig& model) {
    std::vector<std::string> names;
    for (const ParamSpec& spec : whole_model(model))
      if (spec.trainable && !is_adapter(spec.name)) names.push_back(spec.name);
    return names;
  };
  CHECK(trained(adapter_config({"adapter.targets=[query]"}).model).empty());
  CHECK(trained(adapter_config({"model.frozen=['blocks.*']"}).model) == std::vector<std::string>{"embedding.weight", "final_norm.weight"});
  CHECK_THAT(adapter_refusal({"model.frozen=['*.lora_a.*']"}), Catch::Contains("model.frozen=*.lora_a.*: names no parameter of the model"));
}

TEST_CASE("adapter: the clone of verify adapts in each block what its block of the model has, and never nothing") {
  const auto clone = [](const std::vector<std::string>& sets) { return make_clone(adapter_config(sets), parse_layouts("pp4 tp2"), 3).config.model; };
  const ModelConfig some = clone({"adapter.targets=[query, blocks.11.mlp.down]"});
  CHECK(some.layers < 12);
  CHECK(adapted_layers(some).size() == static_cast<size_t>(some.layers) + 1);
  CHECK(adapted_layers(some).back() == concat("blocks.", some.layers - 1, ".mlp.down"));
  CHECK(some.adapter.rank == 3);
  CHECK(adapter_scale(some.adapter) == Approx(2));
  CHECK(adapted_layers(clone({"adapter.targets=[blocks.7.mlp.up]"})).size() == 1);  // of a block that the clone skips
  CHECK(clone({"adapter.rank=2"}).adapter.rank == 2);
  CHECK(clone({"adapter.rank=0"}).adapter == AdapterConfig());
}

}  // namespace trireme
