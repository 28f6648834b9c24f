#pragma once
#include <nlohmann/json.hpp>

#include "kernels/core/dtype.h"
#include "trainer/config/config.h"

namespace trireme {

/// The transformers class of `model` (resolved): LlamaForCausalLM, MistralForCausalLM (a window on every layer), Qwen2ForCausalLM (biases of query,
/// key and value), Qwen3ForCausalLM (norms of query and key), the latter two with any window, or GPT2LMHeadModel.
/// Errors: ConfigError naming the combination of keys that no class supports.
const char* hugging_face_class(const ModelConfig& model);

/// config.json of `model` (resolved) with weights in `dtype`. Leaves out settings of training, such as dropout if the class has none.
/// `special_tokens`: those of bos_token_id, eos_token_id and pad_token_id to be written; each a number, a list of numbers, or null.
/// Source: configuration_{llama,mistral,qwen2,qwen3,gpt2}.py of transformers. Errors: those of hugging_face_class.
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, DType dtype, const nlohmann::ordered_json& special_tokens);

/// generation_config.json with `special_tokens`.
nlohmann::ordered_json hugging_face_generation_config(const nlohmann::ordered_json& special_tokens);

}  // namespace trireme
