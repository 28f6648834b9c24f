#include "trainer/huggingface/families/config_keys.h"

#include "kernels/core/check.h"
#include "trainer/files/strict_json.h"

namespace trireme::huggingface {

using nlohmann::json;

const json* ConfigKeys::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

int64_t ConfigKeys::integer(const char* key, std::optional<int64_t> fallback, int64_t least) const {
  if (!find(key) && fallback) return *fallback;
  return integer_member(object_, key, where_, least);
}

double ConfigKeys::number(const char* key, std::optional<double> fallback) const {
  const json* value = find(key);
  if (!value && fallback) return *fallback;
  const json& given = member(object_, key, where_);
  if (!given.is_number()) refuse(key, "expected a number");
  return given.get<double>();
}

bool ConfigKeys::boolean(const char* key, bool fallback) const {
  const json* value = find(key);
  if (value && !value->is_boolean()) refuse(key, "expected true or false");
  return value ? value->get<bool>() : fallback;
}

std::string ConfigKeys::text(const char* key, std::optional<std::string> fallback) const {
  return !find(key) && fallback ? *fallback : string_member(object_, key, where_);
}

void ConfigKeys::require(const char* key, bool value, const char* reason) const {
  if (boolean(key, value) != value) refuse(key, concat(reason, "; allowed ", value ? "true" : "false"));
}

void ConfigKeys::require(const char* key, const char* value) const {
  if (text(key, value) != value) refuse(key, concat("not supported; allowed \"", value, "\""));
}

void ConfigKeys::refuse(const char* key, const std::string& reason) const {
  throw DataError(concat(where_, ": \"", key, "\" is ", object_.at(key).dump(), ": ", reason));
}

Activation read_activation(const ConfigKeys& keys, const char* key, std::span<const ActivationName> names) {
  const std::string text = keys.text(key, names.front().name);
  std::string allowed;
  for (const auto& [activation, name] : names) {
    if (text == name) return activation;
    allowed += concat(allowed.empty() ? "" : ", ", '"', name, '"');
  }
  keys.refuse(key, concat("not supported; allowed ", allowed));
}

const char* activation_name(Activation activation, std::span<const ActivationName> names) {
  for (const ActivationName& row : names)
    if (row.activation == activation) return row.name;
  throw InternalError(concat("no name of activation ", name_of(activation)));
}

namespace {

struct Rope {
  double theta = 0, share = 1;
  RopeScalingConfig scaling;
  bool operator==(const Rope&) const = default;
};

/// "partial_rotary_factor"; `fallback` if it is absent.
double share_of(const ConfigKeys& keys, const RopeKeys& names, double fallback) {
  const double share = keys.number("partial_rotary_factor", fallback);
  if (share != 1 && names.share == nullptr) keys.refuse("partial_rotary_factor", "RoPE on a part of each head is not supported here; allowed 1");
  return share;
}

/// The object `key` of `config`.
Rope parse_rope(const ConfigKeys& config, const char* key, const RopeKeys& names, int64_t max_positions) {
  const json* object = config.find(key);
  Rope rope{config.number(names.theta, names.default_theta), names.share ? config.number(names.share, names.default_share) : 1, {}};
  if (!object) return rope;
  const std::string where = concat(config.where(), ": \"", key, "\"");
  if (!object->is_object()) config.refuse(key, "expected an object");
  const ConfigKeys keys(*object, where);
  rope.theta = keys.number("rope_theta", rope.theta);
  const char* const type_key = keys.find("rope_type") ? "rope_type" : "type";
  const std::string type = keys.text(type_key, "default");
  if (type != "default" && type != "linear" && type != "llama3") keys.refuse(type_key, "not supported; allowed \"default\", \"linear\", \"llama3\"");
  require_known_keys(*object,
                     {"rope_theta", "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
                      "partial_rotary_factor"},
                     where);
  rope.share = share_of(keys, names, rope.share);
  if (type == "default") return rope;
  rope.scaling.type = OneOf<RopeScaling>(type);
  rope.scaling.factor = keys.number("factor");
  if (type == "linear") return rope;
  rope.scaling.low_frequency_factor = keys.number("low_freq_factor");
  rope.scaling.high_frequency_factor = keys.number("high_freq_factor");
  rope.scaling.original_max_positions = keys.integer("original_max_position_embeddings", max_positions);
  return rope;
}

}  // namespace

void read_rope(const ConfigKeys& keys, ModelConfig& model, const RopeKeys& names) {
  const auto refuse_unread = [&](const char* general, const char* of_class, double value) {
    if (keys.number(general, value) != value)
      keys.refuse(general, concat("this model type does not read it", of_class ? concat(", but \"", of_class, "\"") : "", "; allowed ", value));
  };
  if (names.theta != std::string("rope_theta")) refuse_unread("rope_theta", names.theta, keys.number(names.theta, names.default_theta));
  refuse_unread("partial_rotary_factor", names.share, names.share ? keys.number(names.share, names.default_share) : 1);
  const Rope by_parameters = parse_rope(keys, "rope_parameters", names, *model.max_positions),
             by_scaling = parse_rope(keys, "rope_scaling", names, *model.max_positions);
  if (keys.find("rope_scaling") && keys.find("rope_parameters") && by_parameters != by_scaling)
    keys.refuse("rope_scaling", "\"rope_parameters\" differs from it; keep one of them");
  const Rope& rope = keys.find("rope_scaling") ? by_scaling : by_parameters;
  model.rope_theta = rope.theta;
  model.rope_share = rope.share;
  model.rope_scaling = rope.scaling;
}

void read_rope_by_layer_type(const ConfigKeys& keys, ModelConfig& model) {
  share_of(keys, {}, 1);
  const int64_t positions = *model.max_positions;
  Rope full = parse_rope(keys, "rope_scaling", RopeKeys{.default_theta = 1000000}, positions);
  Rope sliding{.theta = keys.number("rope_local_base_freq", 10000), .share = 1, .scaling = {}};
  if (const json* parameters = keys.find("rope_parameters")) {
    if (keys.find("rope_scaling")) keys.refuse("rope_scaling", "\"rope_parameters\" has the scaling too; keep one of them");
    if (!parameters->is_object()) keys.refuse("rope_parameters", "expected an object");
    const ConfigKeys by_type(*parameters, concat(keys.where(), ": \"rope_parameters\""));
    require_known_keys(*parameters, {"full_attention", "sliding_attention"}, by_type.where());
    full = parse_rope(by_type, "full_attention", RopeKeys{.default_theta = full.theta}, positions);
    sliding = parse_rope(by_type, "sliding_attention", RopeKeys{.default_theta = sliding.theta}, positions);
    if (sliding.scaling.type != RopeScaling::kNone) by_type.refuse("sliding_attention", "scaling is not supported here; allowed \"default\"");
  }
  model.rope_theta = full.theta;
  model.rope_scaling = full.scaling;
  if (model.window) model.window_rope_theta = sliding.theta;
}

json rope_scaling_of(const RopeScalingConfig& scaling) {
  if (scaling.type == RopeScaling::kNone) return nullptr;
  json result = {{"rope_type", scaling.type.text()}, {"factor", scaling.factor}};
  if (scaling.type == RopeScaling::kLlama3) {
    result["low_freq_factor"] = scaling.low_frequency_factor;
    result["high_freq_factor"] = scaling.high_frequency_factor;
    result["original_max_position_embeddings"] = scaling.original_max_positions;
  }
  return result;
}

json layer_types_of(const ModelConfig& model) {
  std::vector<std::string> types(static_cast<size_t>(model.layers), !model.window || model.window_layers ? "full_attention" : "sliding_attention");
  for (const int64_t layer : model.window_layers.value_or(std::vector<int64_t>())) types[static_cast<size_t>(layer)] = "sliding_attention";
  return types;
}

std::optional<std::vector<int64_t>> read_layer_types(const ConfigKeys& keys, int64_t layers) {
  const json* types = keys.find("layer_types");
  if (!types) return std::nullopt;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers) keys.refuse("layer_types", concat("expected a list of length ", layers));
  std::vector<int64_t> sliding;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const json& type = (*types)[static_cast<size_t>(layer)];
    if (type != "full_attention" && type != "sliding_attention")
      keys.refuse("layer_types", "a layer's type is not supported; allowed \"full_attention\", \"sliding_attention\"");
    if (type == "sliding_attention") sliding.push_back(layer);
  }
  return sliding;
}

}  // namespace trireme::huggingface
