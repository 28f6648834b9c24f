#pragma once
// The members of a config.json, read strictly: what is there and not understood is refused by key and value.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "trainer/config/model_config.h"

namespace trireme::huggingface {

/// The members of one JSON object. null counts as absent. A key without a fallback is required. Errors: DataError, prefixed with `where`.
class ConfigKeys {
 public:
  /// `object` outlives this.
  ConfigKeys(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const nlohmann::json* find(const char* key) const;  ///< nullptr: absent or null
  bool is_null(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }
  int64_t integer(const char* key, std::optional<int64_t> fallback = std::nullopt, int64_t least = 1) const;
  double number(const char* key, std::optional<double> fallback = std::nullopt) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, std::optional<std::string> fallback = std::nullopt) const;
  /// Refuses any value other than `value`, which is also the default.
  void require(const char* key, bool value, const char* reason) const;
  void require(const char* key, const char* value) const;
  [[noreturn]] void refuse(const char* key, const std::string& reason) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

/// What a class calls an activation function.
struct ActivationName {
  Activation activation;
  const char* name;
};
/// The activation of a key, or the first of `names` if the key is absent; others are refused.
Activation read_activation(const ConfigKeys& keys, const char* key, std::span<const ActivationName> names);
const char* activation_name(Activation activation, std::span<const ActivationName> names);

/// Keys of RoPE beside "rope_scaling" that a class calls otherwise.
struct RopeKeys {
  const char* theta = "rope_theta";
  double default_theta = 10000;
  const char* share = nullptr;  ///< of the part of each head that is rotated; nullptr: only whole heads are
  double default_share = 1;
};
/// Sets rope_theta, rope_share and rope_scaling from "rope_parameters" (transformers 5), which contains theta and share, or from "rope_scaling"
/// (transformers 4; older versions with "type") with them beside it. Types: default, linear and llama3. Reads model.max_positions.   Source: modeling_rope_utils.py of transformers.
void read_rope(const ConfigKeys& keys, ModelConfig& model, const RopeKeys& names);
/// The same for a class whose "rope_parameters" has an object for each type of layer. Layers of type "sliding_attention" have a base of their own, also
/// called "rope_local_base_freq", and no scaling: it becomes window_rope_theta.
void read_rope_by_layer_type(const ConfigKeys& keys, ModelConfig& model);
/// "rope_scaling" of a config.json; null without scaling.
nlohmann::json rope_scaling_of(const RopeScalingConfig& scaling);

/// "layer_types" of a resolved model.
nlohmann::json layer_types_of(const ModelConfig& model);
/// The layers of type "sliding_attention"; nullopt if there is no "layer_types".
std::optional<std::vector<int64_t>> read_layer_types(const ConfigKeys& keys, int64_t layers);

}  // namespace trireme::huggingface
