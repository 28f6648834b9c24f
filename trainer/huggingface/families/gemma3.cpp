// Gemma3ForCausalLM: the text models of Gemma 3.   Source: configuration_gemma3.py and modeling_gemma3.py of transformers.
#include <cmath>

#include "trainer/huggingface/families/llama_like.h"

namespace trireme::huggingface {
namespace {

constexpr LayerName kGemma3BlockLayers[] = {
    {"attention_norm", "input_layernorm"},
    {"attention.query", "self_attn.q_proj"},
    {"attention.key", "self_attn.k_proj"},
    {"attention.value", "self_attn.v_proj"},
    {"attention.query_norm", "self_attn.q_norm"},
    {"attention.key_norm", "self_attn.k_norm"},
    {"attention.output", "self_attn.o_proj"},
    {"attention_post_norm", "post_attention_layernorm"},
    {"mlp_norm", "pre_feedforward_layernorm"},
    {"mlp.gate", "mlp.gate_proj"},
    {"mlp.up", "mlp.up_proj"},
    {"mlp.down", "mlp.down_proj"},
    {"mlp_post_norm", "post_feedforward_layernorm"},
};

constexpr ActivationName kGates[] = {{Activation::kGeluTanh, "gelu_pytorch_tanh"}, {Activation::kGelu, "gelu"}, {Activation::kSilu, "silu"}};

/// Sets window and window_layers. Without "layer_types", every sixth layer has none, or every n-th. The class ignores "_sliding_window_pattern", which it
/// writes.
void read_pattern(const ConfigKeys& keys, ModelConfig& model) {
  std::optional<std::vector<int64_t>> layers = read_layer_types(keys, model.layers);
  if (!layers) {
    layers.emplace();
    const int64_t period = keys.integer("sliding_window_pattern", 6);
    for (int64_t layer = 0; layer < model.layers; ++layer)
      if ((layer + 1) % period != 0) layers->push_back(layer);
  }
  if (layers->empty()) return;
  if (keys.is_null("sliding_window")) keys.refuse("sliding_window", "layers of type \"sliding_attention\" need a window");
  model.window = keys.integer("sliding_window", 4096);
  if (static_cast<int64_t>(layers->size()) < model.layers) model.window_layers = std::move(layers);
}

ModelConfig read_gemma3(const ConfigKeys& keys) {
  ModelConfig model;
  model.architecture = Architecture::kGemma3;
  model.layers = keys.integer("num_hidden_layers");
  model.hidden_size = keys.integer("hidden_size");
  model.heads = keys.integer("num_attention_heads");
  // Without these two the class has fixed defaults of 4 and 256, whatever the other sizes; here they are required.
  model.kv_heads = keys.integer("num_key_value_heads");
  model.head_size = keys.integer("head_dim");
  model.ffn_size = keys.integer("intermediate_size");
  model.vocab_size = keys.integer("vocab_size");
  model.max_positions = keys.integer("max_position_embeddings");
  model.tied_embeddings = keys.boolean("tie_word_embeddings", true);
  model.norm_epsilon = keys.number("rms_norm_eps", 1e-6);
  model.qk_norm = true;
  model.activation = read_activation(keys, "hidden_activation", kGates);
  if (const int64_t scalar = keys.integer("query_pre_attn_scalar", 256); scalar != *model.head_size)
    model.attention_scale = 1 / std::sqrt(static_cast<double>(scalar));
  keys.require("attention_bias", false, "biases are not supported");
  keys.require("use_bidirectional_attention", false, "only causal attention is supported");
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (keys.find(cap)) keys.refuse(cap, "soft caps are not supported; allowed null");
  read_pattern(keys, model);
  read_rope_by_layer_type(keys, model);
  return model;
}

/// "query_pre_attn_scalar", an integer: the scale is one over its root.
int64_t pre_attention_scalar(const ModelConfig& model) {
  return model.attention_scale ? std::llround(1 / (*model.attention_scale * *model.attention_scale)) : *model.head_size;
}

const char* gemma3_lacks(const ModelConfig& model) {
  if (model.residual == ResidualKind::kParallel) return "model.architecture gemma3 with model.residual parallel";
  if (*model.rope_share != 1) return "model.architecture gemma3 with model.rope_share below 1";
  if (model.qkv_bias) return "model.architecture gemma3 with model.qkv_bias";
  if (model.hidden_size % model.heads != 0) return "model.architecture gemma3 with a model.hidden_size that model.heads does not divide";
  if (model.window && !model.window_rope_theta && model.rope_scaling.type != RopeScaling::kNone)
    return "model.architecture gemma3 with model.window and model.rope_scaling, but without model.window_rope_theta";
  const int64_t scalar = pre_attention_scalar(model);
  const double scale = scalar < 1 ? 0 : 1 / std::sqrt(static_cast<double>(scalar));
  const bool as_head_size = scalar == *model.head_size;  // is read as no scale, which differs by a rounding
  if (model.attention_scale && (as_head_size || static_cast<float>(scale) != static_cast<float>(*model.attention_scale)))
    return "model.architecture gemma3 with a model.attention_scale other than one over the root of an integer";
  return nullptr;
}

nlohmann::ordered_json write_gemma3(const ModelConfig& model) {
  nlohmann::ordered_json config = write_llama_like(model, "gemma3_text");
  config.erase("hidden_act");
  config["hidden_activation"] = activation_name(model.activation.value(), kGates);
  config["query_pre_attn_scalar"] = pre_attention_scalar(model);
  config["sliding_window"] = model.window.value_or(4096);
  config["layer_types"] = layer_types_of(model);
  config["rope_local_base_freq"] = model.window_rope_theta.value_or(model.rope_theta);
  config["attention_bias"] = false;
  config["attn_logit_softcapping"] = nullptr;
  config["final_logit_softcapping"] = nullptr;
  return config;
}

}  // namespace

constinit const Family kGemma3{
    .model_type = "gemma3_text",
    .class_name = "Gemma3ForCausalLM",
    .read = read_gemma3,
    .has = [](const ModelConfig& model) { return model.architecture == Architecture::kGemma3; },
    .lacks = gemma3_lacks,
    .write = write_gemma3,
    .layers = kLlamaLayers,
    .block_layers = kGemma3BlockLayers,
    .blocks = kLlamaBlocks,
    .buffers = kLlamaBuffers,
};

}  // namespace trireme::huggingface
