#pragma once
#include <string>

#include "trainer/config/config.h"

namespace trireme {

/// Parses the config.json of a LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM or GPT2LMHeadModel into a resolved model
/// section. Dropout is set to 0, since it belongs to training. Absent and null keys have the defaults of transformers. The sizes of the model are
/// required, except those that follow from others: head_dim (required for Qwen3), n_inner, and num_key_value_heads, which defaults to
/// num_attention_heads if it is null, or absent in a Llama. The window of a Mistral is "sliding_window" (null: none; absent: 4096 if the model
/// has more positions); a Qwen with "use_sliding_window" needs it and its layers, as "layer_types" or "max_window_layers". "attention_bias" gives
/// biases of query, key and value. RoPE is given as "rope_theta" with "rope_scaling", or as
/// "rope_parameters". Unsupported features are refused by key and value: other model types and activations, RoPE types other than default, linear
/// and llama3, biases other than those of query, key and value, quantised weights.
/// Source: configuration_{llama,mistral,qwen2,qwen3,gpt2}.py and modeling_rope_utils.py of transformers. Errors: DataError, prefixed with `where`.
ModelConfig parse_hugging_face_config(const std::string& text, const std::string& where);

}  // namespace trireme
