// MistralForCausalLM: a window on every layer.   Source: configuration_mistral.py and modeling_mistral.py of transformers.
#include "trainer/huggingface/families/llama_like.h"

namespace trireme::huggingface {
namespace {

constexpr int64_t kDefaultWindow = 4096;

/// An absent key is transformers' default, which matters only to a model with more positions.
void read_window(const ConfigKeys& keys, ModelConfig& model) {
  const bool given = keys.find("sliding_window") != nullptr;
  const bool windowed = given || (!keys.is_null("sliding_window") && *model.max_positions > kDefaultWindow);
  const std::optional<std::vector<int64_t>> layers = read_layer_types(keys, model.layers);
  if (layers && layers->size() != (windowed ? static_cast<size_t>(model.layers) : 0))
    keys.refuse("layer_types", windowed ? "this model type has its window on every layer" : "\"sliding_attention\" needs a window");
  if (windowed) model.window = keys.integer("sliding_window", kDefaultWindow);
}

}  // namespace

constinit const Family kMistral{
    .model_type = "mistral",
    .class_name = "MistralForCausalLM",
    .read =
        [](const ConfigKeys& keys) {
          ModelConfig model = read_llama_like(keys, {});  // the class ignores "attention_bias" and "mlp_bias"
          read_window(keys, model);
          return model;
        },
    .has = [](const ModelConfig& model) { return model.architecture == Architecture::kLlama && !model.qkv_bias && !model.qk_norm && model.window; },
    .lacks = [](const ModelConfig& model) -> const char* {
      return model.window_layers ? "model.window_layers without model.qkv_bias or model.qk_norm" : llama_like_lacks(model);
    },
    .write =
        [](const ModelConfig& model) {
          nlohmann::ordered_json config = write_llama_like(model, "mistral");
          config["sliding_window"] = *model.window;
          return config;
        },
    .layers = kLlamaLayers,
    .block_layers = kLlamaBlockLayers,
    .blocks = kLlamaBlocks,
    .buffers = kLlamaBuffers,
};

}  // namespace trireme::huggingface
