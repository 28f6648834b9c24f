#include "trainer/huggingface/families/llama_like.h"

namespace trireme::huggingface {

using nlohmann::ordered_json;

ModelConfig read_llama_like(const ConfigKeys& keys, const OptionalSizes& optional) {
  ModelConfig model;
  model.architecture = Architecture::kLlama;
  model.layers = keys.integer("num_hidden_layers");
  model.hidden_size = keys.integer("hidden_size");
  model.heads = keys.integer("num_attention_heads");
  const bool as_heads = optional.kv_heads || keys.is_null("num_key_value_heads");
  model.kv_heads = keys.integer("num_key_value_heads", as_heads ? std::optional(model.heads) : std::nullopt);
  model.head_size = keys.integer("head_dim", optional.head_size ? std::optional(model.hidden_size / model.heads) : std::nullopt);
  model.ffn_size = keys.integer("intermediate_size");
  model.vocab_size = keys.integer("vocab_size");
  model.max_positions = keys.integer("max_position_embeddings");
  model.tied_embeddings = keys.boolean("tie_word_embeddings", false);
  model.norm_epsilon = keys.number("rms_norm_eps", 1e-6);
  keys.require("hidden_act", "silu");
  read_rope(keys, model, {});
  return model;
}

ordered_json write_llama_like(const ModelConfig& model, const char* model_type) {
  return {{"model_type", model_type},
          {"hidden_size", model.hidden_size},
          {"intermediate_size", *model.ffn_size},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", *model.kv_heads},
          {"head_dim", *model.head_size},
          {"hidden_act", "silu"},
          {"max_position_embeddings", *model.max_positions},
          {"rms_norm_eps", model.norm_epsilon},
          {"rope_theta", model.rope_theta},
          {"rope_scaling", rope_scaling_of(model.rope_scaling)},
          {"attention_dropout", 0.0}};
}

const char* llama_like_lacks(const ModelConfig& model) {
  if (model.residual == ResidualKind::kParallel) return "model.architecture llama with model.residual parallel";
  if (model.activation != Activation::kSilu) return "model.architecture llama with a model.activation other than silu";
  if (model.attention_scale) return "model.architecture llama with model.attention_scale";
  if (model.window_rope_theta) return "model.architecture llama with model.window_rope_theta";
  if (*model.rope_share != 1) return "model.architecture llama with model.rope_share below 1";
  return nullptr;
}

void refuse_mlp_bias(const ConfigKeys& keys) { keys.require("mlp_bias", false, "biases in the feed-forward block are not supported"); }

void read_qwen_window(const ConfigKeys& keys, ModelConfig& model) {
  const bool windowed = keys.boolean("use_sliding_window", false);
  std::optional<std::vector<int64_t>> layers = read_layer_types(keys, model.layers);
  if (!windowed) {
    if (layers && !layers->empty()) keys.refuse("layer_types", "\"sliding_attention\" needs a window");
    return;
  }
  if (!layers) {
    layers.emplace();
    for (int64_t layer = keys.integer("max_window_layers", std::nullopt, 0); layer < model.layers; ++layer) layers->push_back(layer);
  }
  if (layers->empty()) return;
  model.window = keys.integer("sliding_window");
  if (static_cast<int64_t>(layers->size()) < model.layers) model.window_layers = std::move(layers);
}

ordered_json write_qwen_window(const ModelConfig& model) {
  if (!model.window) return {{"use_sliding_window", false}, {"sliding_window", nullptr}, {"max_window_layers", model.layers}};
  return {{"use_sliding_window", true},
          {"sliding_window", *model.window},
          {"max_window_layers", model.window_layers ? model.window_layers->front() : 0},
          {"layer_types", layer_types_of(model)}};
}

}  // namespace trireme::huggingface
