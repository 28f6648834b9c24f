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

using Reader = std::variant<CheckpointReader, HuggingFaceReader, PeftReader>;

constexpr const char* kWeights = "weight/";

/// The name of a parameter's weights in a checkpoint. A frozen one has no average, because it is its own.
std::string stored_name(const ModelConfig& model, WeightKind kind, const std::string& parameter) {
  return concat(kind == WeightKind::kTrained || is_frozen(model, parameter) ? kWeights : concat(kAverageName, "/"), parameter);
}

Reader open(const fs::path& path) {
  std::error_code error;
  const auto holds = [&](const char* name) { return fs::exists(fs::symlink_status(path / name, error)); };
  if (!holds(kManifestName) && is_peft_folder(path)) return Reader(std::in_place_type<PeftReader>, path);
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

constexpr int64_t kMergedElements = 1 << 20;  ///< elements that are merged at a time

/// sum += scale * b a.   b [rows,rank], a [rank,columns], sum [rows,columns].
void add_scaled_product(const std::vector<double>& b, const std::vector<double>& a, double scale, int64_t rank, std::vector<double>& sum) {
  const auto columns = a.size() / static_cast<size_t>(rank);
  for (size_t i = 0; i < b.size(); ++i) {
    const double factor = scale * b[i];
    const double* const from = a.data() + i % static_cast<size_t>(rank) * columns;
    double* const to = sum.data() + i / static_cast<size_t>(rank) * columns;
    for (size_t c = 0; c < columns; ++c) to[c] += factor * from[c];
  }
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

WeightSource::WeightSource(const fs::path& path, WeightKind kind, Adapters adapters) : reader_(open(path)), kind_(kind) {
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
    folder_ = std::holds_alternative<PeftReader>(reader_) ? std::get<PeftReader>(reader_).base_folder() : path;
    if (kind == WeightKind::kAverage) refuse_average(path_);
    tokenizer_ = tokenizer_in(folder_, tokenizer_problem_);
    config_ = config_of(with_folder([](const auto& folder) { return folder.model(); }), tokenizer_);
  }
  stored_ = config_.model;
  merges_ = adapters == Adapters::kMerged && stored_.adapter.rank > 0;
  if (merges_) config_.model.adapter = {};
}

std::string WeightSource::stored(const std::string& name) const { return stored_name(stored_, kind_, name); }

std::vector<std::string> WeightSource::names() const {
  std::vector<std::string> names;
  if (const auto* checkpoint = std::get_if<CheckpointReader>(&reader_)) {
    for (const auto& [name, unused] : checkpoint->tensors())
      if (name.starts_with(kWeights)) names.push_back(name.substr(std::string_view(kWeights).size()));
  } else {
    names = with_folder([](const auto& folder) { return folder.names(); });
  }
  if (merges_) std::erase_if(names, is_adapter);
  return names;
}

std::array<int64_t, 2> WeightSource::shape(const std::string& name) const {
  const auto* const checkpoint = std::get_if<CheckpointReader>(&reader_);
  return checkpoint != nullptr ? checkpoint->tensor(stored(name)).shape : with_folder([&](const auto& folder) { return folder.shape(name); });
}

DType WeightSource::dtype(const std::string& name) const {
  const auto* const checkpoint = std::get_if<CheckpointReader>(&reader_);
  return checkpoint != nullptr ? checkpoint->tensor(stored(name)).dtype : with_folder([&](const auto& folder) { return folder.dtype(name); });
}

void WeightSource::read_apart(const std::string& name, const Box& box, DType dtype, void* out) {
  if (auto* checkpoint = std::get_if<CheckpointReader>(&reader_)) return checkpoint->read(stored(name), box, dtype, out);
  with_folder([&](const auto& folder) { folder.read(name, box, dtype, out); });
}

void WeightSource::read(const std::string& name, const Box& box, DType dtype, void* out) {
  const std::string layer = name.substr(0, name.rfind('.'));
  if (!merges_ || !name.ends_with(".weight") || !has_adapter(stored_, layer)) return read_apart(name, box, dtype, out);
  const int64_t rank = stored_.adapter.rank, columns = box.extent[1], piece = std::max<int64_t>(1, kMergedElements / std::max<int64_t>(1, columns));
  std::vector<double> a(static_cast<size_t>(rank * columns)), b, sum;
  read_apart(adapter_a(layer), {{0, box.start[1]}, {rank, columns}}, DType::kF64, a.data());
  auto* bytes = static_cast<std::byte*>(out);
  for (int64_t row = 0; row < box.extent[0]; row += piece) {
    const Box rows{{box.start[0] + row, box.start[1]}, {std::min(piece, box.extent[0] - row), columns}};
    sum.resize(static_cast<size_t>(rows.numel()));
    b.resize(static_cast<size_t>(rows.extent[0] * rank));
    read_apart(name, rows, DType::kF64, sum.data());
    read_apart(adapter_b(layer), {{rows.start[0], 0}, {rows.extent[0], rank}}, DType::kF64, b.data());
    add_scaled_product(b, a, adapter_scale(stored_.adapter), rank, sum);
    const StoredMatrix merged{reinterpret_cast<const std::byte*>(sum.data()), DType::kF64, columns, 1, rows.start};
    copy_box(merged, rows, rows, dtype, bytes);
    bytes += rows.numel() * size_of(dtype);
  }
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
