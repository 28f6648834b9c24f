// Export to the format of Hugging Face transformers: the bits of every weight, the other files, and errors.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <set>

#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/run_files.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/commands/checkpoint_model.h"
#include "trainer/config/write.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/new_directory.h"
#include "trainer/huggingface/config.h"
#include "trainer/huggingface/writer.h"
#include "trainer/layout/resolve.h"
#include "trainer/machine/environment.h"
#include "trainer/model/declare.h"
#include "trainer/tokenizer/tokenizer.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

Config base(Architecture architecture) {
  Config config;
  config.model.architecture = architecture;
  config.model.layers = 2;
  config.model.hidden_size = 12;
  config.model.heads = 4;
  config.model.ffn_size = 20;
  config.model.vocab_size = 300;
  config.training.steps = 1;
  config.training.sequence_length = 16;
  config.data.train = {"train"};
  return config;
}

/// A model of each class, with sizes as distinct as possible.
std::vector<std::pair<std::string, ModelConfig>> models() {
  Config gpt2 = base(Architecture::kGpt2), gpt2_untied = base(Architecture::kGpt2), llama = base(Architecture::kLlama),
         qwen2 = base(Architecture::kLlama), qwen3 = base(Architecture::kLlama);
  Config neox = base(Architecture::kGptNeoX), neox_sequential = base(Architecture::kGptNeoX);
  neox.model.hidden_size = 32;  // of the 8 elements of a head 2 are rotated
  neox.model.tied_embeddings = false;
  neox_sequential.model.residual = ResidualKind::kSequential;
  neox_sequential.model.activation = Activation::kGeluTanh;
  neox_sequential.model.hidden_size = 16;
  neox_sequential.model.rope_share = 0.5;
  neox_sequential.model.rope_theta = 500;
  Config mistral = base(Architecture::kLlama), qwen2_window = base(Architecture::kLlama);
  mistral.model.head_size = 6;
  mistral.model.window = 7;
  qwen2_window.model.head_size = 4;
  qwen2_window.model.qkv_bias = true;
  qwen2_window.model.window = 7;
  qwen2_window.model.window_layers = {0};
  gpt2_untied.model.tied_embeddings = false;
  llama.model.kv_heads = 2;
  llama.model.head_size = 6;
  llama.model.tied_embeddings = false;
  llama.model.rope_scaling = {RopeScaling::kLlama3, 8, 1, 4, 12};
  qwen2.model.kv_heads = 1;
  qwen2.model.head_size = 4;
  qwen2.model.qkv_bias = true;
  qwen2.model.rope_scaling.type = RopeScaling::kLinear;
  qwen2.model.rope_scaling.factor = 2.5;
  qwen3.model.kv_heads = 2;
  qwen3.model.head_size = 8;
  qwen3.model.qk_norm = true;
  qwen3.model.rope_theta = 1e6;
  qwen3.model.norm_epsilon = 1e-6;
  Config gemma3 = base(Architecture::kGemma3), gemma3_plain = base(Architecture::kGemma3);
  gemma3.model.hidden_size = 20;
  gemma3.model.kv_heads = 2;
  gemma3.model.head_size = 6;
  gemma3.model.attention_scale = 1 / std::sqrt(168.0);
  gemma3.model.window = 7;
  gemma3.model.window_layers = {0};
  gemma3.model.rope_theta = 1e6;
  gemma3.model.window_rope_theta = 500;
  gemma3.model.rope_scaling.type = RopeScaling::kLinear;
  gemma3.model.rope_scaling.factor = 8;
  gemma3_plain.model.hidden_size = 16;
  gemma3_plain.model.tied_embeddings = false;
  gemma3_plain.model.activation = Activation::kSilu;
  return {{"GPT2LMHeadModel", resolve(gpt2).model},
          {"GPT2LMHeadModel", resolve(gpt2_untied).model},
          {"LlamaForCausalLM", resolve(llama).model},
          {"Qwen2ForCausalLM", resolve(qwen2).model},
          {"Qwen3ForCausalLM", resolve(qwen3).model},
          {"MistralForCausalLM", resolve(mistral).model},
          {"Qwen2ForCausalLM", resolve(qwen2_window).model},
          {"GPTNeoXForCausalLM", resolve(neox).model},
          {"GPTNeoXForCausalLM", resolve(neox_sequential).model},
          {"Gemma3ForCausalLM", resolve(gemma3).model},
          {"Gemma3ForCausalLM", resolve(gemma3_plain).model}};
}

float value_at(const std::string& name, int64_t index) {
  return static_cast<float>(random_normal(random_key(5, name), static_cast<uint64_t>(index)));
}

std::vector<float> values_of(const std::string& name, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(value_at(name, i));
  return values;
}

/// A checkpoint of `model` with one box per parameter, filled by value_at().
fs::path save_model(const fs::path& directory, const ModelConfig& model, const std::string& changed = "", float to = 0,
                    const std::string& precision = "fp32", const std::string& attention = "auto") {
  Config config = base(model.architecture.value());
  config.training.precision = OneOf<Arithmetic>(precision);
  config.kernels.attention = OneOf<AttentionEngine>(attention);
  config.model = model;
  CheckpointDescription about;
  about.config = to_yaml(resolve(config));
  about.model = describe_model(model);
  about.layout = json::object();
  std::vector<std::vector<float>> memory;
  std::vector<StateTensor> tensors;
  for (const ParamSpec& spec : whole_model(model)) {
    memory.push_back(values_of(spec.name, spec.shape[0] * spec.shape[1]));
    if (spec.name == changed) memory.back().back() = to;
    tensors.push_back({"weight/" + spec.name, DType::kF32, spec.shape, spec.dims, {{0, 0}, spec.shape}, memory.back().data()});
  }
  Checkpointer checkpointer({directory / "checkpoints", "s1", 0, 1, 0, false});
  checkpointer.save(about, tensors);
  const auto report = checkpointer.finish();
  REQUIRE(report.has_value());
  INFO(report->error.value_or(""));
  REQUIRE(!report->error);
  return directory / "checkpoints/step-00000000";
}

HuggingFaceSummary export_to(const fs::path& checkpoint, const fs::path& folder, const HuggingFaceOptions& options = {}) {
  WeightSource source(checkpoint);
  fs::create_directory(folder);
  int64_t heard = 0;
  const HuggingFaceSummary summary = write_hugging_face(source, folder, options, [&](int64_t bytes) { heard += bytes; });
  CHECK(heard == summary.bytes);
  CHECK(summary.bytes == hugging_face_bytes(source.model(), options.dtype));
  return summary;
}

json json_at(const fs::path& path) { return json::parse(read_text(path)); }

template <class T>
std::vector<T> tensor_in(const fs::path& file, const std::string& name, const std::vector<int64_t>& shape) {
  const SafetensorsFile opened(file);
  const SafetensorsEntry& entry = opened.entry(name);
  CHECK(entry.dtype == dtype_of<T>());
  CHECK(entry.shape == shape);
  std::vector<T> values(opened.data(entry).size() / sizeof(T));
  std::memcpy(values.data(), opened.data(entry).data(), opened.data(entry).size());
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Every parameter of a source, in fp32.
std::map<std::string, std::vector<float>> weights_of(const fs::path& path) {
  WeightSource source(path);
  std::map<std::string, std::vector<float>> weights;
  for (const std::string& name : source.names()) {
    const std::array<int64_t, 2> shape = source.shape(name);
    weights[name].resize(static_cast<size_t>(shape[0] * shape[1]));
    source.read(name, {{0, 0}, shape}, DType::kF32, weights[name].data());
  }
  return weights;
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(directory)) names.insert(item.path().filename().string());
  return names;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("export: every class round-trips bit for bit", "[export]") {
  for (const auto& [name, model] : models()) {
    INFO(name << (model.tied_embeddings ? "" : ", untied"));
    const TemporaryDirectory directory;
    const fs::path checkpoint = save_model(directory.path, model), folder = directory.path / "out";
    export_to(checkpoint, folder);
    CHECK(names_in(folder) ==
          std::set<std::string>{"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"});
    const json config = json_at(folder / "config.json");
    CHECK(config["architectures"] == json::array({name}));
    CHECK(config["torch_dtype"] == "float32");
    CHECK(config["eos_token_id"].is_null());
    CHECK(SafetensorsFile(folder / "model.safetensors").metadata() == SafetensorsMetadata{{"format", "pt"}});

    CHECK(WeightSource(folder).model() == model);
    const auto expected = weights_of(checkpoint), found = weights_of(folder);
    REQUIRE(found.size() == whole_model(model).size());
    for (const auto& [parameter, values] : expected) {
      INFO(parameter);
      REQUIRE(found.contains(parameter));
      CHECK(same_bits(found.at(parameter), values));
      CHECK(same_bits(values, values_of(parameter, static_cast<int64_t>(values.size()))));
    }
  }
}

TEST_CASE("export: a share of RoPE whose product rounds below an integer is written so that the class rotates as many elements", "[export]") {
  Config config = base(Architecture::kGptNeoX);
  config.model.hidden_size = 400;
  config.model.rope_share = 0.58;  // 100 x 0.58 is below 58
  const ModelConfig model = resolve(config).model;
  const nlohmann::ordered_json written = hugging_face_config(model, DType::kF32, nlohmann::ordered_json::object());
  CHECK(static_cast<int64_t>(100 * written["rotary_pct"].get<double>()) == 58);
  CHECK(rotated_elements(parse_hugging_face_config(written.dump(), "config.json")) == 58);
  nlohmann::ordered_json below = written;
  below["rotary_pct"] = 0.58;
  CHECK_THAT(error_of([&] { parse_hugging_face_config(below.dump(), "config.json"); }), Contains("which the class rounds down"));
}

TEST_CASE("export: matrices larger than a tile are converted completely", "[export]") {
  Config config = base(Architecture::kGpt2);
  config.model.hidden_size = 72;
  config.model.ffn_size = 200;
  const ModelConfig model = resolve(config).model;
  const TemporaryDirectory directory;
  const fs::path folder = directory.path / "out";
  export_to(save_model(directory.path, model), folder, {.dtype = DType::kBF16});
  for (const auto& [parameter, values] : weights_of(folder)) {
    INFO(parameter);
    int64_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != static_cast<float>(bfloat16(value_at(parameter, static_cast<int64_t>(i))));
    CHECK(wrong == 0);
  }
}

// Expected values are written by hand: reading back through the same table of names could not detect an error in it.
TEST_CASE("export: tensor names and layouts match transformers", "[export]") {
  const TemporaryDirectory directory;
  const auto all = models();
  const ModelConfig &gpt2 = all[0].second, &llama = all[2].second, &qwen3 = all[4].second;
  export_to(save_model(directory.path / "gpt2", gpt2), directory.path / "out-gpt2");
  const fs::path gpt2_file = directory.path / "out-gpt2/model.safetensors";
  // Conv1D: [inputs, outputs], query, key and value side by side.
  const auto fused = tensor_in<float>(gpt2_file, "transformer.h.1.attn.c_attn.weight", {12, 36});
  const auto bias = tensor_in<float>(gpt2_file, "transformer.h.1.attn.c_attn.bias", {36});
  const char* const parts[] = {"query", "key", "value"};
  for (int64_t part = 0; part < 3; ++part)
    for (int64_t row = 0; row < 12; ++row) {
      const std::string name = std::string("blocks.1.attention.") + parts[part];
      REQUIRE(bias[static_cast<size_t>(part * 12 + row)] == value_at(name + ".bias", row));
      for (int64_t column = 0; column < 12; ++column)
        REQUIRE(fused[static_cast<size_t>(column * 36 + part * 12 + row)] == value_at(name + ".weight", row * 12 + column));
    }
  const auto up = tensor_in<float>(gpt2_file, "transformer.h.0.mlp.c_fc.weight", {12, 20});
  CHECK(up[20 * 3 + 7] == value_at("blocks.0.mlp.up.weight", 7 * 12 + 3));
  CHECK(same_bits(tensor_in<float>(gpt2_file, "transformer.wpe.weight", {16, 12}), values_of("positions.weight", 16 * 12)));
  CHECK(!SafetensorsFile(gpt2_file).entries().contains("lm_head.weight"));

  export_to(save_model(directory.path / "llama", llama), directory.path / "out-llama");
  const fs::path llama_file = directory.path / "out-llama/model.safetensors";
  CHECK(same_bits(tensor_in<float>(llama_file, "model.layers.1.self_attn.k_proj.weight", {12, 12}), values_of("blocks.1.attention.key.weight", 144)));
  CHECK(same_bits(tensor_in<float>(llama_file, "model.layers.0.mlp.gate_proj.weight", {20, 12}), values_of("blocks.0.mlp.gate.weight", 240)));
  CHECK(same_bits(tensor_in<float>(llama_file, "model.layers.0.post_attention_layernorm.weight", {12}), values_of("blocks.0.mlp_norm.weight", 12)));
  CHECK(same_bits(tensor_in<float>(llama_file, "lm_head.weight", {300, 12}), values_of("head.weight", 3600)));
  CHECK(
      json_at(directory.path / "out-llama/config.json")["rope_scaling"] ==
      json{{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 12}});

  export_to(save_model(directory.path / "qwen3", qwen3), directory.path / "out-qwen3");
  CHECK(same_bits(tensor_in<float>(directory.path / "out-qwen3/model.safetensors", "model.layers.1.self_attn.q_norm.weight", {8}),
                  values_of("blocks.1.attention.query_norm.weight", 8)));
}

TEST_CASE("export: shards respect the size limit and the index maps each tensor to its shard", "[export]") {
  const TemporaryDirectory directory;
  const ModelConfig model = models()[2].second;
  const fs::path checkpoint = save_model(directory.path, model), folder = directory.path / "out";
  const HuggingFaceSummary summary = export_to(checkpoint, folder, {DType::kF32, 4000});
  const json index = json_at(folder / "model.safetensors.index.json");
  CHECK(index["metadata"]["total_size"] == summary.bytes);
  CHECK(static_cast<int64_t>(index["weight_map"].size()) == summary.tensors);
  REQUIRE(summary.files > 3);
  int64_t tensors = 0, small = 0;
  for (int64_t i = 1; i <= summary.files; ++i) {
    const std::string name = concat("model-0000", i, "-of-0000", summary.files, ".safetensors");
    const SafetensorsFile file(folder / name);
    int64_t bytes = 0;
    for (const auto& [tensor, entry] : file.entries()) {
      CHECK(index["weight_map"][tensor] == name);
      bytes += entry.end - entry.begin;
      ++tensors;
    }
    CHECK((bytes <= 4000 || file.entries().size() == 1));
    small += bytes <= 4000 && file.entries().size() > 1;
  }
  CHECK(small > 0);
  CHECK(tensors == summary.tensors);
  CHECK(weights_of(folder) == weights_of(checkpoint));
}

TEST_CASE("export: in bf16 and fp16 weights are rounded to nearest, and overflow is refused", "[export]") {
  const TemporaryDirectory directory;
  const ModelConfig model = models()[0].second;
  const fs::path checkpoint = save_model(directory.path, model);
  export_to(checkpoint, directory.path / "bf16", {DType::kBF16});
  export_to(checkpoint, directory.path / "fp16", {DType::kF16});
  CHECK(json_at(directory.path / "bf16/config.json")["torch_dtype"] == "bfloat16");
  CHECK(json_at(directory.path / "fp16/config.json")["torch_dtype"] == "float16");
  const auto up_bf16 = tensor_in<bfloat16>(directory.path / "bf16/model.safetensors", "transformer.h.0.mlp.c_fc.weight", {12, 20});
  const auto up_fp16 = tensor_in<float16>(directory.path / "fp16/model.safetensors", "transformer.h.0.mlp.c_fc.weight", {12, 20});
  for (int64_t row = 0; row < 20; ++row)
    for (int64_t column = 0; column < 12; ++column) {
      const float exact = value_at("blocks.0.mlp.up.weight", row * 12 + column);
      const auto at = static_cast<size_t>(column * 20 + row);
      REQUIRE(up_bf16[at].bits == bfloat16(exact).bits);
      REQUIRE(up_fp16[at].bits == float16(exact).bits);
    }

  const fs::path large = save_model(directory.path / "large", model, "blocks.1.mlp.down.weight", 65520);
  CHECK_THAT(error_of([&] { export_to(large, directory.path / "large-fp16", {DType::kF16}); }),
             Contains("\"transformer.h.1.mlp.c_proj.weight\": 65520 overflows in F16"));
  export_to(large, directory.path / "large-bf16", {DType::kBF16});
  const fs::path broken = save_model(directory.path / "broken", model, "blocks.1.mlp.down.weight", NAN);
  CHECK_THAT(error_of([&] { export_to(broken, directory.path / "broken-fp16", {DType::kF16}); }),
             Contains("contains non-finite values: blocks.1.mlp.down.weight (1 value)"));
}

TEST_CASE("export: a model that no class of transformers supports is refused, naming its keys", "[export]") {
  Config both = base(Architecture::kLlama);
  both.model.head_size = 4;
  both.model.qkv_bias = both.model.qk_norm = true;
  CHECK_THAT(error_of([&] { hugging_face_class(resolve(both).model); }), Contains("model.qkv_bias and model.qk_norm"));
  ModelConfig gpt2 = models()[0].second;
  gpt2.kv_heads = 2;
  CHECK_THAT(error_of([&] { hugging_face_class(gpt2); }), Contains("gpt2 with fewer model.kv_heads"));
  gpt2 = models()[0].second;
  gpt2.head_size = 4;
  CHECK_THAT(error_of([&] { hugging_face_class(gpt2); }), Contains("gpt2 with a model.head_size"));
  // LlamaConfig requires divisibility, the configurations of Qwen do not.
  Config uneven = base(Architecture::kLlama);
  uneven.model.heads = 5;
  uneven.model.head_size = 4;
  CHECK_THAT(error_of([&] { hugging_face_class(resolve(uneven).model); }), Contains("hidden_size that is not a multiple of model.heads"));
  uneven.model.window = 7;
  CHECK(hugging_face_class(resolve(uneven).model) == std::string("MistralForCausalLM"));
  uneven.model.window.reset();
  uneven.model.qk_norm = true;
  CHECK(hugging_face_class(resolve(uneven).model) == std::string("Qwen3ForCausalLM"));
  gpt2 = models()[0].second;
  gpt2.qk_norm = true;
  CHECK_THAT(error_of([&] { hugging_face_class(gpt2); }), Contains("gpt2 with model.qk_norm"));
  gpt2 = models()[0].second;
  gpt2.window = 7;
  CHECK_THAT(error_of([&] { hugging_face_class(gpt2); }), Contains("gpt2 with model.window"));
  gpt2 = models()[0].second;
  gpt2.residual = ResidualKind::kParallel;
  CHECK_THAT(error_of([&] { hugging_face_class(gpt2); }), Contains("gpt2 with model.residual parallel"));
  for (const bool qkv_bias : {false, true}) {
    Config llama = base(Architecture::kLlama);
    llama.model.head_size = 4;
    llama.model.qkv_bias = qkv_bias;
    llama.model.residual = ResidualKind::kParallel;
    CHECK_THAT(error_of([&] { hugging_face_class(resolve(llama).model); }), Contains("llama with model.residual parallel"));
    llama.model.residual = ResidualKind::kSequential;
    llama.model.rope_share = 0.5;
    CHECK_THAT(error_of([&] { hugging_face_class(resolve(llama).model); }), Contains("llama with model.rope_share below 1"));
  }
  Config neox = base(Architecture::kGptNeoX);
  neox.model.head_size = 8;
  CHECK_THAT(error_of([&] { hugging_face_class(resolve(neox).model); }), Contains("gpt_neox with a model.head_size"));
  neox.model.kv_heads = 2;
  CHECK_THAT(error_of([&] { hugging_face_class(resolve(neox).model); }), Contains("gpt_neox with fewer model.kv_heads"));
  neox.model.window = 7;
  CHECK_THAT(error_of([&] { hugging_face_class(resolve(neox).model); }), Contains("gpt_neox with model.window"));
  Config gemma = base(Architecture::kGemma3);
  gemma.model.head_size = 6;
  const auto gemma_lacks = [&](const auto& change, const char* what) {
    Config other = gemma;
    change(other.model);
    CHECK_THAT(error_of([&] { hugging_face_class(resolve(other).model); }), Contains(what));
  };
  gemma_lacks([](ModelConfig& m) { m.residual = ResidualKind::kParallel; }, "gemma3 with model.residual parallel");
  gemma_lacks([](ModelConfig& m) { m.rope_share = 1.0 / 3; }, "gemma3 with model.rope_share below 1");
  gemma_lacks([](ModelConfig& m) { m.qkv_bias = true; }, "gemma3 with model.qkv_bias");
  gemma_lacks([](ModelConfig& m) { m.attention_scale = 0.3; }, "gemma3 with a model.attention_scale other than one over the root of an integer");
  gemma_lacks([](ModelConfig& m) { m.attention_scale = 2; }, "gemma3 with a model.attention_scale");
  gemma_lacks(
      [](ModelConfig& m) {
        m.window = 7;
        m.rope_scaling.type = RopeScaling::kLinear;
      },
      "without model.window_rope_theta");
  for (const Architecture architecture : {Architecture::kLlama, Architecture::kGpt2, Architecture::kGptNeoX}) {
    Config other = base(architecture);
    other.model.hidden_size = 16;
    other.model.rope_share.reset();
    if (architecture == Architecture::kGptNeoX) other.model.rope_share = 0.5;
    other.model.attention_scale = 0.3;
    CHECK_THAT(error_of([&] { hugging_face_class(resolve(other).model); }), Contains("with model.attention_scale"));
  }
  Config geglu = base(Architecture::kLlama);
  geglu.model.head_size = 6;
  geglu.model.activation = Activation::kGeluTanh;
  CHECK_THAT(error_of([&] { hugging_face_class(resolve(geglu).model); }), Contains("llama with a model.activation other than silu"));
  geglu.model.activation = Activation::kSilu;
  geglu.model.window = 7;
  geglu.model.window_rope_theta = 500;
  CHECK_THAT(error_of([&] { hugging_face_class(resolve(geglu).model); }), Contains("llama with model.window_rope_theta"));
  Config mixed = base(Architecture::kLlama);
  mixed.model.head_size = 4;
  mixed.model.window = 7;
  mixed.model.window_layers = {1};
  CHECK_THAT(error_of([&] { hugging_face_class(resolve(mixed).model); }), Contains("model.window_layers without model.qkv_bias or model.qk_norm"));
}

TEST_CASE("export: the bytes tokenizer becomes a tokenizer.json with the same ids", "[export]") {
  const TemporaryDirectory directory;
  const fs::path folder = directory.path / "out";
  export_to(save_model(directory.path, models()[0].second), folder);
  Tokenizer tokenizer = Tokenizer::open((folder / "tokenizer.json").string());
  REQUIRE(tokenizer.vocab_size() == 256);
  std::string text = "  Ships'll row 3 banks\n\n of oars\t";
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  for (int byte = 255; byte >= 0; --byte) text.push_back(static_cast<char>(byte));
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  CHECK(tokens == Tokenizer::open("bytes").encode(text));
  CHECK(tokenizer.decode(tokens) == text);
}

TEST_CASE("export: a Hugging Face folder round-trips unchanged", "[export]") {
  int folders = 0;
  for (const auto& item : fs::directory_iterator(in_checkout("tests/golden/huggingface"))) {
    if (!fs::exists(item.path() / "config.json")) continue;
    INFO(item.path().string());
    ++folders;
    const TemporaryDirectory directory;
    const fs::path folder = directory.path / "out";
    std::map<std::string, std::pair<DType, std::vector<std::byte>>> given;
    for (const auto& file : fs::directory_iterator(item.path())) {
      if (file.path().extension() != ".safetensors") continue;
      const SafetensorsFile opened(file.path());
      for (const auto& [name, entry] : opened.entries()) {
        const auto data = opened.data(entry);
        given[name] = {entry.dtype, {data.begin(), data.end()}};
      }
    }
    REQUIRE(!given.empty());
    const DType dtype = given.begin()->second.first;
    export_to(item.path(), folder, {dtype});
    CHECK(WeightSource(folder).model() == WeightSource(item.path()).model());
    const SafetensorsFile written(folder / "model.safetensors");
    for (const auto& [name, entry] : written.entries()) {
      INFO(name);
      // Base models, as opposed to the causal-LM classes, are saved without the prefix.
      const auto original = given.contains(name) ? given.find(name) : given.find(name.substr(name.find('.') + 1));
      REQUIRE(original != given.end());
      const auto data = written.data(entry);
      CHECK(original->second == std::pair(entry.dtype, std::vector<std::byte>(data.begin(), data.end())));
    }
    const json before = json_at(item.path() / "config.json"), after = json_at(folder / "config.json");
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      CHECK(before.contains(key) == after.contains(key));
      CHECK(before.value(key, json()) == after.value(key, json()));
    }
    CHECK(read_text(folder / "generation_config.json") == read_text(item.path() / "generation_config.json"));
  }
  CHECK(folders > 5);
}

TEST_CASE("export: special tokens and a generation_config.json that a folder lacks are not added", "[export]") {
  const TemporaryDirectory directory;
  const fs::path given = directory.path / "given", folder = directory.path / "out";
  fs::copy(in_checkout("tests/golden/huggingface/llama_bf16"), given);
  json config = json_at(given / "config.json");
  config.erase("bos_token_id");
  config["eos_token_id"] = {1, 2};
  config["pad_token_id"] = nullptr;
  write_durably(given / "config.json", config.dump());
  fs::remove(given / "generation_config.json");
  export_to(given, folder);
  config = json_at(folder / "config.json");
  CHECK_FALSE(config.contains("bos_token_id"));
  CHECK(config.at("eos_token_id") == json{1, 2});
  CHECK(config.at("pad_token_id").is_null());
  CHECK_FALSE(fs::exists(folder / "generation_config.json"));
}

TEST_CASE("a checkpoint's model runs on a device that supports its precision", "[export]") {
  const ModelConfig model = models()[0].second;
  for (const auto& [precision, device] :
       std::map<std::string, DeviceType>{{"fp32", DeviceType::kAuto}, {"fp16", DeviceType::kAuto}, {"fp64", DeviceType::kCpu}}) {
    INFO(precision);
    const TemporaryDirectory directory;
    CHECK(CheckpointModel(save_model(directory.path, model, "", 0, precision).string()).config().run.device == device);
  }
}

TEST_CASE("a checkpoint's model needs no library of the GPU that trained it", "[export]") {
  ModelConfig model = models()[0].second;
  model.head_size = 8;
  const TemporaryDirectory directory;
  const fs::path checkpoint = save_model(directory.path, model, "", 0, "bf16", "cudnn");
  CHECK(WeightSource(checkpoint).config().kernels.attention == AttentionEngine::kCudnn);
  CHECK(CheckpointModel(checkpoint.string()).config().kernels.attention == AttentionEngine::kAuto);
}

TEST_CASE("new directory: complete or absent, with one writer at a time", "[export]") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "a/out", partial = directory.path / "a/out.partial";
  {
    NewDirectory dropped(path, "--output");
    CHECK(dropped.partial() == partial);
    write_durably(partial / "x", "1");
    CHECK(!fs::exists(path));
    CHECK_THAT(error_of([&] { NewDirectory second(path, "--output"); }), Contains("--output=") && Contains("is being written by another process"));
    CHECK(fs::exists(partial / "x"));
  }
  CHECK(names_in(directory.path / "a").empty());
  // A directory of the user is not touched.
  fs::create_directories(partial / "left");
  CHECK_THAT(error_of([&] { NewDirectory taken(path, "--output"); }),
             Contains("out.partial, which exists and was not created by Trireme; remove it"));
  CHECK(names_in(partial) == std::set<std::string>{"left"});
  fs::remove_all(partial);
  const std::set<std::string> marker{".trireme-partial"};
  {
    NewDirectory killed(path, "--output");
    CHECK(names_in(partial) == marker);
    fs::copy(partial, directory.path / "a/copy", fs::copy_options::recursive);
  }
  fs::rename(directory.path / "a/copy", partial);
  fs::create_directories(partial / "left");  // left by a killed process
  {
    NewDirectory made(path / "", "--output");
    CHECK(names_in(partial) == marker);
    write_durably(partial / "x", "2");
    made.commit();
  }
  CHECK(read_text(path / "x") == "2");
  CHECK(names_in(path) == std::set<std::string>{"x"});
  CHECK(names_in(directory.path / "a") == std::set<std::string>{"out"});
  CHECK_THAT(error_of([&] { NewDirectory again(path, "--output"); }), Contains("exists; remove it or name another directory"));
  {
    NewDirectory late(directory.path / "a/late", "--output");
    fs::create_directory(directory.path / "a/late");  // created by another process in the meantime
    CHECK_THAT(error_of([&] { late.commit(); }), Contains("a/late"));
  }
  CHECK(names_in(directory.path / "a") == std::set<std::string>{"late", "out"});
  fs::create_symlink("nowhere", directory.path / "a/link");
  CHECK_THAT(error_of([&] { NewDirectory link(directory.path / "a/link", "--output"); }), Contains("exists"));
}

}  // namespace trireme::test
