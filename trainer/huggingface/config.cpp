#include "trainer/huggingface/config.h"

#include <algorithm>
#include <optional>

#include "kernels/core/check.h"
#include "trainer/files/strict_json.h"
#include "trainer/huggingface/model_types.h"
#include "trainer/layout/resolve.h"

namespace trireme {
namespace {

using nlohmann::json;

/// The members of one JSON object. null counts as absent. A key without a fallback is required.
class Keys {
 public:
  Keys(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool is_null(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }
  int64_t integer(const char* key, std::optional<int64_t> fallback = std::nullopt, int64_t least = 1) const {
    if (!find(key) && fallback) return *fallback;
    return integer_member(object_, key, where_, least);
  }
  double number(const char* key, std::optional<double> fallback = std::nullopt) const {
    const json* value = find(key);
    if (!value && fallback) return *fallback;
    const json& given = member(object_, key, where_);
    if (!given.is_number()) refuse(key, "expected a number");
    return given.get<double>();
  }
  bool boolean(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value && !value->is_boolean()) refuse(key, "expected true or false");
    return value ? value->get<bool>() : fallback;
  }
  std::string text(const char* key, std::optional<std::string> fallback = std::nullopt) const {
    return !find(key) && fallback ? *fallback : string_member(object_, key, where_);
  }
  /// Refuses any value other than `value`, which is also the default.
  void require(const char* key, bool value, const char* reason) const {
    if (boolean(key, value) != value) refuse(key, concat(reason, "; allowed ", value ? "true" : "false"));
  }
  void require(const char* key, const char* value) const {
    if (text(key, value) != value) refuse(key, concat("not supported; allowed \"", value, "\""));
  }
  [[noreturn]] void refuse(const char* key, const std::string& reason) const {
    throw DataError(concat(where_, ": \"", key, "\" is ", object_.at(key).dump(), ": ", reason));
  }
  const std::string& where() const { return where_; }

 private:
  const json& object_;
  std::string where_;
};

constexpr int64_t kMistralWindow = 4096;

/// "rope_parameters" (transformers 5), which contains rope_theta, or "rope_scaling" (transformers 4; older versions with "type"), with rope_theta
/// beside it.
struct Rope {
  double theta = 0;
  RopeScalingConfig scaling;
  bool operator==(const Rope&) const = default;
};

Rope parse_rope(const Keys& config, const char* key) {
  const json* object = config.find(key);
  Rope rope{config.number("rope_theta", 10000), {}};
  if (!object) return rope;
  const std::string where = concat(config.where(), ": \"", key, "\"");
  if (!object->is_object()) config.refuse(key, "expected an object");
  const Keys keys(*object, where);
  rope.theta = keys.number("rope_theta", rope.theta);
  const char* const type_key = keys.find("rope_type") ? "rope_type" : "type";
  const std::string type = keys.text(type_key, "default");
  if (type != "default" && type != "linear" && type != "llama3") keys.refuse(type_key, "not supported; allowed \"default\", \"linear\", \"llama3\"");
  require_known_keys(*object,
                     {"rope_theta", "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
                      "partial_rotary_factor"},
                     where);
  if (keys.number("partial_rotary_factor", 1) != 1) keys.refuse("partial_rotary_factor", "RoPE on a part of each head is not supported; allowed 1");
  if (type == "default") return rope;
  rope.scaling.type = OneOf<RopeScaling>(type);
  rope.scaling.factor = keys.number("factor");
  if (type == "linear") return rope;
  rope.scaling.low_frequency_factor = keys.number("low_freq_factor");
  rope.scaling.high_frequency_factor = keys.number("high_freq_factor");
  rope.scaling.original_max_positions = keys.integer("original_max_position_embeddings", config.integer("max_position_embeddings"));
  return rope;
}

Rope read_rope(const Keys& keys) {
  const Rope by_parameters = parse_rope(keys, "rope_parameters"), by_scaling = parse_rope(keys, "rope_scaling");
  if (!keys.find("rope_scaling")) return by_parameters;
  if (keys.find("rope_parameters") && by_parameters != by_scaling)
    keys.refuse("rope_scaling", "\"rope_parameters\" differs from it; keep one of them");
  return by_scaling;
}

/// The layers of type "sliding_attention"; nullopt if there is no "layer_types".
std::optional<std::vector<int64_t>> read_layer_types(const Keys& keys, int64_t layers) {
  const json* types = keys.find("layer_types");
  if (!types) return std::nullopt;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers) keys.refuse("layer_types", concat("expected a list of length ", layers));
  std::vector<int64_t> sliding;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const json& type = (*types)[static_cast<size_t>(layer)];
    if (type != "full_attention" && type != "sliding_attention")
      keys.refuse("layer_types", "a layer's type is not supported; allowed \"full_attention\", \"sliding_attention\"");
    if (type == "sliding_attention") sliding.push_back(layer);
  }
  return sliding;
}

/// Mistral has its window on every layer; an absent key is transformers' default of 4096, which no sequence exceeds in a model of at most 4096
/// positions. Qwen has one if "use_sliding_window" is true: on the layers of type "sliding_attention", or from
/// "max_window_layers" on.
void read_window(const Keys& keys, const std::string& type, ModelConfig& model) {
  const bool mistral = type == "mistral";
  const bool given = keys.find("sliding_window") != nullptr;
  const bool by_default = !given && !keys.is_null("sliding_window") && *model.max_positions > kMistralWindow;
  const bool windowed = mistral ? given || by_default : keys.boolean("use_sliding_window", false);
  if (windowed && type == "llama") keys.refuse("use_sliding_window", "this model type has no sliding window; allowed false");
  std::optional<std::vector<int64_t>> layers = read_layer_types(keys, model.layers);
  if (layers && (!windowed || mistral) && layers->size() != (windowed ? static_cast<size_t>(model.layers) : 0))
    keys.refuse("layer_types", windowed ? "this model type has its window on every layer" : "\"sliding_attention\" needs a window");
  if (!windowed) return;
  if (!layers && !mistral) {
    layers.emplace();
    for (int64_t layer = keys.integer("max_window_layers", std::nullopt, 0); layer < model.layers; ++layer) layers->push_back(layer);
  }
  if (layers && layers->empty()) return;
  model.window = keys.integer("sliding_window", mistral ? std::optional(kMistralWindow) : std::nullopt);
  if (layers && static_cast<int64_t>(layers->size()) < model.layers) model.window_layers = std::move(layers);
}

ModelConfig llama_config(const Keys& keys, const std::string& type) {
  ModelConfig model;
  model.architecture = Architecture::kLlama;
  model.layers = keys.integer("num_hidden_layers");
  model.hidden_size = keys.integer("hidden_size");
  model.heads = keys.integer("num_attention_heads");
  // If it is absent, Qwen2 and Qwen3 use a fixed default of 32, whatever the other sizes; here it is required instead.
  const bool as_heads = type == "llama" || keys.is_null("num_key_value_heads");
  model.kv_heads = keys.integer("num_key_value_heads", as_heads ? std::optional(model.heads) : std::nullopt);
  // Likewise, Qwen3 has a fixed default of 128.
  model.head_size = keys.integer("head_dim", type == "qwen3" ? std::nullopt : std::optional(model.hidden_size / model.heads));
  model.ffn_size = keys.integer("intermediate_size");
  model.vocab_size = keys.integer("vocab_size");
  model.max_positions = keys.integer("max_position_embeddings");
  model.tied_embeddings = keys.boolean("tie_word_embeddings", false);
  model.norm_epsilon = keys.number("rms_norm_eps", 1e-6);
  // Qwen2 always has biases of query, key and value. Qwen2 and Mistral ignore "attention_bias". In the other classes it adds one to the output
  // projection too, which the reader refuses by its tensor; weights without that tensor, whose bias would be zero, are read.
  model.qkv_bias = type == "qwen2" || (type != "mistral" && keys.boolean("attention_bias", false));
  model.qk_norm = type == "qwen3";
  const Rope rope = read_rope(keys);
  model.rope_theta = rope.theta;
  model.rope_scaling = rope.scaling;
  keys.require("hidden_act", "silu");
  if (type != "mistral") keys.require("mlp_bias", false, "biases in the feed-forward block are not supported");
  if (keys.number("partial_rotary_factor", 1) != 1) keys.refuse("partial_rotary_factor", "RoPE on a part of each head is not supported; allowed 1");
  read_window(keys, type, model);
  return model;
}

ModelConfig gpt2_config(const Keys& keys) {
  ModelConfig model;
  model.architecture = Architecture::kGpt2;
  model.layers = keys.integer("n_layer");
  model.hidden_size = keys.integer("n_embd");
  model.heads = keys.integer("n_head");
  model.ffn_size = keys.integer("n_inner", 4 * std::min<int64_t>(model.hidden_size, 1 << 30));
  model.vocab_size = keys.integer("vocab_size");
  model.max_positions = keys.integer("n_positions");
  model.tied_embeddings = keys.boolean("tie_word_embeddings", true);
  model.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  model.qkv_bias = true;
  keys.require("activation_function", "gelu_new");
  keys.require("scale_attn_weights", true, "unscaled attention is not supported");
  keys.require("scale_attn_by_inverse_layer_idx", false, "attention scaled by layer is not supported");
  keys.require("add_cross_attention", false, "cross-attention is not supported");
  return model;
}

void check_class(const Keys& keys, const char* name) {
  const json* classes = keys.find("architectures");
  if (classes && *classes != json::array({name})) keys.refuse("architectures", concat("not supported; allowed [\"", name, "\"]"));
}

/// Checks the model by the rules of Trireme's configuration, whose messages name Trireme's keys.
ModelConfig checked(const ModelConfig& model, const std::string& where) {
  Config config;
  config.model = model;
  config.training.steps = 1;
  config.training.sequence_length = 1;
  config.training.global_batch_size = 1;
  config.data.tokenizer = "tokenizer.json";  // not "bytes", which would constrain vocab_size
  config.data.train = {"none"};
  try {
    return resolve(config).model;
  } catch (const ConfigError& error) {
    throw DataError(concat(where, ": describes an invalid or unsupported model:\n", error.what()));
  }
}

}  // namespace

ModelConfig parse_hugging_face_config(const std::string& text, const std::string& where) {
  const json object = parse_object(text, where);
  const Keys keys(object, where);
  const std::string type = keys.text("model_type");
  const ModelType* const known = find_model_type(type);
  if (!known) keys.refuse("model_type", unsupported_model_type(type));
  check_class(keys, known->architecture);
  if (keys.find("quantization_config")) keys.refuse("quantization_config", "quantised weights are not supported");
  return checked(type == "gpt2" ? gpt2_config(keys) : llama_config(keys, type), where);
}

}  // namespace trireme
