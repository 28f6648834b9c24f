#include "trainer/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "trainer/checkpoint/strict_json.h"

namespace trireme {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format
constexpr const char* kMetadataKey = "__metadata__";

/// Bytes of a tensor, or nothing where they do not fit 63 bits.
std::optional<int64_t> byte_count(DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = size_of(dtype);
  for (int64_t extent : shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  return bytes;
}

DType dtype_named(const std::string& name, const std::string& where) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kI32, DType::kU8})
    if (name == name_of(dtype)) return dtype;
  throw DataError(concat(where, ": dtype \"", name, "\" is not supported; allowed F64, F32, I32, U8"));
}

/// One header entry; offsets still count from the start of the data.
SafetensorsEntry parse_entry(const json& value, int64_t data_bytes, const std::string& where) {
  SafetensorsEntry entry;
  entry.dtype = dtype_named(string_member(value, "dtype", where), where);
  for (const json& extent : array_member(value, "shape", where)) entry.shape.push_back(integer(extent, where + ": \"shape\""));
  const json& offsets = array_member(value, "data_offsets", where);
  if (offsets.size() != 2 || value.size() != 3) throw DataError(where + ": expected dtype, shape and two data_offsets, and nothing else");
  entry.begin = integer(offsets[0], where + ": \"data_offsets\"");
  entry.end = integer(offsets[1], where + ": \"data_offsets\"");
  if (entry.end < entry.begin || entry.end > data_bytes)
    throw DataError(concat(where, ": data_offsets [", entry.begin, ", ", entry.end, "] lie outside the file's ", data_bytes, " bytes of data"));
  if (byte_count(entry.dtype, entry.shape) != entry.end - entry.begin)
    throw DataError(concat(where, ": ", entry.end - entry.begin, " bytes do not match the shape and dtype"));
  return entry;
}

}  // namespace

SafetensorsSummary write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsSource> tensors,
                                     const SafetensorsMetadata& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  SafetensorsSummary summary;
  int64_t offset = 0;
  for (const SafetensorsSource& tensor : tensors) {
    const auto bytes = byte_count(tensor.dtype, tensor.shape);
    TRIREME_CHECK(bytes && !header.contains(tensor.name), "tensor ", tensor.name);
    header[tensor.name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + *bytes}}};
    summary.entries.push_back({tensor.dtype, tensor.shape, offset, offset + *bytes});
    offset += *bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  TRIREME_CHECK(length <= kMaxHeaderBytes, "the header of ", path.string(), " takes ", length, " bytes");

  DurableFile file(path);
  file.write(&length, sizeof length);
  file.write(text);
  for (size_t i = 0; i < tensors.size(); ++i) {
    SafetensorsEntry& entry = summary.entries[i];
    file.write(tensors[i].data, static_cast<size_t>(entry.end - entry.begin));
    entry.begin += static_cast<int64_t>(kLengthBytes + length);
    entry.end += static_cast<int64_t>(kLengthBytes + length);
  }
  file.commit();
  summary.bytes = file.bytes();
  summary.digest = file.digest();
  return summary;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : name_(path.string()), file_(path.string()) { read_header(); }

void SafetensorsFile::read_header() {
  const std::span<const std::byte> bytes(file_.data(), static_cast<size_t>(file_.bytes()));
  uint64_t length = 0;
  if (bytes.size() >= kLengthBytes) std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length == 0 || length > kMaxHeaderBytes || length > bytes.size() - kLengthBytes)
    throw DataError(concat(name_, ": not a safetensors file: header of ", length, " bytes in a file of ", bytes.size()));
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  const json header = parse_object({text, length}, name_);
  const auto data_start = static_cast<int64_t>(kLengthBytes + length);
  const int64_t data_bytes = static_cast<int64_t>(bytes.size()) - data_start;

  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [key, value] : header.items()) {
    if (key == kMetadataKey) {
      for (const auto& [name, unused] : value.items()) metadata_[name] = string_member(value, name, name_ + ": __metadata__");
      continue;
    }
    SafetensorsEntry entry = parse_entry(value, data_bytes, concat(name_, ": tensor \"", key, "\""));
    ranges.emplace_back(entry.begin, entry.end);
    entry.begin += data_start;
    entry.end += data_start;
    entries_.emplace(key, std::move(entry));
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != covered) throw DataError(concat(name_, ": data ", begin < covered ? "overlap" : "gap", " at byte ", std::min(begin, covered)));
    covered = end;
  }
  if (covered != data_bytes) throw DataError(concat(name_, ": ", data_bytes - covered, " bytes after the last tensor"));
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw DataError(concat(name_, ": tensor \"", name, "\" is missing"));
  return found->second;
}

std::span<const std::byte> SafetensorsFile::data(const SafetensorsEntry& entry) const {
  return std::span(file_.data(), static_cast<size_t>(file_.bytes()))
      .subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
}

std::string SafetensorsFile::digest() const {
  Digest digest;
  digest.update(file_.data(), static_cast<size_t>(file_.bytes()));
  return digest.str();
}

}  // namespace trireme
