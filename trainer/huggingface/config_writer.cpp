#include "trainer/huggingface/config_writer.h"

#include "kernels/core/check.h"

namespace trireme {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

[[noreturn]] void refuse(const std::string& combination) {
  throw ConfigError(concat("the model cannot be written for transformers: none of its classes supports ", combination));
}

const char* torch_name(DType dtype) { return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32"; }

json rope_scaling(const RopeScalingConfig& scaling) {
  if (scaling.type == RopeScaling::kNone) return nullptr;
  json result = {{"rope_type", scaling.type.text()}, {"factor", scaling.factor}};
  if (scaling.type == RopeScaling::kLlama3) {
    result["low_freq_factor"] = scaling.low_frequency_factor;
    result["high_freq_factor"] = scaling.high_frequency_factor;
    result["original_max_position_embeddings"] = scaling.original_max_positions;
  }
  return result;
}

ordered_json gpt2_config(const ModelConfig& model) {
  return {{"model_type", "gpt2"},
          {"n_embd", model.hidden_size},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_inner", *model.ffn_size},
          {"n_positions", *model.max_positions},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"embd_pdrop", model.dropout},
          {"resid_pdrop", model.dropout},
          {"attn_pdrop", 0.0},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false}};
}

/// Qwen's window, as a type for each layer. Versions of transformers without "layer_types" use the window from layer "max_window_layers" on, which is
/// correct for them only if the window is on the last layers or on all.
ordered_json qwen_window(const ModelConfig& model) {
  if (!model.window) return {{"use_sliding_window", false}, {"sliding_window", nullptr}, {"max_window_layers", model.layers}};
  std::vector<std::string> types(static_cast<size_t>(model.layers), model.window_layers ? "full_attention" : "sliding_attention");
  for (const int64_t layer : model.window_layers.value_or(std::vector<int64_t>())) types[static_cast<size_t>(layer)] = "sliding_attention";
  return {{"use_sliding_window", true},
          {"sliding_window", *model.window},
          {"max_window_layers", model.window_layers ? model.window_layers->front() : 0},
          {"layer_types", types}};
}

bool is_qwen(const ModelConfig& model) { return model.qkv_bias || model.qk_norm; }

ordered_json llama_config(const ModelConfig& model) {
  ordered_json config = {{"model_type", model.qk_norm    ? "qwen3"
                                        : model.qkv_bias ? "qwen2"
                                        : model.window   ? "mistral"
                                                         : "llama"},
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
                         {"rope_scaling", rope_scaling(model.rope_scaling)},
                         {"attention_dropout", 0.0}};
  // Qwen2 always has its biases and Mistral never has any, so neither has a key for them.
  if (model.qk_norm) config["attention_bias"] = false;
  if (is_qwen(model))
    config.update(qwen_window(model));
  else if (model.window)
    config["sliding_window"] = *model.window;
  else
    config.update(ordered_json{{"attention_bias", false}, {"mlp_bias", false}, {"pretraining_tp", 1}});
  return config;
}

}  // namespace

const char* hugging_face_class(const ModelConfig& model) {
  if (model.architecture != Architecture::kGpt2) {
    if (model.qkv_bias && model.qk_norm) refuse("both model.qkv_bias and model.qk_norm");
    if (model.window_layers && !is_qwen(model)) refuse("model.window_layers without model.qkv_bias or model.qk_norm");
    // Only LlamaConfig requires divisibility.
    if (!is_qwen(model) && !model.window && model.hidden_size % model.heads != 0)
      refuse("a model.hidden_size that is not a multiple of model.heads, without model.qkv_bias, model.qk_norm or model.window");
    return model.qk_norm ? "Qwen3ForCausalLM" : model.qkv_bias ? "Qwen2ForCausalLM" : model.window ? "MistralForCausalLM" : "LlamaForCausalLM";
  }
  if (model.qk_norm) refuse("model.architecture gpt2 with model.qk_norm");
  if (model.window) refuse("model.architecture gpt2 with model.window");
  if (*model.kv_heads != model.heads) refuse("model.architecture gpt2 with fewer model.kv_heads than model.heads");
  if (*model.head_size * model.heads != model.hidden_size) refuse("model.architecture gpt2 with a model.head_size other than hidden_size / heads");
  return "GPT2LMHeadModel";
}

ordered_json hugging_face_config(const ModelConfig& model, DType dtype, const ordered_json& special_tokens) {
  ordered_json config = {{"architectures", ordered_json::array({hugging_face_class(model)})}};
  config.update(model.architecture == Architecture::kGpt2 ? gpt2_config(model) : llama_config(model));
  config.update(
      ordered_json{{"vocab_size", *model.vocab_size}, {"tie_word_embeddings", model.tied_embeddings}, {"initializer_range", model.init_std}});
  config.update(special_tokens);
  config.update(ordered_json{{"torch_dtype", torch_name(dtype)}, {"use_cache", true}});
  return config;
}

ordered_json hugging_face_generation_config(const ordered_json& special_tokens) {
  ordered_json config = {{"_from_model_config", true}};
  config.update(special_tokens);
  return config;
}

}  // namespace trireme
