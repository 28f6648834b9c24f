// Qwen3ForCausalLM: norms of query and key heads.   Source: configuration_qwen3.py and modeling_qwen3.py of transformers.
#include "trainer/huggingface/families/llama_like.h"

namespace trireme::huggingface {

constinit const Family kQwen3{
    .model_type = "qwen3",
    .class_name = "Qwen3ForCausalLM",
    .read =
        [](const ConfigKeys& keys) {
          // Without num_key_value_heads or head_dim the class has fixed defaults of 32 and 128, whatever the other sizes; here they are required.
          ModelConfig model = read_llama_like(keys, {.head_size = false});
          model.qkv_bias = keys.boolean("attention_bias", false);  // see llama.cpp
          model.qk_norm = true;
          refuse_mlp_bias(keys);
          read_qwen_window(keys, model);
          return model;
        },
    .has = [](const ModelConfig& model) { return model.architecture == Architecture::kLlama && model.qk_norm; },
    .lacks = [](const ModelConfig& model) -> const char* {
      return model.qkv_bias ? "both model.qkv_bias and model.qk_norm" : llama_like_lacks(model);
    },
    .write =
        [](const ModelConfig& model) {
          nlohmann::ordered_json config = write_llama_like(model, "qwen3");
          config["attention_bias"] = false;
          config.update(write_qwen_window(model));
          return config;
        },
    .layers = kLlamaLayers,
    .block_layers = kLlamaBlockLayers,
    .blocks = kLlamaBlocks,
    .buffers = kLlamaBuffers,
};

}  // namespace trireme::huggingface
