// Reads Hugging Face models (tests/golden/huggingface, made by scripts/golden_huggingface.py) and compares their logits with those of transformers.
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/run_files.h"
#include "tests/support/thread_ranks.h"
#include "trainer/huggingface/config.h"
#include "trainer/huggingface/names.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/state.h"
#include "trainer/model/declare.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGoldenModels = in_checkout("tests/golden/huggingface");
const std::vector<std::string> kModels{
    "llama_tied",   "llama3_untied", "llama_linear_sharded", "llama_bf16", "qwen2",        "qwen3", "gpt2_tied", "gpt2_untied", "mistral",
    "qwen2_window", "gpt_neox",      "gpt_neox_sequential",  "gemma3",     "gemma3_linear"};

json read_json(const fs::path& path) { return json::parse(std::ifstream(path)); }

/// A modifiable copy of a golden folder.
class Folder {
 public:
  explicit Folder(const std::string& name) { fs::copy(kGoldenModels / name, path(), fs::copy_options::recursive); }
  fs::path path() const { return directory_.path / "model"; }
  fs::path file(const std::string& name = "model.safetensors") const { return path() / name; }
  void change_json(const std::function<void(json&)>& change, const std::string& name = "config.json") const {
    json value = read_json(file(name));
    change(value);
    std::ofstream(file(name)) << value.dump(2);
  }
  void change_tensors(const std::function<void(RawTensors&)>& change) const {
    RawTensors tensors = read_raw(file());
    change(tensors);
    write_raw(file(), tensors);
  }

 private:
  TemporaryDirectory directory_;
};

std::string refusal(const fs::path& folder, ExitCode code = ExitCode::kData) {
  try {
    HuggingFaceReader reader(folder);
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "accepted";
}

void on_layout(const fs::path& folder, int tensor, int pipeline, int data, const std::function<void(Trainer&, WeightSource&)>& body) {
  run_ranks(tensor * pipeline * data, [&](Communicator& world) {
    WeightSource source(folder);
    Config config = source.config();
    config.parallel.tensor = tensor;
    config.parallel.pipeline = pipeline;
    config.parallel.data = data;
    config.parallel.zero_stage = data > 1 ? 3 : 0;
    config.parallel.layers_per_stage.reset();
    config.training.global_batch_size = data;
    config.run.device = DeviceType::kCpu;
    config = resolve(config, world.size());
    Arena arena(Device::kCpu, true);
    Context ctx{Device::kCpu, &arena, 1};
    Trainer trainer(ctx, world, config, false);
    load_weights(trainer, source);
    body(trainer, source);
  });
}

/// The largest difference from the logits of transformers.
double logits_error(const fs::path& folder, int tensor) {
  const json expected = read_json(folder / "logits.json");
  const auto tokens = expected.at("tokens").get<std::vector<int32_t>>();
  double largest = 0;
  on_layout(folder, tensor, 1, 1, [&](Trainer& trainer, WeightSource&) {
    const std::vector<double> logits = trainer.logits(tokens);
    if (trainer.mesh().world.rank() != 0) return;
    size_t at = 0;
    for (const json& row : expected.at("logits"))
      for (const json& value : row) largest = std::max(largest, std::abs(value.get<double>() - logits.at(at++)));
    TRIREME_CHECK(at == logits.size(), at, " logits of transformers, ", logits.size(), " of ours");
  });
  return largest;
}

std::vector<float> read_floats(WeightSource& source, const std::string& name, const Box& box) {
  std::vector<float> values(static_cast<size_t>(box.numel()));
  source.read(name, box, DType::kF32, values.data());
  return values;
}

std::vector<float> slice(const std::vector<float>& whole, int64_t columns, const Box& box) {
  std::vector<float> part;
  for (int64_t row = 0; row < box.extent[0]; ++row) {
    const auto first = whole.begin() + (box.start[0] + row) * columns + box.start[1];
    part.insert(part.end(), first, first + box.extent[1]);
  }
  return part;
}

}  // namespace

TEST_CASE("the logits of a Hugging Face model match transformers, on one rank and over tensor ranks") {
  for (const std::string& name : kModels)
    for (const int tensor : {1, 2, 4}) {
      const double error = logits_error(kGoldenModels / name, tensor);
      INFO(name << " on " << tensor << " ranks: " << error);
      CHECK(error < 1e-4);
    }
}

TEST_CASE("a Hugging Face model is read into any layout, each rank its own boxes") {
  for (const char* name : {"gpt2_tied", "llama_linear_sharded", "qwen3", "gpt_neox", "gemma3"})
    on_layout(kGoldenModels / name, 2, 2, 2, [&](Trainer& trainer, WeightSource& source) {
      TRIREME_CHECK(!trainer.owned_boxes().empty(), "a rank without weights");
      for (const OwnedBox& owned : trainer.owned_boxes()) {
        const auto [rows, columns] = source.shape(owned.spec->name);
        const std::vector<float> expected = slice(read_floats(source, owned.spec->name, {{0, 0}, {rows, columns}}), columns, owned.box);
        TRIREME_CHECK(std::memcmp(expected.data(), owned.weight.data<float>(), expected.size() * sizeof(float)) == 0, owned.spec->name);
      }
    });
}

TEST_CASE("any box of a Hugging Face tensor equals that part of the full tensor, in every dtype") {
  uint64_t draw = 0;
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random_bits(random_key(7, "boxes"), draw++) % static_cast<uint64_t>(n)); };
  for (const char* name : {"gpt2_tied", "llama_bf16", "gpt_neox"}) {
    WeightSource source(kGoldenModels / name);
    for (const std::string& parameter : source.names()) {
      const auto [rows, columns] = source.shape(parameter);
      const std::vector<float> whole = read_floats(source, parameter, {{0, 0}, {rows, columns}});
      for (int i = 0; i < 8; ++i) {
        Box box;
        for (const size_t dim : {size_t{0}, size_t{1}}) {
          const int64_t size = dim == 0 ? rows : columns;
          box.start[dim] = below(size);
          box.extent[dim] = 1 + below(size - box.start[dim]);
        }
        const std::vector<float> expected = slice(whole, columns, box);
        CHECK(read_floats(source, parameter, box) == expected);
        std::vector<double> wide(expected.size());
        source.read(parameter, box, DType::kF64, wide.data());
        CHECK(std::equal(wide.begin(), wide.end(), expected.begin(), expected.end()));
      }
    }
    CHECK_THROWS_AS(read_floats(source, "embedding.weight", {{1, 0}, source.shape("embedding.weight")}), DataError);
    CHECK_THROWS_AS(source.shape("blocks.2.mlp.up.weight"), DataError);
  }
}

TEST_CASE("a tied head is compared with its embedding to the last byte, at any size") {
  const Folder folder("llama_tied");
  constexpr int64_t kVocabulary = 140'000;  // 17 MiB per tensor: compared in pieces of 16 MiB
  folder.change_json([=](json& config) { config["vocab_size"] = kVocabulary; });
  const bool equal = GENERATE(true, false);
  folder.change_tensors([&](RawTensors& tensors) {
    RawTensor& embedding = tensors.at("model.embed_tokens.weight");
    embedding.shape[0] = kVocabulary;
    embedding.data.assign(static_cast<size_t>(kVocabulary * embedding.shape[1]) * sizeof(float), '\0');
    RawTensor& head = tensors["lm_head.weight"] = embedding;
    if (!equal) head.data.back() = '\1';
  });
  const std::string answer = refusal(folder.path());
  CHECK((equal ? answer == "accepted" : answer.find("lm_head.weight differs from the embedding") != std::string::npos));
}

TEST_CASE("every parameter maps to one place in the tensors of transformers") {
  for (const std::string& name : kModels) {
    const ModelConfig model = HuggingFaceReader(kGoldenModels / name).model();
    std::set<std::string> parameters, tensors;
    for (const HuggingFaceTensor& tensor : hugging_face_tensors(model)) {
      CHECK(tensors.insert(tensor.name).second);
      std::set<int64_t> rows;
      for (const HuggingFaceTensor::Part& part : tensor.parts) {
        CHECK(parameters.insert(part.parameter).second);
        for (int64_t row = 0; row < part.shape[0]; ++row) CHECK(rows.insert(part.row(row)).second);
      }
      CHECK(std::ssize(rows) == tensor.rows());
      CHECK(*rows.rbegin() == tensor.rows() - 1);
    }
    CHECK(parameters.size() == whole_model(model).size());
    for (const ParamSpec& spec : whole_model(model)) CHECK(parameters.contains(spec.name));
  }
}

TEST_CASE("config.json of older versions of transformers gives the same model") {
  const auto model_of = [](const json& config) { return parse_hugging_face_config(config.dump(), "config.json"); };
  const auto without = [](json config, const std::string& key) {
    config.erase(key);
    return config;
  };
  const auto older = [&](const std::string& name, const char* type_key) {
    json config = read_json(kGoldenModels / name / "config.json");
    json scaling = config.at("rope_parameters");
    config["rope_theta"] = scaling.at("rope_theta");
    scaling[type_key] = json(scaling.at("rope_type"));
    scaling.erase("rope_theta");
    if (std::string(type_key) != "rope_type") scaling.erase("rope_type");
    config["rope_scaling"] = scaling["factor"].is_null() ? json() : scaling;
    return without(config, "rope_parameters");
  };
  for (const char* name : {"llama_tied", "llama3_untied", "llama_linear_sharded", "qwen2", "qwen3"})
    for (const char* type_key : {"rope_type", "type"}) {
      INFO(name << ", " << type_key);
      CHECK(model_of(older(name, type_key)) == model_of(read_json(kGoldenModels / name / "config.json")));
    }
  const json llama = read_json(kGoldenModels / "llama_tied/config.json"), gpt2 = read_json(kGoldenModels / "gpt2_tied/config.json");
  for (const char* key : {"head_dim", "hidden_act", "attention_bias", "mlp_bias", "architectures", "rope_parameters", "pretraining_tp"})
    CHECK(model_of(without(llama, key)) == model_of(llama));
  for (const char* key : {"tie_word_embeddings", "activation_function", "scale_attn_weights", "layer_norm_epsilon", "add_cross_attention"})
    CHECK(model_of(without(gpt2, key)) == model_of(gpt2));
  CHECK(*model_of(without(gpt2, "n_inner")).ffn_size == 128);
  CHECK(*model_of(without(llama, "num_key_value_heads")).kv_heads == 4);
  json qwen2 = read_json(kGoldenModels / "qwen2/config.json");
  CHECK_THROWS_AS(model_of(without(qwen2, "num_key_value_heads")), DataError);
  qwen2["num_key_value_heads"] = nullptr;
  qwen2["attention_bias"] = true;  // ignored by this class
  CHECK(*model_of(qwen2).kv_heads == model_of(qwen2).heads);
  CHECK_FALSE(model_of(without(llama, "tie_word_embeddings")).tied_embeddings);
  json mistral = read_json(kGoldenModels / "mistral/config.json"), window = read_json(kGoldenModels / "qwen2_window/config.json");
  CHECK(*model_of(mistral).window == 4);
  CHECK_FALSE(model_of(mistral).window_layers.has_value());
  CHECK_FALSE(model_of(without(mistral, "sliding_window")).window.has_value());  // 4096, the default of transformers, exceeds every position
  json long_mistral = without(mistral, "sliding_window");
  long_mistral["max_position_embeddings"] = 32768;
  CHECK(*model_of(long_mistral).window == 4096);
  mistral["sliding_window"] = nullptr;
  CHECK_FALSE(model_of(mistral).window.has_value());
  CHECK(model_of(window).window_layers == std::vector<int64_t>{1});
  CHECK(model_of(without(window, "layer_types")) == model_of(window));  // max_window_layers is equivalent here
  window["layer_types"] = {"sliding_attention", "full_attention"};
  CHECK(model_of(window).window_layers == std::vector<int64_t>{0});
  window["layer_types"] = {"sliding_attention", "sliding_attention"};
  CHECK((*model_of(window).window == 4 && !model_of(window).window_layers));
  window["layer_types"] = {"full_attention", "full_attention"};
  CHECK_FALSE(model_of(window).window.has_value());
  ModelConfig last_two = model_of(window);  // written so that older versions of transformers read the same
  last_two.layers = 4;
  last_two.window = 4;
  last_two.window_layers = std::vector<int64_t>{2, 3};
  const nlohmann::ordered_json written = hugging_face_config(last_two, DType::kF32, nlohmann::ordered_json::object());
  CHECK(written["max_window_layers"] == 2);
  CHECK(written["layer_types"] == nlohmann::ordered_json({"full_attention", "full_attention", "sliding_attention", "sliding_attention"}));
  // Both forms are accepted if they agree.
  json both = older("llama3_untied", "rope_type");
  both["rope_parameters"] = read_json(kGoldenModels / "llama3_untied/config.json").at("rope_parameters");
  CHECK(model_of(both).rope_scaling.type == RopeScaling::kLlama3);
  both["rope_scaling"]["factor"] = 2.0;
  CHECK_THROWS_AS(model_of(both), DataError);
}

TEST_CASE("an unsupported config.json is refused, naming key and value") {
  const struct {
    const char *model, *key;
    json value;
    std::string named;
  } cases[] = {
      {"llama_tied", "model_type", "mixtral",
       R"("model_type" is "mixtral": not supported, because this program lacks experts; supported "llama", "mistral", "qwen2", "qwen3", "gpt2")"},
      {"llama_tied", "model_type", "gemma",
       R"("model_type" is "gemma": not supported, because this program lacks norms with 1 + weight without norms behind branches)"},
      {"llama_tied", "model_type", "deepseek_v3", "lacks latent attention, experts; supported \"llama\", "},
      {"llama_tied", "model_type", "bloom", "lacks ALiBi, "},
      {"llama_tied", "model_type", "my_model", R"("model_type" is "my_model": not supported; supported "llama", "mistral")"},
      {"llama_tied", "model_type", nullptr, R"("model_type" is null; expected a string)"},
      {"llama_tied", "architectures", {"LlamaForSequenceClassification"}, R"("architectures" is ["LlamaForSequenceClassification"])"},
      {"llama_tied", "hidden_act", "gelu", R"("hidden_act" is "gelu": not supported; allowed "silu")"},
      {"llama_tied", "mlp_bias", true, R"("mlp_bias" is true)"},
      {"llama_tied", "hidden_size", "32", R"("hidden_size")"},
      {"llama_tied", "hidden_size", 32.0, R"("hidden_size")"},
      {"llama_tied", "hidden_size", nullptr, R"("hidden_size")"},
      {"llama_tied", "num_hidden_layers", 0, R"("num_hidden_layers")"},
      {"llama_tied", "num_hidden_layers", 100000, "model.layers=100000"},
      {"llama_tied", "num_key_value_heads", 3, "model.kv_heads=3"},
      {"llama_tied", "rms_norm_eps", 0, "model.norm_epsilon=0"},
      {"llama_tied", "head_dim", 7, "model.head_size=7"},
      {"llama_tied", "tie_word_embeddings", 1, R"("tie_word_embeddings" is 1: expected true or false)"},
      {"llama_tied", "quantization_config", {{"bits", 4}}, R"("quantization_config")"},
      {"llama_tied",
       "rope_parameters",
       {{"rope_type", "yarn"}, {"factor", 4.0}},
       R"("rope_parameters": "rope_type" is "yarn": not supported; allowed "default", "linear", "llama3")"},
      {"llama_tied", "rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}, R"("rope_scaling": "type" is "dynamic")"},
      {"llama_tied", "rope_parameters", {{"rope_type", "linear"}}, R"("rope_parameters": "factor" is missing)"},
      {"llama_tied", "rope_parameters", {{"rope_type", "linear"}, {"factor", 2}, {"beta_fast", 2}}, R"(unknown key "beta_fast")"},
      {"llama_tied", "rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, R"("partial_rotary_factor" is 0.5)"},
      {"llama_tied", "rope_parameters", "linear", R"("rope_parameters" is "linear": expected an object)"},
      {"llama_tied", "use_sliding_window", true, R"("use_sliding_window" is true: this model type has no sliding window)"},
      {"qwen2", "use_sliding_window", 1, R"("use_sliding_window" is 1: expected true or false)"},
      {"qwen2",
       "layer_types",
       {"full_attention", "sliding_attention"},
       R"("layer_types" is ["full_attention","sliding_attention"]: "sliding_attention" needs a window)"},
      {"qwen2_window", "layer_types", {"full_attention"}, R"("layer_types" is ["full_attention"]: expected a list of length 2)"},
      {"qwen2_window", "layer_types", {"full_attention", "linear_attention"}, R"(a layer's type is not supported)"},
      {"qwen2_window", "sliding_window", nullptr, R"("sliding_window")"},
      {"mistral", "sliding_window", 0, R"("sliding_window")"},
      {"mistral", "layer_types", {"full_attention", "sliding_attention"}, R"(this model type has its window on every layer)"},
      {"qwen3", "head_dim", nullptr, R"("head_dim")"},
      {"gpt2_tied", "activation_function", "relu", R"("activation_function" is "relu": not supported; allowed "gelu_new")"},
      {"gpt2_tied", "scale_attn_weights", false, R"("scale_attn_weights" is false)"},
      {"gpt2_tied", "scale_attn_by_inverse_layer_idx", true, R"("scale_attn_by_inverse_layer_idx" is true)"},
      {"gpt2_tied", "add_cross_attention", true, R"("add_cross_attention" is true)"},
      {"gpt2_tied", "n_head", 5, "model.heads=5"},
      {"llama_tied", "partial_rotary_factor", 0.5, R"("partial_rotary_factor" is 0.5: this model type does not read it; allowed 1)"},
      {"gpt_neox", "attention_bias", false, R"("attention_bias" is false: attention without biases is not supported)"},
      {"gpt_neox", "hidden_act", "relu", R"("hidden_act" is "relu": not supported; allowed "gelu", "gelu_new")"},
      {"gpt_neox", "partial_rotary_factor", 0.5,
       R"("partial_rotary_factor" is 0.5: this model type does not read it, but "rotary_pct"; allowed 0.25)"},
      {"gpt_neox", "rope_theta", 5000, R"("rope_theta" is 5000: this model type does not read it, but "rotary_emb_base"; allowed 10000)"},
      {"gpt_neox", "rope_parameters", {{"partial_rotary_factor", 0.3}}, "RoPE on 0.3 of heads of 16 elements is 4.8 elements"},
      {"gpt_neox", "rope_parameters", {{"partial_rotary_factor", 0.1875}}, "model.rope_share=0.1875: rotates 3 elements of a head of 16"},
      {"gemma3", "head_dim", nullptr, R"("head_dim": is null)"},
      {"gemma3", "num_key_value_heads", nullptr, R"("num_key_value_heads": is null)"},
      {"gemma3", "partial_rotary_factor", 0.5, R"("partial_rotary_factor" is 0.5: RoPE on a part of each head is not supported here; allowed 1)"},
      {"gemma3", "attention_bias", true, R"("attention_bias" is true: biases are not supported)"},
      {"gemma3", "hidden_activation", "relu", R"("hidden_activation" is "relu": not supported; allowed "gelu_pytorch_tanh", "gelu", "silu")"},
      {"gemma3", "use_bidirectional_attention", true, R"("use_bidirectional_attention" is true: only causal attention is supported)"},
      {"gemma3", "final_logit_softcapping", 30.0, R"("final_logit_softcapping" is 30.0: soft caps are not supported; allowed null)"},
      {"gemma3", "attn_logit_softcapping", 50.0, R"("attn_logit_softcapping" is 50.0)"},
      {"gemma3", "query_pre_attn_scalar", 0, R"("query_pre_attn_scalar")"},
      {"gemma3", "sliding_window", nullptr, R"("sliding_window" is null: layers of type "sliding_attention" need a window)"},
      {"gemma3", "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}, R"("rope_parameters" has the scaling too)"},
      {"gemma3", "rope_parameters", {{"rope_type", "default"}}, R"("rope_parameters": unknown key "rope_type")"},
      {"gemma3",
       "rope_parameters",
       {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}},
       R"("rope_parameters": "sliding_attention" is)"},
  };
  for (const auto& c : cases) {
    const Folder folder(c.model);
    folder.change_json([&](json& config) { config[c.key] = c.value; });
    const std::string message = refusal(folder.path());
    INFO(c.model << ", " << c.key << " = " << c.value << ": " << message);
    CHECK(message.starts_with(folder.file("config.json").string()));
    CHECK(message.find(c.named) != message.npos);
  }
}

TEST_CASE("Gemma 3 is read with the keys of older versions, and without those that have defaults") {
  const Folder folder("gemma3");
  const ModelConfig model = HuggingFaceReader(folder.path()).model();
  CHECK((model.window == 4 && model.window_layers == std::vector<int64_t>{0} && model.window_rope_theta == 10000.0 && model.rope_theta == 1e6));
  CHECK((model.attention_scale == 1 / std::sqrt(20.0) && model.qk_norm && model.activation == Activation::kGeluTanh && model.tied_embeddings));
  folder.change_json([](json& config) {  // as transformers 4 wrote it
    config.erase("rope_parameters");
    config["rope_theta"] = 1000000.0;
    config["rope_local_base_freq"] = 10000.0;
    config["rope_scaling"] = nullptr;
  });
  CHECK(HuggingFaceReader(folder.path()).model() == model);
  for (const char* key : {"rope_theta", "rope_local_base_freq", "hidden_activation", "rms_norm_eps", "tie_word_embeddings"})
    folder.change_json([&](json& config) { config.erase(key); });
  CHECK(HuggingFaceReader(folder.path()).model() == model);
  folder.change_json([](json& config) { config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}}; });
  const ModelConfig scaled = HuggingFaceReader(folder.path()).model();
  CHECK((scaled.rope_scaling.type == RopeScaling::kLinear && scaled.rope_scaling.factor == 8 && scaled.window_rope_theta == 10000.0));
  folder.change_json([](json& config) { config["query_pre_attn_scalar"] = 12; });  // the head size
  CHECK_FALSE(HuggingFaceReader(folder.path()).model().attention_scale);

  const auto pattern = [&](const std::function<void(json&)>& change) {
    json config = read_json(folder.file("config.json"));
    config.erase("layer_types");
    config["num_hidden_layers"] = 7;
    change(config);
    return parse_hugging_face_config(config.dump(), "config.json").window_layers;
  };
  CHECK(pattern([](json&) {}) == std::vector<int64_t>{0, 1, 2, 3, 4, 6});
  CHECK(pattern([](json& config) { config["sliding_window_pattern"] = 2; }) == std::vector<int64_t>{0, 2, 4, 6});
  CHECK(pattern([](json& config) { config["_sliding_window_pattern"] = 2; }) == std::vector<int64_t>{0, 1, 2, 3, 4, 6});  // the class ignores it
  folder.change_json([](json& config) {
    config.erase("rope_scaling");
    config["rope_parameters"] = {{"full_attention", {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}}}};
  });
  CHECK(HuggingFaceReader(folder.path()).model().rope_scaling.original_max_positions == 64);
}

TEST_CASE("a Mistral without a window is a LLaMA, and a LLaMA may have biases of query, key and value") {
  for (const bool absent : {false, true}) {
    const Folder folder("llama_tied");
    folder.change_json([&](json& config) {
      config["model_type"] = "mistral";
      config["architectures"] = {"MistralForCausalLM"};
      if (!absent) config["sliding_window"] = nullptr;
    });
    CHECK(logits_error(folder.path(), 1) < 1e-4);
  }
  const Folder folder("qwen2");
  folder.change_json([](json& config) {
    for (const char* key : {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}) config.erase(key);
    config["model_type"] = "llama";
    config["architectures"] = {"LlamaForCausalLM"};
    config["attention_bias"] = true;
  });
  CHECK(logits_error(folder.path(), 2) < 1e-4);
  const auto refused_with = [&](const char* tensor, const char* words) {
    const Folder more("qwen2");
    fs::copy_file(folder.file("config.json"), more.file("config.json"), fs::copy_options::overwrite_existing);
    more.change_tensors([&](RawTensors& tensors) { tensors[tensor] = tensors.at("model.norm.weight"); });
    const std::string message = refusal(more.path());
    INFO(message);
    CHECK(message.find(concat("\n  ", tensor, ": ", words)) != message.npos);
  };
  refused_with("model.layers.1.self_attn.o_proj.bias", "a bias of the attention output projection, which this program lacks");
  refused_with("model.layers.0.mlp.up_proj.bias", "a bias in the feed-forward block, which this program lacks");
  const Folder without_biases("llama_tied");
  without_biases.change_json([](json& config) { config["attention_bias"] = true; });
  CHECK(refusal(without_biases.path()).find("\n  model.layers.0.self_attn.q_proj.bias: missing") != std::string::npos);
}

TEST_CASE("GPT-2 is read with and without its name prefix, and with the constants in old files") {
  const Folder folder("gpt2_tied");
  folder.change_tensors([](RawTensors& tensors) {
    RawTensors bare;
    for (auto& [name, tensor] : tensors) bare[name.starts_with("transformer.") ? name.substr(12) : name] = tensor;
    for (const char* block : {"h.0.", "h.1."}) {
      bare[std::string(block) + "attn.bias"] = {"BOOL", {1, 1, 64, 64}, std::string(64 * 64, '\1')};
      bare[std::string(block) + "attn.masked_bias"] = {"F32", {}, std::string(4, '\0')};
    }
    tensors = bare;
  });
  CHECK(logits_error(folder.path(), 2) < 1e-4);
}

TEST_CASE("GPT-NeoX is read with the constants in old files, and with the keys of older versions") {
  const Folder folder("gpt_neox");
  folder.change_tensors([](RawTensors& tensors) {
    for (const char* block : {"gpt_neox.layers.0.", "gpt_neox.layers.1."}) {
      tensors[std::string(block) + "attention.bias"] = {"BOOL", {1, 1, 64, 64}, std::string(64 * 64, '\1')};
      tensors[std::string(block) + "attention.masked_bias"] = {"F32", {}, std::string(4, '\0')};
      tensors[std::string(block) + "attention.rotary_emb.inv_freq"] = {"F32", {2}, std::string(8, '\0')};
    }
  });
  folder.change_json([](json& config) {
    config.erase("rope_parameters");
    config["rotary_pct"] = 0.25;
    config["rotary_emb_base"] = 10000;
    config["rope_scaling"] = nullptr;
  });
  CHECK(logits_error(folder.path(), 2) < 1e-4);
  const auto model_of = [](const json& config) { return parse_hugging_face_config(config.dump(), "config.json"); };
  json config = read_json(folder.file("config.json"));
  config["rotary_pct"] = 0.5;
  config["rotary_emb_base"] = 500;
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  CHECK(*model_of(config).rope_share == 0.5);
  CHECK(model_of(config).rope_theta == 500);
  CHECK(model_of(config).rope_scaling.factor == 4);
  config["rope_parameters"] = {{"rope_theta", 300}, {"partial_rotary_factor", 0.125}, {"rope_type", "default"}};
  config.erase("rope_scaling");
  CHECK(*model_of(config).rope_share == 0.125);
  CHECK(model_of(config).rope_theta == 300);
  for (const char* key :
       {"rope_parameters", "rotary_pct", "rotary_emb_base", "use_parallel_residual", "hidden_act", "attention_bias", "layer_norm_eps"})
    config.erase(key);
  const ModelConfig defaults = model_of(config);
  CHECK((*defaults.rope_share == 0.25 && defaults.rope_theta == 10000 && defaults.norm_epsilon == 1e-5));
  CHECK((defaults.residual == ResidualKind::kParallel && defaults.activation == Activation::kGelu && !defaults.tied_embeddings));
  const Folder foreign("llama_tied");
  foreign.change_tensors([](RawTensors& tensors) { tensors["model.layers.0.attention.bias"] = tensors.at("model.norm.weight"); });
  CHECK(refusal(foreign.path()).find("model.layers.0.attention.bias: not a tensor of this model") != std::string::npos);
}

TEST_CASE("a head stored beside tied embeddings must equal them") {
  const Folder folder("llama_tied");
  folder.change_tensors([](RawTensors& tensors) { tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight"); });
  CHECK(logits_error(folder.path(), 1) < 1e-4);
  folder.change_tensors([](RawTensors& tensors) { tensors["lm_head.weight"].data.back() ^= 1; });
  CHECK(refusal(folder.path()).find("lm_head.weight differs from the embedding") != std::string::npos);
  const Folder neox("gpt_neox_sequential");
  neox.change_tensors([](RawTensors& tensors) {
    tensors["embed_out.weight"] = tensors.at("gpt_neox.embed_in.weight");
    tensors["embed_out.weight"].data.back() ^= 1;
  });
  CHECK(refusal(neox.path()).find("embed_out.weight differs from the embedding") != std::string::npos);
}

TEST_CASE("links to the files of a Hugging Face model are followed, as in its cache") {
  const TemporaryDirectory directory;
  for (const auto& item : fs::directory_iterator(kGoldenModels / "qwen2")) fs::create_symlink(item.path(), directory.path / item.path().filename());
  CHECK(logits_error(directory.path, 1) < 1e-4);
}

TEST_CASE("a dangling or circular link is reported, not ignored") {
  for (const char* to : {"nowhere", "model.safetensors"}) {
    const Folder folder("llama_tied");
    fs::remove(folder.file());
    fs::create_symlink(to, folder.file());
    CHECK(refusal(folder.path(), to == std::string("nowhere") ? ExitCode::kMissingFile : ExitCode::kIo).find(folder.file().string()) !=
          std::string::npos);
  }
}

TEST_CASE("tensors that do not match config.json are refused, naming the first five") {
  const auto message_of = [](const char* model, const std::function<void(RawTensors&)>& change) {
    const Folder folder(model);
    folder.change_tensors(change);
    return refusal(folder.path());
  };
  const auto has = [](const std::string& message, const std::string& part) {
    INFO(message);
    CHECK(message.find(part) != message.npos);
  };
  has(message_of("llama_tied", [](RawTensors& tensors) { tensors.erase("model.layers.1.mlp.up_proj.weight"); }),
      "\n  model.layers.1.mlp.up_proj.weight: missing");
  has(message_of("gpt2_tied", [](RawTensors& tensors) { tensors.erase("transformer.h.0.attn.c_attn.bias"); }),
      "\n  transformer.h.0.attn.c_attn.bias: missing");
  has(message_of("llama3_untied", [](RawTensors& tensors) { tensors.erase("lm_head.weight"); }), "\n  lm_head.weight: missing");
  has(message_of("llama_tied", [](RawTensors& tensors) { tensors["model.layers.2.mlp.up_proj.weight"] = tensors.at("model.norm.weight"); }),
      "\n  model.layers.2.mlp.up_proj.weight: not a tensor of this model");
  has(message_of("llama_tied", [](RawTensors& tensors) { tensors["model.norm.weight"].dtype = "I32"; }), "\n  model.norm.weight: I32, expected F32");
  has(message_of("llama_tied", [](RawTensors& tensors) { tensors["model.norm.weight"].dtype = "F8_E4M3"; }),
      "tensor \"model.norm.weight\": dtype \"F8_E4M3\" is not supported");

  const Folder folder("llama3_untied");
  folder.change_json([](json& config) { config["intermediate_size"] = 49; });
  const std::string wrong = refusal(folder.path());
  has(wrong, folder.path().string() + ": the tensors do not match config.json:\n");
  has(wrong, "\n  model.layers.0.mlp.gate_proj.weight: [48, 32], expected [49, 32]");
  has(wrong, "\n  model.layers.0.mlp.down_proj.weight: [32, 48], expected [32, 49]");
  has(wrong, "\n  and 1 more");
  CHECK(std::count(wrong.begin(), wrong.end(), '\n') == 6);
}

TEST_CASE("damaged files of a Hugging Face model are refused by name") {
  const auto has = [](const std::string& message, const std::string& part) {
    INFO(message);
    CHECK(message.find(part) != message.npos);
  };
  const char* const kIndex = "model.safetensors.index.json";
  {
    const Folder folder("llama_linear_sharded");
    const std::string shard = read_json(folder.file(kIndex)).at("weight_map").at("model.norm.weight");
    fs::resize_file(folder.file(kIndex), fs::file_size(folder.file(kIndex)) / 2);
    has(refusal(folder.path()), folder.file(kIndex).string() + ": not valid JSON");
    fs::remove(folder.file(kIndex));
    has(refusal(folder.path(), ExitCode::kMissingFile), "has neither model.safetensors nor model.safetensors.index.json");
  }
  {
    const Folder folder("llama_linear_sharded");
    const std::string shard = read_json(folder.file(kIndex)).at("weight_map").at("model.norm.weight");
    folder.change_json([](json& index) { index["weight_map"].erase("model.norm.weight"); }, kIndex);
    has(refusal(folder.path()), "tensor \"model.norm.weight\" of " + shard + " is missing");
    folder.change_json([&](json& index) { index["weight_map"]["model.norm.weight"] = "../" + shard; }, kIndex);
    has(refusal(folder.path()), "is not the name of a file in this directory");
    folder.change_json([&](json& index) { index["weight_map"]["model.norm.weight"] = "model-00009-of-00009.safetensors"; }, kIndex);
    has(refusal(folder.path(), ExitCode::kMissingFile), "model-00009-of-00009.safetensors");
    folder.change_json(
        [&](json& index) {
          index["weight_map"]["model.norm.weight"] = shard;
          index["weight_map"]["model.other.weight"] = shard;
        },
        kIndex);
    has(refusal(folder.path()), "tensor \"model.other.weight\" is not in " + shard);
    folder.change_json([&](json& index) { index["weight_map"] = {"a"}; }, kIndex);
    has(refusal(folder.path()), "\"weight_map\"");
    fs::resize_file(folder.file(shard), fs::file_size(folder.file(shard)) - 1);
    folder.change_json([&](json& index) { index["weight_map"] = {{"model.norm.weight", shard}}; }, kIndex);
    has(refusal(folder.path()), shard);
  }
  {
    const Folder folder("llama_tied");
    std::string text;
    {
      std::ifstream stream(folder.file(), std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(stream), {});
    }
    // Overlapping tensors: the same size, but beginning inside another tensor.
    uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof length);
    json header = json::parse(text.substr(sizeof length, length));
    auto& offsets = header["model.norm.weight"]["data_offsets"];
    offsets = {offsets[0].get<int64_t>() - 4, offsets[1].get<int64_t>() - 4};
    std::string changed = header.dump();
    changed.resize(length, ' ');
    std::ofstream(folder.file(), std::ios::binary) << text.substr(0, sizeof length) << changed << text.substr(sizeof length + length);
    has(refusal(folder.path()), folder.file().string() + ": data overlap at byte");
  }
  {
    const Folder folder("llama_tied");
    fs::remove(folder.file("config.json"));
    has(refusal(folder.path(), ExitCode::kMissingFile), "config.json");
    std::ofstream(folder.file("config.json")) << R"({"model_type": "llama", "model_type": "llama"})";
    has(refusal(folder.path()), "config.json");
  }
  has(refusal(kGoldenModels / "nothing", ExitCode::kMissingFile), "no such directory");
}

TEST_CASE("a configured model that differs from its initial weights: the keys to change are reported as YAML") {
  const ModelConfig weights = HuggingFaceReader(kGoldenModels / "llama3_untied").model();
  CHECK(model_difference(weights, weights).empty());
  ModelConfig other = weights;
  other.dropout = 0.1;
  other.init_std = 0.3;
  other.max_positions = 20;
  CHECK(model_difference(other, weights).empty());
  other.max_positions = 65;
  CHECK(model_difference(other, weights) == "model:\n  max_positions: 64\n");
  other = weights;
  other.rope_scaling = {};
  other.vocab_size = 98;
  CHECK(model_difference(other, weights) ==
        "model:\n  vocab_size: 97\n  rope_scaling:\n    type: llama3\n    factor: 4\n    original_max_positions: 32\n");
  const ModelConfig learned = HuggingFaceReader(kGoldenModels / "gpt2_tied").model();
  other = learned;
  other.max_positions = 32;
  CHECK(model_difference(other, learned) == "model:\n  max_positions: 64\n");
}

}  // namespace trireme::test
