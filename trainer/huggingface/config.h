#pragma once
// The config.json of a model folder, in and out.
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/core/dtype.h"
#include "trainer/config/config.h"

namespace trireme {

/// The section `model`, resolved, of a config.json whose model_type has a family (families/). Dropout is 0, since it belongs to training. Absent and
/// null keys have the defaults of transformers, but sizes that do not follow from others are required.
/// Errors: DataError prefixed with `where`, for what is missing, and for every key and value that this program does not compute.
ModelConfig parse_hugging_face_config(const std::string& text, const std::string& where);

/// The transformers class of `model` (resolved), that of its family. Errors: ConfigError naming the combination of keys that no class supports.
const char* hugging_face_class(const ModelConfig& model);

/// config.json of `model` (resolved) with weights in `dtype`. Leaves out settings of training, such as dropout if the class has none.
/// `special_tokens`: those of bos_token_id, eos_token_id and pad_token_id to be written; each a number, a list of numbers, or null.
/// Errors: those of hugging_face_class.
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, DType dtype, const nlohmann::ordered_json& special_tokens);

/// generation_config.json with `special_tokens`.
nlohmann::ordered_json hugging_face_generation_config(const nlohmann::ordered_json& special_tokens);

}  // namespace trireme
