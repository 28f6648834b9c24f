#pragma once
// What the classes that descend from LLaMA share.
#include "trainer/huggingface/families/family.h"

namespace trireme::huggingface {

inline constexpr LayerName kLlamaLayers[] = {
    {"embedding", "model.embed_tokens"},
    {"final_norm", "model.norm"},
    {"head", "lm_head"},
};
inline constexpr const char* kLlamaBlocks = "model.layers.";
inline constexpr const char* kLlamaBuffers[] = {".self_attn.rotary_emb.inv_freq"};
inline constexpr LayerName kLlamaBlockLayers[] = {
    {"attention_norm", "input_layernorm"},
    {"attention.query", "self_attn.q_proj"},
    {"attention.key", "self_attn.k_proj"},
    {"attention.value", "self_attn.v_proj"},
    {"attention.query_norm", "self_attn.q_norm"},
    {"attention.key_norm", "self_attn.k_norm"},
    {"attention.output", "self_attn.o_proj"},
    {"mlp_norm", "post_attention_layernorm"},
    {"mlp.gate", "mlp.gate_proj"},
    {"mlp.up", "mlp.up_proj"},
    {"mlp.down", "mlp.down_proj"},
};

/// Whether sizes that follow from others may be absent.
struct OptionalSizes {
  bool kv_heads = false;  ///< num_key_value_heads; null always means num_attention_heads
  bool head_size = true;  ///< head_dim
};
/// Sizes, norms, embeddings and RoPE; without biases, norms of queries and keys, and windows.
ModelConfig read_llama_like(const ConfigKeys& keys, const OptionalSizes& optional);
nlohmann::ordered_json write_llama_like(const ModelConfig& model, const char* model_type);

/// What no class of this kind supports; nullptr: nothing.
const char* llama_like_lacks(const ModelConfig& model);

void refuse_mlp_bias(const ConfigKeys& keys);

/// Qwen's window if "use_sliding_window" is true: on the layers of type "sliding_attention", or from "max_window_layers" on.
void read_qwen_window(const ConfigKeys& keys, ModelConfig& model);
/// The same, with a type for each layer. Versions of transformers without "layer_types" use the window from layer "max_window_layers" on, which is
/// correct for them only if the window is on the last layers or on all.
nlohmann::ordered_json write_qwen_window(const ModelConfig& model);

}  // namespace trireme::huggingface
