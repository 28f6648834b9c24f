#include "trainer/huggingface/peft_writer.h"

#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/checkpoint/box_copy.h"
#include "trainer/checkpoint/non_finite.h"
#include "trainer/files/durable_file.h"
#include "trainer/huggingface/config.h"
#include "trainer/model/declare.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

void check_alone(const WeightSource& source) {
  const ModelConfig& model = source.model();
  hugging_face_class(model);  // a base that has one
  if (model.adapter.rank == 0)
    throw ConfigError(concat("--format peft: ", source.path(), " has no adapters; allowed --format hf, or a run with adapter.rank"));
  for (const ParamSpec& spec : whole_model(model))
    if (spec.trainable && !is_adapter(spec.name))
      throw ConfigError(concat("--format peft: ", source.path(), " has trained ", spec.name, " beside its adapters; allowed --format hf"));
}

std::string base_path(const WeightSource& source) {
  if (!source.is_checkpoint()) return source.folder().string();
  const std::string& from = source.config().training.initial_weights;
  std::error_code ignored;
  if (from == "none" || !fs::is_directory(from, ignored)) return "";
  if (is_peft_folder(from)) return PeftReader(from).base_folder().string();
  return fs::exists(fs::path(from) / "config.json", ignored) ? from : "";
}

/// The elements of a tensor, row-major.
std::vector<std::byte> values_of(WeightSource& source, const PeftTensor& tensor, DType dtype) {
  std::vector<std::byte> all(static_cast<size_t>(tensor.shape[0] * tensor.shape[1] * size_of(dtype)));
  std::vector<std::byte> values;
  for (const PeftTensor::Piece& piece : tensor.pieces) {
    values.resize(static_cast<size_t>(piece.from.numel() * size_of(dtype)));
    source.read(piece.parameter, piece.from, dtype, values.data());
    const StoredMatrix from{values.data(), dtype, piece.from.extent[1], 1, piece.begin};
    copy_box(from, {piece.begin, piece.from.extent}, {{0, 0}, tensor.shape}, dtype, all.data());
  }
  return all;
}

}  // namespace

PeftSummary write_peft(WeightSource& source, const fs::path& folder, DType dtype) {
  check_alone(source);
  PeftSummary summary{.base = base_path(source)};
  const std::vector<PeftTensor> tensors = peft_tensors(source.model());
  std::vector<std::vector<std::byte>> values;
  std::vector<SafetensorsSource> entries;
  NonFinite non_finite;
  for (const PeftTensor& tensor : tensors) {
    values.push_back(values_of(source, tensor, dtype));
    const int64_t elements = tensor.shape[0] * tensor.shape[1], count = count_non_finite(dtype, values.back().data(), elements);
    if (count > 0 && count_non_finite(DType::kF32, values_of(source, tensor, DType::kF32).data(), elements) == 0)
      throw DataError(concat("tensor \"", tensor.name, "\": ", counted(count, "value"), " overflow in ", name_of(dtype), "; choose another dtype"));
    if (count > 0) non_finite[tensor.name] = count;
    summary.bytes += std::ssize(values.back());
    entries.push_back({tensor.name, dtype, {tensor.shape[0], tensor.shape[1]}, values.back().data()});
  }
  refuse_non_finite(source.path(), non_finite);
  summary.layers = std::ssize(tensors) / 2;
  write_durably(folder / kAdapterConfig, peft_config(source.model(), summary.base).dump(2) + "\n");
  write_safetensors(folder / kAdapterTensors, entries, {{"format", "pt"}});
  const SafetensorsFile written(folder / kAdapterTensors);
  for (size_t i = 0; i < tensors.size(); ++i)
    TRIREME_CHECK(std::memcmp(written.data(written.entry(tensors[i].name)).data(), values[i].data(), values[i].size()) == 0, tensors[i].name);
  return summary;
}

}  // namespace trireme
