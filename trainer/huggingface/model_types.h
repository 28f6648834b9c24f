#pragma once
#include <string>

namespace trireme {

/// The supported "model_type" values of config.json, and their classes.
struct ModelType {
  const char* name;
  const char* architecture;
};
inline constexpr ModelType kModelTypes[] = {{"llama", "LlamaForCausalLM"},
                                            {"mistral", "MistralForCausalLM"},
                                            {"qwen2", "Qwen2ForCausalLM"},
                                            {"qwen3", "Qwen3ForCausalLM"},
                                            {"gpt2", "GPT2LMHeadModel"}};

/// nullptr for a type that is not supported.
const ModelType* find_model_type(const std::string& name);

/// Why `name` is not supported: the parts of its models that this program does not have, where they are known, and the supported types.
std::string unsupported_model_type(const std::string& name);

}  // namespace trireme
