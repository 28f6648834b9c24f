#pragma once
// The model types of Hugging Face transformers that this program reads and writes. A family is one file of this folder: its row {model_type, class,
// config.json both ways, names of tensors}. What follows from a row is common to all: config.h, names.h.
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "trainer/huggingface/families/config_keys.h"

namespace trireme::huggingface {

enum class LayerStorage : uint8_t {
  kPlain,
  kTransposed,  ///< the weight is stored as [inputs,outputs]; biases never are
  kByHead,      ///< the first head of each layer of this name, then the second head of each, and so on
};

/// The name of a layer in the parameter table and in transformers.
struct LayerName {
  const char* layer;  ///< "final_norm"; of a block without its number: "attention.query"
  const char* name;   ///< "model.norm", "self_attn.q_proj". Consecutive layers of one name are stacked by rows in one tensor
  LayerStorage storage = LayerStorage::kPlain;
};

struct Family {
  const char* model_type;  ///< "llama"
  const char* class_name;  ///< "LlamaForCausalLM"
  /// The section `model` of a config.json. Its values are not checked yet.
  ModelConfig (*read)(const ConfigKeys& keys);
  /// Whether a resolved model is of this family. At most one of them is.
  bool (*has)(const ModelConfig& model);
  /// The keys of a resolved model of this family that the class does not support; nullptr: it supports the model.
  const char* (*lacks)(const ModelConfig& model);
  /// The members of the config.json of a resolved model, but for those that all families have (config.h).
  nlohmann::ordered_json (*write)(const ModelConfig& model);
  std::span<const LayerName> layers, block_layers;
  const char* blocks;  ///< what precedes the number of a block: "model.layers."
  /// The ends of names of constants that old versions of transformers saved with the weights.
  std::span<const char* const> buffers;
};

extern const Family kLlama, kMistral, kQwen2, kQwen3, kGpt2, kGptNeoX, kGemma3;

/// nullptr for a type that is not supported.
const Family* find_family(const std::string& model_type);
/// The family of a resolved model, whether or not its class supports the model.
const Family& family_of(const ModelConfig& model);
/// Why a type is not supported: what its models have and this program lacks, where that is known, and the supported types.
std::string unsupported_model_type(const std::string& model_type);

}  // namespace trireme::huggingface
