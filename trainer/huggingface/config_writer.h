#pragma once
#include <nlohmann/json.hpp>

#include "kernels/core/dtype.h"
#include "trainer/config/config.h"

namespace trireme {

/// LlamaForCausalLM, MistralForCausalLM with a window on every layer, Qwen2ForCausalLM with biases of query, key and value, Qwen3ForCausalLM with their norms
/// (both with any window), or GPT2LMHeadModel. Errors: ConfigError naming the keys of a `model` (resolved) that no class has together.
const char* hugging_face_class(const ModelConfig& model);

/// config.json of `model` (resolved) with weights in `dtype`. What training alone knows, such as dropout where the class has none, is not in it.
/// `special_tokens`: of bos_token_id, eos_token_id and pad_token_id those that are to be written, each a number, a list of them, or null.
/// Source: configuration_llama.py, configuration_mistral.py, configuration_qwen2.py, configuration_qwen3.py, configuration_gpt2.py of transformers. Errors: as above.
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, DType dtype, const nlohmann::ordered_json& special_tokens);

/// generation_config.json with these.
nlohmann::ordered_json hugging_face_generation_config(const nlohmann::ordered_json& special_tokens);

}  // namespace trireme
