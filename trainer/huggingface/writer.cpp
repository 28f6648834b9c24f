#include "trainer/huggingface/writer.h"

#include <algorithm>
#include <cmath>

#include "trainer/checkpoint/non_finite.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/huggingface/config.h"
#include "trainer/huggingface/names.h"
#include "trainer/huggingface/tokenizer_files.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

int64_t bytes_of(const HuggingFaceTensor& tensor, DType dtype) { return tensor.rows() * tensor.columns() * size_of(dtype); }

/// Converts one tensor at a time to its layout and dtype in the file.
class TensorBuffer {
 public:
  TensorBuffer(WeightSource& source, DType dtype) : source_(source), dtype_(dtype) {}

  /// The result is valid until the next call.
  const void* read(const HuggingFaceTensor& tensor) {
    rows_.resize(static_cast<size_t>(tensor.rows() * tensor.columns()));
    for (const HuggingFaceTensor::Part& part : tensor.parts) read(part, tensor.columns());
    if (!tensor.transposed && dtype_ == DType::kF32) return rows_.data();
    out_.resize(rows_.size() * static_cast<size_t>(size_of(dtype_)));
    dispatch_float(dtype_, [&](auto type) { convert(tensor, reinterpret_cast<decltype(type)*>(out_.data())); });
    return out_.data();
  }
  const NonFinite& non_finite() const { return non_finite_; }  ///< of the parameters read so far

 private:
  /// Works in tiles, so that a transposition accesses neither side in strides only.
  template <class T>
  void convert(const HuggingFaceTensor& tensor, T* out) const {
    constexpr int64_t kTile = 64;
    const int64_t rows = tensor.rows(), columns = tensor.columns();
    const int64_t row_stride = tensor.transposed ? 1 : columns, column_stride = tensor.transposed ? rows : 1;
    for (int64_t top = 0; top < rows; top += kTile)
      for (int64_t left = 0; left < columns; left += kTile)
        for (int64_t row = top; row < std::min(rows, top + kTile); ++row)
          for (int64_t column = left; column < std::min(columns, left + kTile); ++column) {
            const float value = rows_[static_cast<size_t>(row * columns + column)];
            const T rounded(value);
            if (std::isfinite(value) && !std::isfinite(static_cast<float>(rounded)))
              throw DataError(concat("tensor \"", tensor.name, "\": ", value, " overflows in ", name_of(dtype_), "; choose another dtype"));
            out[row * row_stride + column * column_stride] = rounded;
          }
  }

  void read(const HuggingFaceTensor::Part& part, int64_t columns) {
    int64_t count = 0;
    for (int64_t row = 0; row < part.shape[0]; row += part.run) {
      const Box run{{row, 0}, {part.run, columns}};
      float* const out = rows_.data() + part.row(row) * columns;
      source_.read(part.parameter, run, DType::kF32, out);
      count += count_non_finite(DType::kF32, out, run.numel());
    }
    if (count > 0) non_finite_[part.parameter] = count;
  }

  WeightSource& source_;
  DType dtype_;
  NonFinite non_finite_;
  std::vector<float> rows_;
  std::vector<std::byte> out_;
};

using Shard = std::vector<const HuggingFaceTensor*>;

std::vector<Shard> cut_into_shards(const std::vector<HuggingFaceTensor>& tensors, const HuggingFaceOptions& options) {
  std::vector<Shard> shards(1);
  int64_t filled = 0;
  for (const HuggingFaceTensor& tensor : tensors) {
    const int64_t bytes = bytes_of(tensor, options.dtype);
    if (!shards.back().empty() && bytes > options.max_shard_bytes - filled) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(&tensor);
    filled += bytes;
  }
  return shards;
}

/// "model-00002-of-00003.safetensors", or "model.safetensors" for a single shard.
std::string shard_name(size_t index, size_t count) {
  const auto five = [](size_t number) {
    const std::string text = std::to_string(number);
    return std::string(5 - std::min<size_t>(5, text.size()), '0') + text;
  };
  return count == 1 ? "model.safetensors" : concat("model-", five(index + 1), "-of-", five(count), ".safetensors");
}

/// The special tokens of a Hugging Face folder's config.json; for a checkpoint, the end-of-text token of its tokenizer.
ordered_json special_tokens(const WeightSource& source) {
  // Absent tokens are written as null, because the defaults of a class may be outside the vocabulary.
  if (source.is_checkpoint()) return special_ids(source.tokenizer());
  const fs::path config = source.folder() / "config.json";
  const json given = parse_object(read_text(config), config.string());
  ordered_json ids = ordered_json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (given.contains(key)) ids[key] = ordered_json(given.at(key));
  return ids;
}

void write_json(const fs::path& path, const ordered_json& value) { write_durably(path, value.dump(2) + "\n"); }

/// Copies the file of a Hugging Face folder, if it has one, because it may contain more than ids.
void write_generation_config(const WeightSource& source, const fs::path& folder, const ordered_json& special) {
  constexpr const char* kName = "generation_config.json";
  if (source.is_checkpoint()) return write_json(folder / kName, hugging_face_generation_config(special));
  const fs::path given = source.folder() / kName;
  std::error_code ignored;
  if (fs::is_regular_file(given, ignored)) write_durably(folder / kName, read_text(given));
}

}  // namespace

int64_t hugging_face_bytes(const ModelConfig& model, DType dtype) {
  int64_t sum = 0;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(model)) sum += bytes_of(tensor, dtype);
  return sum;
}

HuggingFaceSummary write_hugging_face(WeightSource& source, const fs::path& folder, const HuggingFaceOptions& options,
                                      const std::function<void(int64_t bytes)>& progress) {
  const ordered_json special = special_tokens(source);
  write_json(folder / "config.json", hugging_face_config(source.model(), options.dtype, special));
  write_generation_config(source, folder, special);
  write_tokenizer_files(source, folder);

  const std::vector<HuggingFaceTensor> tensors = hugging_face_tensors(source.model());
  const std::vector<Shard> shards = cut_into_shards(tensors, options);
  TensorBuffer buffer(source, options.dtype);
  HuggingFaceSummary summary{static_cast<int64_t>(tensors.size()), 0, static_cast<int64_t>(shards.size())};
  ordered_json shard_of = ordered_json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    std::vector<SafetensorsSource> entries;
    for (const HuggingFaceTensor* tensor : shards[i]) {
      const int64_t bytes = bytes_of(*tensor, options.dtype);
      entries.push_back({tensor->name, options.dtype, tensor->shape, nullptr, [&buffer, &progress, tensor, bytes] {
                           progress(bytes);
                           return buffer.read(*tensor);
                         }});
      shard_of[tensor->name] = name;
      summary.bytes += bytes;
    }
    write_safetensors(folder / name, entries, {{"format", "pt"}});
  }
  refuse_non_finite(source.path(), buffer.non_finite());
  if (shards.size() > 1)
    write_json(folder / "model.safetensors.index.json", {{"metadata", {{"total_size", summary.bytes}}}, {"weight_map", std::move(shard_of)}});
  return summary;
}

}  // namespace trireme
