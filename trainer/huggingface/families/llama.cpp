// LlamaForCausalLM.   Source: configuration_llama.py and modeling_llama.py of transformers.
#include "trainer/huggingface/families/llama_like.h"

namespace trireme::huggingface {

using nlohmann::ordered_json;

constinit const Family kLlama{
    .model_type = "llama",
    .class_name = "LlamaForCausalLM",
    .read =
        [](const ConfigKeys& keys) {
          ModelConfig model = read_llama_like(keys, {.kv_heads = true});
          // It adds a bias to the output projection too, which the reader refuses by its tensor; weights without that tensor, whose bias would be
          // zero, are read.
          model.qkv_bias = keys.boolean("attention_bias", false);
          refuse_mlp_bias(keys);
          if (keys.boolean("use_sliding_window", false)) keys.refuse("use_sliding_window", "this model type has no sliding window; allowed false");
          if (const auto layers = read_layer_types(keys, model.layers); layers && !layers->empty())
            keys.refuse("layer_types", "\"sliding_attention\" needs a window");
          return model;
        },
    .has = [](const ModelConfig& model) { return model.architecture == Architecture::kLlama && !model.qkv_bias && !model.qk_norm && !model.window; },
    .lacks = [](const ModelConfig& model) -> const char* {
      if (const char* lacks = llama_like_lacks(model)) return lacks;
      if (model.hidden_size % model.heads == 0) return nullptr;
      return "a model.hidden_size that is not a multiple of model.heads, without model.qkv_bias, model.qk_norm or model.window";
    },
    .write =
        [](const ModelConfig& model) {
          ordered_json config = write_llama_like(model, "llama");
          config.update(ordered_json{{"attention_bias", false}, {"mlp_bias", false}, {"pretraining_tp", 1}});
          return config;
        },
    .layers = kLlamaLayers,
    .block_layers = kLlamaBlockLayers,
    .blocks = kLlamaBlocks,
    .buffers = kLlamaBuffers,
};

}  // namespace trireme::huggingface
