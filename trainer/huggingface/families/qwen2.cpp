// Qwen2ForCausalLM: biases of query, key and value, whatever "attention_bias" says.   Source: configuration_qwen2.py and modeling_qwen2.py of
// transformers.
#include "trainer/huggingface/families/llama_like.h"

namespace trireme::huggingface {

constinit const Family kQwen2{
    .model_type = "qwen2",
    .class_name = "Qwen2ForCausalLM",
    .read =
        [](const ConfigKeys& keys) {
          // Without num_key_value_heads the class has a fixed default of 32, whatever the other sizes; here it is required.
          ModelConfig model = read_llama_like(keys, {});
          model.qkv_bias = true;
          refuse_mlp_bias(keys);
          read_qwen_window(keys, model);
          return model;
        },
    .has = [](const ModelConfig& model) { return model.architecture == Architecture::kLlama && model.qkv_bias && !model.qk_norm; },
    .lacks = llama_like_lacks,
    .write =
        [](const ModelConfig& model) {
          nlohmann::ordered_json config = write_llama_like(model, "qwen2");
          config.update(write_qwen_window(model));
          return config;
        },
    .layers = kLlamaLayers,
    .block_layers = kLlamaBlockLayers,
    .blocks = kLlamaBlocks,
    .buffers = kLlamaBuffers,
};

}  // namespace trireme::huggingface
