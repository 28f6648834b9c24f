#pragma once
#include <string>

#include "trainer/config/config.h"

namespace trireme {

/// config.json of a LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM or GPT2LMHeadModel as a model section, resolved; dropout 0,
/// since it belongs to training. A key that is absent or null has the default of transformers. The sizes of the model must be there, but for those that
/// follow from others: head_dim (not of Qwen3), n_inner, and num_key_value_heads, which is num_attention_heads where it is null, or absent in a Llama.
/// The window must be there too: "sliding_window" of a Mistral (null: none), and of a Qwen with "use_sliding_window" its layers, as "layer_types" or
/// "max_window_layers". RoPE as "rope_theta" with "rope_scaling" or as "rope_parameters".
/// What this program does not compute is refused by key and value: other model types and activations, RoPE other than default, linear and llama3, biases
/// elsewhere than on query, key and value, quantised weights.
/// Source: configuration_{llama,mistral,qwen2,qwen3,gpt2}.py and modeling_rope_utils.py of transformers.   Errors: DataError that starts with `where`.
ModelConfig parse_hugging_face_config(const std::string& text, const std::string& where);

}  // namespace trireme
