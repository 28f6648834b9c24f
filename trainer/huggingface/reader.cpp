#include "trainer/huggingface/reader.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"
#include "trainer/checkpoint/box_copy.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/foreign_files.h"
#include "trainer/files/strict_json.h"
#include "trainer/huggingface/config.h"
#include "trainer/huggingface/families/family.h"
#include "trainer/huggingface/names.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kPrefix = "transformer.";  // GPT2LMHeadModel saves names with this prefix; GPT2Model, as on the hub, without

/// What is wrong with a tensor that the model does not have.
const char* leftover_text(const std::string& name) {
  if (name.ends_with(".self_attn.o_proj.bias")) return "a bias of the attention output projection, which this program lacks";
  for (const char* layer : {".mlp.gate_proj.bias", ".mlp.up_proj.bias", ".mlp.down_proj.bias"})
    if (name.ends_with(layer)) return "a bias in the feed-forward block, which this program lacks";
  return "not a tensor of this model";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

/// Collects problems with a model's tensors; lists the first five and the number of others.
class Problems {
 public:
  void add(const std::string& name, const std::string& what) {
    if (count_++ < kShown) text_ += concat("\n  ", name, ": ", what);
  }
  void raise(const fs::path& folder) const {
    if (count_ == 0) return;
    throw DataError(concat(folder.string(), ": the tensors do not match config.json:", text_,
                           count_ > kShown ? concat("\n  and ", count_ - kShown, " more") : ""));
  }

 private:
  static constexpr int kShown = 5;
  int count_ = 0;
  std::string text_;
};

}  // namespace

HuggingFaceReader::HuggingFaceReader(const fs::path& folder) : folder_(folder) {
  std::error_code error;
  if (!fs::is_directory(folder_, error)) throw MissingFileError(concat(folder_.string(), ": no such directory"));
  const fs::path config = folder_ / "config.json";
  model_ = parse_hugging_face_config(read_text(config, kMaxConfigBytes), config.string());
  open_files();
  place_tensors();
  if (model_.tied_embeddings && tensors_.contains(head_name(model_))) check_tied_head();
}

void HuggingFaceReader::open_files() {
  const auto is_buffer = [&buffers = huggingface::family_of(model_).buffers](const std::string& name) {
    return std::ranges::any_of(buffers, [&](const char* buffer) { return name.ends_with(buffer); });
  };
  const auto open = [&](const std::string& name) { files_[name] = std::make_unique<SafetensorsFile>(folder_ / name, Links::kFollow, is_buffer); };
  // True also for a dangling link or an inaccessible file: opening it then throws an error that states the reason.
  const auto stands = [&](const char* name) {
    std::error_code ignored;
    return fs::symlink_status(folder_ / name, ignored).type() != fs::file_type::not_found;
  };
  // If both exist, transformers reads model.safetensors.
  if (stands(kSingle)) {
    open(kSingle);
  } else if (stands(kIndex)) {
    const fs::path path = folder_ / kIndex;
    const auto index = parse_object(read_text(path, kMaxIndexBytes), path.string());
    const auto& map = object_member(index, "weight_map", path.string());
    std::map<std::string, std::string> file_of;
    for (const auto& [tensor, unused] : map.items()) {
      const std::string name = string_member(map, tensor, path.string() + ": \"weight_map\"");
      if (name.empty() || name.front() == '.' || name.find('/') != name.npos || name.find('\0') != name.npos)
        throw DataError(concat(path.string(), ": \"weight_map\": ", map.at(tensor).dump(), " is not the name of a file in this directory"));
      if (!is_buffer(tensor)) file_of[tensor] = name;
      if (!files_.contains(name)) open(name);
    }
    for (const auto& [tensor, name] : file_of)
      if (!files_.at(name)->entries().contains(tensor))
        throw DataError(concat(path.string(), ": \"weight_map\": tensor \"", tensor, "\" is not in ", name));
    for (const auto& [name, file] : files_)
      for (const auto& [tensor, unused] : file->entries())
        if (const auto found = file_of.find(tensor); found == file_of.end() || found->second != name)
          throw DataError(concat(path.string(), ": \"weight_map\": tensor \"", tensor, "\" of ", name, " is missing, or mapped to another file"));
  } else {
    if (const std::string what = foreign_folder(folder_); !what.empty()) throw DataError(concat(folder_.string(), ": ", what));
    throw MissingFileError(concat(folder_.string(), ": has neither ", kSingle, " nor ", kIndex, "; other weight formats are not supported"));
  }
  for (const auto& [name, file] : files_)
    for (const auto& [tensor, unused] : file->entries()) tensors_[tensor] = file.get();
}

std::string HuggingFaceReader::stored_name(const std::string& name) const {
  const bool prefixed = tensors_.lower_bound(kPrefix) != tensors_.end() && tensors_.lower_bound(kPrefix)->first.starts_with(kPrefix);
  return name.starts_with(kPrefix) && !prefixed ? name.substr(std::strlen(kPrefix)) : name;
}

void HuggingFaceReader::place_tensors() {
  Problems problems;
  std::map<std::string, const SafetensorsFile*> left = tensors_;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(model_)) {
    const std::string name = stored_name(tensor.name);
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      problems.add(name, "missing");
      continue;
    }
    left.erase(name);
    const SafetensorsEntry& entry = found->second->entry(name);
    if (entry.shape != tensor.shape) {
      problems.add(name, concat(shape_text(entry.shape), ", expected ", shape_text(tensor.shape)));
    } else if (!is_floating(entry.dtype)) {
      problems.add(name, concat(name_of(entry.dtype), ", expected F32, BF16, F16 or F64"));
    } else {
      const int64_t row_stride = tensor.transposed ? 1 : tensor.columns(), column_stride = tensor.transposed ? tensor.rows() : 1;
      for (const HuggingFaceTensor::Part& part : tensor.parts) places_[part.parameter] = {found->second, &entry, part, row_stride, column_stride};
    }
  }
  if (model_.tied_embeddings) left.erase(head_name(model_));
  for (const auto& [name, unused] : left) problems.add(name, leftover_text(name));
  problems.raise(folder_);
}

void HuggingFaceReader::check_tied_head() const {
  constexpr int64_t kPiece = 16 << 20;
  const Place& embedding = place_of("embedding.weight");
  const std::string name = head_name(model_);
  const SafetensorsFile& file = *tensors_.at(name);
  const SafetensorsEntry& head = file.entry(name);
  bool equal = head.dtype == embedding.entry->dtype && head.shape == embedding.entry->shape;
  for (int64_t at = 0; equal && at < head.end - head.begin; at += kPiece) {
    const int64_t piece = std::min(kPiece, head.end - head.begin - at);
    const auto bytes = [&](const SafetensorsFile& of, const SafetensorsEntry& entry) {
      of.load(entry.begin + at, entry.begin + at + piece);
      return of.data(entry).data() + at;
    };
    equal = std::memcmp(bytes(file, head), bytes(*embedding.file, *embedding.entry), static_cast<size_t>(piece)) == 0;
    file.drop(head.begin + at, head.begin + at + piece);
    embedding.file->drop(embedding.entry->begin + at, embedding.entry->begin + at + piece);
  }
  if (!equal)
    throw DataError(
        concat(folder_.string(), ": ", name, " differs from the embedding, but config.json has \"tie_word_embeddings\": true; set it to false"));
}

std::vector<std::string> HuggingFaceReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

const HuggingFaceReader::Place& HuggingFaceReader::place_of(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) throw DataError(concat(folder_.string(), ": has no tensor for parameter \"", name, "\""));
  return found->second;
}

std::array<int64_t, 2> HuggingFaceReader::shape(const std::string& name) const { return place_of(name).part.shape; }

DType HuggingFaceReader::dtype(const std::string& name) const { return place_of(name).entry->dtype; }

void HuggingFaceReader::read(const std::string& name, const Box& box, DType dtype, void* out) const {
  const Place& place = place_of(name);
  if (!lies_in(box, place.part.shape) || !is_floating(dtype))
    throw DataError(concat(folder_.string(), ": parameter \"", name, "\" has shape [", place.part.shape[0], ", ", place.part.shape[1],
                           "]; requested [", box.extent[0], ", ", box.extent[1], "] from [", box.start[0], ", ", box.start[1], "] in ",
                           name_of(dtype)));
  if (box.numel() == 0) return;
  const int64_t last = box.start[0] + box.extent[0], size = size_of(place.entry->dtype);
  for (int64_t row = box.start[0]; row < last;) {
    const int64_t run = row / place.part.run * place.part.run, end_row = std::min(last, run + place.part.run);
    const int64_t offset = place.part.row(run) * place.row_stride * size, origin = place.entry->begin + offset;
    const StoredMatrix matrix{place.file->data(*place.entry).data() + offset, place.entry->dtype, place.row_stride, place.column_stride, {run, 0}};
    const Box rows{{row, box.start[1]}, {end_row - row, box.extent[1]}};
    const auto [begin, end] = matrix.bytes_of(rows);
    place.file->load(origin + begin, origin + end);
    copy_box(matrix, rows, box, dtype, static_cast<std::byte*>(out));
    place.file->drop(origin + begin, origin + end);
    row = end_row;
  }
}

}  // namespace trireme
