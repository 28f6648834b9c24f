#include "trainer/huggingface/weight_source.h"

#include <set>

#include "kernels/core/optimizer_traits.h"
#include "trainer/checkpoint/box_copy.h"
#include "trainer/config/fields.h"
#include "trainer/config/load.h"
#include "trainer/config/write.h"
#include "trainer/files/foreign_files.h"
#include "trainer/layout/resolve.h"
#include "trainer/model/declare.h"
#include "trainer/tokenizer/tokenizer.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using Reader = std::variant<CheckpointReader, HuggingFaceReader>;

constexpr const char* kWeights = "weight/";

/// The name of a parameter's weights in a checkpoint. A frozen one has no average, because it is its own.
std::string stored_name(const ModelConfig& model, WeightKind kind, const std::string& parameter) {
  return concat(kind == WeightKind::kTrained || is_frozen(model, parameter) ? kWeights : concat(kAverageName, "/"), parameter);
}

Reader open(const fs::path& path) {
  std::error_code error;
  const auto holds = [&](const char* name) { return fs::exists(fs::symlink_status(path / name, error)); };
  if (!holds(kManifestName) && holds("config.json")) return Reader(std::in_place_type<HuggingFaceReader>, path);
  const fs::path checkpoint = checkpoint_at(path);
  if (checkpoint == path && !holds(kManifestName)) {
    if (const std::string what = foreign_folder(path); !what.empty()) throw DataError(concat(path.string(), ": ", what));
    throw DataError(concat("checkpoint ", path.string(), " is incomplete: ", kManifestName,
                           " is missing; nor is it a Hugging Face folder: config.json is missing"));
  }
  return Reader(std::in_place_type<CheckpointReader>, checkpoint);
}

/// A Hugging Face folder has no training settings; fills in the required keys.
Config config_of(const ModelConfig& model, const std::string& tokenizer) {
  Config config;
  config.model = model;
  config.training.steps = 1;
  config.training.sequence_length = *model.max_positions;
  config.training.global_batch_size = 1;
  config.data.tokenizer = tokenizer.empty() ? "none" : tokenizer;
  config.data.train = {"none"};
  return resolve(config);
}

/// The tokenizer's file as chosen by Tokenizer::open; empty if there is none or it is not supported, with the reason in `problem`.
std::string tokenizer_in(const fs::path& folder, std::string& problem) {
  try {
    return Tokenizer::open((folder / "").string()).file();  // the trailing slash marks a folder, which may be named "bytes"
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo || error.code() == ExitCode::kInternal) throw;
    problem = error.what();
    return "";
  }
}

[[noreturn]] void refuse_average(const std::string& path) {
  throw DataError(concat("--weights ema: ", path, " has no moving average of the weights; allowed a checkpoint of a run with training.ema.decay"));
}

/// Checks, before any allocation, that exactly the model's tensors are stored, in its shapes. CheckpointReader has already checked the file sizes.
void check_tensors(const CheckpointReader& checkpoint, const ModelConfig& model, WeightKind kind) {
  const std::string where = (checkpoint.directory() / kManifestName).string();
  std::set<std::string> known;
  for (const ParamSpec& spec : whole_model(model)) {
    const std::string name = stored_name(model, kind, spec.name);
    const StoredTensor& stored = checkpoint.tensor(name);
    const auto text = [](const std::array<int64_t, 2>& shape) { return concat("[", shape[0], ", ", shape[1], "]"); };
    if (stored.shape != spec.shape)
      throw DataError(concat(where, ": tensor \"", name, "\" has shape ", text(stored.shape), ", expected ", text(spec.shape)));
    if (!is_floating(stored.dtype)) throw DataError(concat(where, ": tensor \"", name, "\" is ", name_of(stored.dtype), "; allowed F32 and F64"));
    known.insert(kWeights + spec.name);
  }
  for (const auto& [name, unused] : checkpoint.tensors())
    if (name.starts_with(kWeights) && !known.contains(name)) throw DataError(concat(where, ": tensor \"", name, "\" is not a tensor of this model"));
}

}  // namespace

WeightSource::WeightSource(const fs::path& path, WeightKind kind) : reader_(open(path)), kind_(kind) {
  if (const auto* checkpoint = std::get_if<CheckpointReader>(&reader_)) {
    path_ = checkpoint->directory().string();
    tokenizer_ = checkpoint->tokenizer_spec();
    config_ = saved_config(*checkpoint, path_);
    if (kind == WeightKind::kAverage && !checkpoint->has_kind(kAverageName)) refuse_average(path_);
    check_tensors(*checkpoint, config_.model, kind);
    config_.parallel = {};
    config_.parallel.virtual_stages = 1;
    config_.parallel.layers_per_stage = std::vector<int64_t>{config_.model.layers};
    config_.parallel.gradient_accumulation = GradientAccumulation::kFull;
    config_.training.recompute = RecomputeMode::kNone;
    config_.resilience = {};
  } else {
    path_ = path.string();
    if (kind == WeightKind::kAverage) refuse_average(path_);
    tokenizer_ = tokenizer_in(path, tokenizer_problem_);
    config_ = config_of(std::get<HuggingFaceReader>(reader_).model(), tokenizer_);
  }
}

std::string WeightSource::stored(const std::string& name) const { return stored_name(config_.model, kind_, name); }

std::vector<std::string> WeightSource::names() const {
  if (const auto* folder = std::get_if<HuggingFaceReader>(&reader_)) return folder->names();
  std::vector<std::string> names;
  for (const auto& [name, unused] : std::get<CheckpointReader>(reader_).tensors())
    if (name.starts_with(kWeights)) names.push_back(name.substr(std::string_view(kWeights).size()));
  return names;
}

std::array<int64_t, 2> WeightSource::shape(const std::string& name) const {
  if (const auto* folder = std::get_if<HuggingFaceReader>(&reader_)) return folder->shape(name);
  return std::get<CheckpointReader>(reader_).tensor(stored(name)).shape;
}

DType WeightSource::dtype(const std::string& name) const {
  if (const auto* folder = std::get_if<HuggingFaceReader>(&reader_)) return folder->dtype(name);
  return std::get<CheckpointReader>(reader_).tensor(stored(name)).dtype;
}

void WeightSource::read(const std::string& name, const Box& box, DType dtype, void* out) {
  if (const auto* folder = std::get_if<HuggingFaceReader>(&reader_)) return folder->read(name, box, dtype, out);
  std::get<CheckpointReader>(reader_).read(stored(name), box, dtype, out);
}

Config saved_config(const CheckpointReader& reader, const std::string& checkpoint) {
  try {
    std::string text = reader.description().config;
    constexpr std::string_view kFormer = "\n  replica_check:", kKey = "\n  replica_check_every:";  // renamed key in old checkpoints
    if (const size_t at = text.find(kFormer); at != text.npos) text.replace(at, kFormer.size(), kKey);
    return resolve(parse_config(text, checkpoint + "/manifest.json"));
  } catch (const ConfigError& error) {
    throw DataError(concat(checkpoint, ": its saved configuration is invalid: ", error.what()));
  }
}

std::string model_difference(const ModelConfig& configured, const ModelConfig& weights) {
  Config a, b;
  a.model = configured;
  b.model = weights;
  const FieldTable wanted = table_of(b), given = table_of(a);
  std::set<std::string> different;
  for (const FieldRow& row : wanted.fields)
    if (row.path.starts_with("model.") && !row.field.training_only && row.value != given.at(row.path).value) different.insert(row.path);
  if (weights.preset().positions == PositionKind::kRope && *configured.max_positions <= *weights.max_positions)
    different.erase("model.max_positions");
  return to_yaml(b, [&](const std::string& path) { return different.contains(path); });
}

}  // namespace trireme
