#include "trainer/huggingface/config.h"

#include "kernels/core/check.h"
#include "trainer/files/strict_json.h"
#include "trainer/huggingface/families/family.h"
#include "trainer/layout/resolve.h"

namespace trireme {

using huggingface::ConfigKeys;
using huggingface::Family;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// Checks the model by the rules of Trireme's configuration, whose messages name Trireme's keys.
ModelConfig checked(const ModelConfig& model, const std::string& where) {
  Config config;
  config.model = model;
  config.training.steps = 1;
  config.training.sequence_length = 1;
  config.training.global_batch_size = 1;
  config.data.tokenizer = "tokenizer.json";  // not "bytes", which would constrain vocab_size
  config.data.train = {"none"};
  try {
    return resolve(config).model;
  } catch (const ConfigError& error) {
    throw DataError(concat(where, ": describes an invalid or unsupported model:\n", error.what()));
  }
}

const char* torch_name(DType dtype) { return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32"; }

}  // namespace

ModelConfig parse_hugging_face_config(const std::string& text, const std::string& where) {
  const json object = parse_object(text, where);
  const ConfigKeys keys(object, where);
  const std::string type = keys.text("model_type");
  const Family* const family = huggingface::find_family(type);
  if (!family) keys.refuse("model_type", huggingface::unsupported_model_type(type));
  const json* classes = keys.find("architectures");
  if (classes && *classes != json::array({family->class_name}))
    keys.refuse("architectures", concat("not supported; allowed [\"", family->class_name, "\"]"));
  if (keys.find("quantization_config")) keys.refuse("quantization_config", "quantised weights are not supported");
  return checked(family->read(keys), where);
}

const char* hugging_face_class(const ModelConfig& model) {
  const Family& family = huggingface::family_of(model);
  if (const char* lacks = family.lacks(model))
    throw ConfigError(concat("the model cannot be written for transformers: none of its classes supports ", lacks));
  return family.class_name;
}

ordered_json hugging_face_config(const ModelConfig& model, DType dtype, const ordered_json& special_tokens) {
  ordered_json config = {{"architectures", ordered_json::array({hugging_face_class(model)})}};
  config.update(huggingface::family_of(model).write(model));
  config.update(
      ordered_json{{"vocab_size", *model.vocab_size}, {"tie_word_embeddings", model.tied_embeddings}, {"initializer_range", model.init_std}});
  config.update(special_tokens);
  config.update(ordered_json{{"torch_dtype", torch_name(dtype)}, {"use_cache", true}});
  return config;
}

ordered_json hugging_face_generation_config(const ordered_json& special_tokens) {
  ordered_json config = {{"_from_model_config", true}};
  config.update(special_tokens);
  return config;
}

}  // namespace trireme
