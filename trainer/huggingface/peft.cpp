#include "trainer/huggingface/peft.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/core/check.h"
#include "trainer/checkpoint/box_copy.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/huggingface/families/config_keys.h"
#include "trainer/model/spec.h"

namespace fs = std::filesystem;

namespace trireme {

using huggingface::ConfigKeys;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* kModulePrefix = "base_model.model.";
constexpr int64_t kMostConfigBytes = 1 << 20;

std::string layer_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }

/// "model.layers.0.self_attn.q_proj".
std::string module_of(const HuggingFaceTensor& tensor) { return layer_of(tensor.name); }
std::string name_of_a(const std::string& module) { return concat(kModulePrefix, module, ".lora_A.weight"); }
std::string name_of_b(const std::string& module) { return concat(kModulePrefix, module, ".lora_B.weight"); }

/// Tensors of linear layers of blocks.
std::vector<HuggingFaceTensor> linear_tensors(const ModelConfig& model) {
  std::vector<HuggingFaceTensor> tensors = hugging_face_tensors(model);
  const std::vector<std::string> layers = linear_layers(model);
  std::erase_if(tensors, [&](const HuggingFaceTensor& tensor) {
    const std::string& parameter = tensor.parts.front().parameter;
    return std::ranges::none_of(layers, [&](const std::string& layer) { return parameter.ends_with(concat(".", layer, ".weight")); });
  });
  return tensors;
}

/// Names for `chosen` among `all`, as patterns that PEFT and adapter.targets understand: the last part of a name if each of `all` with that part is chosen.
std::vector<std::string> short_names(const std::vector<std::string>& chosen, const std::vector<std::string>& all) {
  const auto last = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  const auto chosen_all = [&](const std::string& part) {
    return std::ranges::all_of(all, [&](const std::string& name) { return last(name) != part || std::ranges::find(chosen, name) != chosen.end(); });
  };
  std::vector<std::string> names;
  for (const std::string& name : chosen) {
    const std::string& shown = chosen_all(last(name)) ? last(name) : name;
    if (std::ranges::find(names, shown) == names.end()) names.push_back(shown);
  }
  return names;
}

/// The base model's folder.
fs::path base_of(const fs::path& folder, const ConfigKeys& keys) {
  const std::string named = keys.text("base_model_name_or_path");
  if (named.empty()) keys.refuse("base_model_name_or_path", "set it to the folder of the base model");
  std::error_code ignored;
  for (const fs::path& candidate : {fs::path(named), folder / named})
    if (fs::exists(candidate / "config.json", ignored)) return candidate;
  throw MissingFileError(concat(keys.where(), ": \"base_model_name_or_path\": \"", named,
                                "\" is no Hugging Face folder on this machine; set it to the folder of the base model"));
}

/// Members that change what an adapter computes, or which layers it has.
constexpr const char* kOtherMethods[] = {"use_dora",
                                         "use_qalora",
                                         "use_bdlora",
                                         "lora_bias",
                                         "arrow_config",
                                         "kasa_config",
                                         "velora_config",
                                         "monteclora_config",
                                         "lora_ga_config",
                                         "layer_replication",
                                         "modules_to_save",
                                         "target_parameters",
                                         "trainable_token_indices",
                                         "alora_invocation_tokens"};

void refuse_other_methods(const ConfigKeys& keys) {
  keys.require("peft_type", "LORA");
  for (const char* key : kOtherMethods)
    if (const json* value = keys.find(key); value != nullptr && *value != false && !value->empty())
      keys.refuse(key, "not supported; merge it into its model first: model.merge_and_unload().save_pretrained(DIR)");
  if (keys.find("bias") != nullptr) keys.require("bias", "none");
  if (const json* how = keys.find("init_lora_weights"); how != nullptr && how->is_string())
    for (const char* changes : {"pissa", "olora", "corda", "loftq", "lora_ga"})
      if (how->get<std::string>().starts_with(changes)) keys.refuse("init_lora_weights", "it has changed the weights of the base model");
}

/// The entry of "alpha_pattern" for a module, or the common value.
double alpha_of(const ConfigKeys& keys, const std::string& module) {
  constexpr const char* kPattern = "alpha_pattern";
  const json* const pattern = keys.find(kPattern);
  std::optional<double> alpha;
  if (pattern != nullptr && !pattern->is_object()) keys.refuse(kPattern, "not an object");
  if (pattern != nullptr) {
    for (const auto& [name, value] : pattern->items()) {
      if (name.find_first_of("^$*+?()[]{}|\\") != name.npos) keys.refuse(kPattern, "regular expressions are not supported");
      if (!value.is_number()) keys.refuse(kPattern, "a value is not a number");
      if (module != name && !module.ends_with("." + name)) continue;
      if (alpha && *alpha != value.get<double>()) keys.refuse(kPattern, concat("two entries for ", module));
      alpha = value.get<double>();
    }
  }
  return alpha.value_or(keys.number("lora_alpha"));
}

}  // namespace

bool is_peft_folder(const fs::path& folder) {
  std::error_code error;
  const auto holds = [&](const char* name) { return fs::exists(fs::symlink_status(folder / name, error)); };
  if (!holds(kAdapterConfig)) return false;
  for (const char* weights : {"model.safetensors", "model.safetensors.index.json"})
    if (holds(weights))
      throw DataError(concat(folder.string(), ": has a model, ", weights, ", and an adapter, ", kAdapterConfig, "; move one of them away"));
  return true;
}

PeftReader::PeftReader(const fs::path& folder) : folder_(folder) {
  const fs::path path = folder / kAdapterConfig;
  config_ = parse_object(read_text(path, kMostConfigBytes), path.string());
  const ConfigKeys keys(config_, path.string());
  refuse_other_methods(keys);
  base_folder_ = base_of(folder, keys);
  base_ = std::make_unique<HuggingFaceReader>(base_folder_);
  model_ = base_->model();
  AdapterConfig& adapter = model_.adapter;
  adapter.rank = keys.integer("r");
  adapter.alpha = keys.number("lora_alpha");
  if (adapter.rank > AdapterConfig::kMostRank) keys.refuse("r", concat("allowed integers from 1 to ", AdapterConfig::kMostRank));
  if (adapter.alpha <= 0) keys.refuse("lora_alpha", "allowed numbers above 0");
  adapter.scale = keys.boolean("use_rslora", false) ? AdapterScale::kAlphaOverRootRank : AdapterScale::kAlphaOverRank;
  file_ = std::make_unique<SafetensorsFile>(folder / kAdapterTensors, Links::kFollow);
  std::vector<std::string> adapted, all, known;
  for (const HuggingFaceTensor& tensor : linear_tensors(model_)) {
    const std::string module = module_of(tensor);
    for (const HuggingFaceTensor::Part& part : tensor.parts) all.push_back(layer_of(part.parameter));
    if (!file_->entries().contains(name_of_a(module))) continue;
    place(tensor);
    for (const HuggingFaceTensor::Part& part : tensor.parts) adapted.push_back(layer_of(part.parameter));
    known.insert(known.end(), {name_of_a(module), name_of_b(module)});
  }
  for (const auto& [name, unused] : file_->entries())
    if (std::ranges::find(known, name) == known.end())
      throw DataError(concat((folder / kAdapterTensors).string(), ": tensor \"", name, "\" is no A or B of a linear layer in a block of ",
                             base_folder_.string()));
  if (adapted.empty()) throw DataError(concat((folder / kAdapterTensors).string(), ": has no adapters"));
  adapter.targets = short_names(adapted, all);
}

const SafetensorsEntry& PeftReader::entry(const std::string& name) const {
  const SafetensorsEntry& entry = file_->entry(name);
  const std::string where = concat((folder_ / kAdapterTensors).string(), ": tensor \"", name, "\"");
  if (!is_floating(entry.dtype)) throw DataError(concat(where, " is ", name_of(entry.dtype), "; allowed F32, BF16, F16 and F64"));
  if (entry.shape.size() != 2) throw DataError(concat(where, " has ", entry.shape.size(), " dimensions instead of 2"));
  return entry;
}

void PeftReader::place(const HuggingFaceTensor& tensor) {
  const ConfigKeys keys(config_, (folder_ / kAdapterConfig).string());
  const AdapterConfig& adapter = model_.adapter;
  const std::string module = module_of(tensor);
  const SafetensorsEntry &a = entry(name_of_a(module)), &b = entry(name_of_b(module));
  const int64_t layers = std::ssize(tensor.parts), rank = a.shape[0];
  const auto refuse = [&](const std::string& what) { throw DataError(concat((folder_ / kAdapterTensors).string(), ": ", module, ": ", what)); };
  if (rank != adapter.rank && rank != layers * adapter.rank)
    refuse(concat("an adapter of rank ", rank, " beside others of rank ", adapter.rank, "; adapters of several ranks are not supported"));
  if (a.shape[1] != tensor.columns() || b.shape != std::vector<int64_t>{tensor.rows(), rank})
    refuse(concat("A is [", a.shape[0], ", ", a.shape[1], "] and B [", b.shape[0], ", ", b.shape[1], "], expected [", rank, ", ", tensor.columns(),
                  "] and [", tensor.rows(), ", ", rank, "]"));
  const double scale = adapter_scale({.rank = rank, .alpha = alpha_of(keys, module), .scale = adapter.scale});
  if (std::abs(scale - adapter_scale(adapter)) > 1e-9 * std::abs(scale))
    refuse(concat("a scale of ", scale, " beside others of ", adapter_scale(adapter), "; adapters of several scales are not supported"));
  const bool stacked = rank != adapter.rank;
  for (int64_t i = 0; i < layers; ++i) {
    const HuggingFaceTensor::Part& part = tensor.parts[static_cast<size_t>(i)];
    const std::string layer = layer_of(part.parameter);
    const int64_t first = stacked ? i * adapter.rank : 0;
    places_[adapter_a(layer)] = {&a, {adapter_a(layer), {adapter.rank, tensor.columns()}, first, adapter.rank, 0}, 0};
    HuggingFaceTensor::Part rows = part;
    rows.parameter = adapter_b(layer);
    rows.shape[1] = adapter.rank;
    places_[rows.parameter] = {&b, rows, first};
  }
  if (stacked) check_columns(b, tensor);
}

/// The columns of a layer are zero in the rows of the others.
void PeftReader::check_columns(const SafetensorsEntry& b, const HuggingFaceTensor& tensor) const {
  std::vector<double> row(static_cast<size_t>(b.shape[1]));
  file_->load(b.begin, b.end);
  const StoredMatrix matrix{file_->data(b).data(), b.dtype, b.shape[1], 1, {0, 0}};
  for (int64_t i = 0; i < std::ssize(tensor.parts); ++i) {
    const HuggingFaceTensor::Part& part = tensor.parts[static_cast<size_t>(i)];
    for (int64_t r = 0; r < part.shape[0]; ++r) {
      const Box box{{part.row(r), 0}, {1, b.shape[1]}};
      copy_box(matrix, box, box, DType::kF64, reinterpret_cast<std::byte*>(row.data()));
      for (int64_t c = 0; c < b.shape[1]; ++c)
        if (c / model_.adapter.rank != i && row[static_cast<size_t>(c)] != 0)
          throw DataError(concat((folder_ / kAdapterTensors).string(), ": ", module_of(tensor), ": an adapter of rank ", b.shape[1], " of ",
                                 tensor.parts.size(), " layers of which no B is alone in its columns; allowed rank ", model_.adapter.rank));
    }
  }
}

std::vector<std::string> PeftReader::names() const {
  std::vector<std::string> names = base_->names();
  for (const auto& [name, unused] : places_) names.push_back(name);
  return names;
}

std::array<int64_t, 2> PeftReader::shape(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? base_->shape(name) : found->second.part.shape;
}

DType PeftReader::dtype(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? base_->dtype(name) : found->second.entry->dtype;
}

void PeftReader::read(const std::string& name, const Box& box, DType dtype, void* out) const {
  const auto found = places_.find(name);
  if (found == places_.end()) return base_->read(name, box, dtype, out);
  const auto& [entry, part, column] = found->second;
  if (!lies_in(box, part.shape) || !is_floating(dtype)) throw DataError(concat(folder_.string(), ": ", name, ": a box outside of it"));
  file_->load(entry->begin, entry->end);
  auto* bytes = static_cast<std::byte*>(out);
  for (int64_t row = box.start[0]; row < box.start[0] + box.extent[0]; ++row) {
    const StoredMatrix matrix{file_->data(*entry).data(), entry->dtype, entry->shape[1], 1, {0, 0}};
    const Box of_row{{part.row(row), column + box.start[1]}, {1, box.extent[1]}};
    copy_box(matrix, of_row, of_row, dtype, bytes);
    bytes += box.extent[1] * size_of(dtype);
  }
}

std::vector<PeftTensor> peft_tensors(const ModelConfig& model) {
  std::vector<PeftTensor> tensors;
  const int64_t rank = model.adapter.rank;
  for (const HuggingFaceTensor& tensor : linear_tensors(model)) {
    std::vector<HuggingFaceTensor::Part> adapted;
    for (const HuggingFaceTensor::Part& part : tensor.parts) {
      if (has_adapter(model, layer_of(part.parameter))) adapted.push_back(part);
    }
    if (adapted.empty()) continue;
    if (adapted.size() < tensor.parts.size())
      throw ConfigError(concat("adapter.targets: ", module_of(tensor), " is one layer in transformers, and only some of its ", tensor.parts.size(),
                               " layers here have an adapter; allowed --format hf, which merges them"));
    const int64_t layers = std::ssize(adapted), all = layers * rank;
    PeftTensor a{name_of_a(module_of(tensor)), {all, tensor.columns()}, {}}, b{name_of_b(module_of(tensor)), {tensor.rows(), all}, {}};
    for (int64_t i = 0; i < layers; ++i) {
      const HuggingFaceTensor::Part& part = adapted[static_cast<size_t>(i)];
      const std::string layer = layer_of(part.parameter);
      a.pieces.push_back({adapter_a(layer), {{0, 0}, {rank, tensor.columns()}}, {i * rank, 0}});
      for (int64_t row = 0; row < part.shape[0]; row += part.run)
        b.pieces.push_back({adapter_b(layer), {{row, 0}, {part.run, rank}}, {part.row(row), i * rank}});
    }
    tensors.push_back(std::move(a));
    tensors.push_back(std::move(b));
  }
  return tensors;
}

ordered_json peft_config(const ModelConfig& model, const std::string& base) {
  const AdapterConfig& adapter = model.adapter;
  const bool root = adapter.scale == AdapterScale::kAlphaOverRootRank;
  const auto number = [](double value) { return value == std::floor(value) ? ordered_json(static_cast<int64_t>(value)) : ordered_json(value); };
  std::vector<std::string> chosen, all;
  bool transposed = false;
  ordered_json ranks = ordered_json::object(), alphas = ordered_json::object();
  const std::vector<PeftTensor> tensors = peft_tensors(model);
  for (const HuggingFaceTensor& tensor : linear_tensors(model)) {
    const std::string module = module_of(tensor);
    all.push_back(module);
    if (std::ranges::find(tensors, name_of_a(module), &PeftTensor::name) == tensors.end()) continue;
    chosen.push_back(module);
    transposed = transposed || tensor.transposed;
    const auto layers = static_cast<double>(tensor.parts.size());
    if (layers == 1) continue;
    ranks[module] = static_cast<int64_t>(layers) * adapter.rank;
    alphas[module] = number(adapter.alpha * (root ? std::sqrt(layers) : layers));
  }
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base.empty() ? ordered_json(nullptr) : ordered_json(base)},
          {"inference_mode", true},
          {"r", adapter.rank},
          {"lora_alpha", number(adapter.alpha)},
          {"use_rslora", root},
          {"use_dora", false},
          {"lora_dropout", 0.0},
          {"bias", "none"},
          {"fan_in_fan_out", transposed},
          {"init_lora_weights", true},
          {"target_modules", short_names(chosen, all)},
          {"rank_pattern", ranks},
          {"alpha_pattern", alphas},
          {"modules_to_save", nullptr}};
}

}  // namespace trireme
