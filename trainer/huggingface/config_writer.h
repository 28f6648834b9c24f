#pragma once
#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "kernels/core/dtype.h"
#include "trainer/config/config.h"

namespace trireme {

/// Token ids as config.json has them: a number, a list of them, or null.
struct SpecialTokenIds {
  nlohmann::json begin = nullptr, end = nullptr, padding = nullptr;
};

/// LlamaForCausalLM, Qwen2ForCausalLM with biases of query, key and value, Qwen3ForCausalLM with their norms, or GPT2LMHeadModel. Errors: ConfigError naming the
/// keys of a `model` (resolved) that no class has together.
const char* hugging_face_class(const ModelConfig& model);

/// config.json of `model` (resolved) with weights in `dtype`. What training alone knows, such as dropout where the class has none, is not in it.
/// Source: configuration_llama.py, configuration_qwen2.py, configuration_qwen3.py, configuration_gpt2.py of transformers. Errors: as above.
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, DType dtype, const SpecialTokenIds& tokens);

/// generation_config.json.
nlohmann::ordered_json hugging_face_generation_config(const SpecialTokenIds& tokens);

}  // namespace trireme
