#include "trainer/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "trainer/checkpoint/non_finite.h"
#include "trainer/files/digest.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"

namespace trireme {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "tensors are written in native byte order");

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format
constexpr const char* kMetadataKey = "__metadata__";

/// Bytes of a tensor; nullopt if they exceed 63 bits.
std::optional<int64_t> byte_count(DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = size_of(dtype);
  for (int64_t extent : shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  return bytes;
}

DType dtype_named(const std::string& name, const std::string& where) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU8})
    if (name == name_of(dtype)) return dtype;
  throw DataError(concat(where, ": dtype \"", name, "\" is not supported; allowed F64, F32, BF16, F16, I32, U8"));
}

/// Works in pieces small enough to be still in the cache when they are written after digesting.
std::string write_digested(DurableFile& file, const void* data, int64_t bytes) {
  constexpr int64_t kPiece = 1 << 20;
  Digest digest;
  const auto* next = static_cast<const std::byte*>(data);
  for (int64_t left = bytes; left > 0; left -= kPiece, next += kPiece) {
    const auto piece = static_cast<size_t>(std::min(left, kPiece));
    digest.update(next, piece);
    file.write(next, piece);
  }
  return digest.str();
}

std::string file_digest(std::span<const std::byte> header, const std::map<std::string, std::string>& digests) {
  Digest digest;
  digest.update(header.data(), header.size());
  for (const auto& [name, text] : digests) digest.update(text);
  return digest.str();
}

/// Parses one header entry; its offsets are relative to the start of the data. For an ignored entry only the offsets are checked.
SafetensorsEntry parse_entry(const json& value, int64_t data_bytes, bool ignored, const std::string& where) {
  SafetensorsEntry entry;
  const std::string dtype = string_member(value, "dtype", where);
  if (!ignored) entry.dtype = dtype_named(dtype, where);
  for (const json& extent : array_member(value, "shape", where)) entry.shape.push_back(integer(extent, where + ": \"shape\""));
  const json& offsets = array_member(value, "data_offsets", where);
  require_known_keys(value, {"dtype", "shape", "data_offsets"}, where);
  if (offsets.size() != 2) throw DataError(concat(where, ": has ", offsets.size(), " data_offsets, not two"));
  entry.begin = integer(offsets[0], where + ": \"data_offsets\"");
  entry.end = integer(offsets[1], where + ": \"data_offsets\"");
  if (entry.end < entry.begin || entry.end > data_bytes)
    throw DataError(concat(where, ": data_offsets [", entry.begin, ", ", entry.end, "] lie outside the file's ", data_bytes, " bytes of data"));
  if (!ignored && byte_count(entry.dtype, entry.shape) != entry.end - entry.begin)
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
  text.insert(0, reinterpret_cast<const char*>(&length), kLengthBytes);

  DurableFile file(path);
  file.write(text);
  std::map<std::string, std::string> digests;
  for (size_t i = 0; i < tensors.size(); ++i) {
    SafetensorsEntry& entry = summary.entries[i];
    summary.digests.push_back(write_digested(file, tensors[i].make ? tensors[i].make() : tensors[i].data, entry.end - entry.begin));
    digests[tensors[i].name] = summary.digests.back();
    entry.begin += static_cast<int64_t>(text.size());
    entry.end += static_cast<int64_t>(text.size());
  }
  file.commit();
  summary.bytes = file.bytes();
  summary.digest = file_digest(std::as_bytes(std::span(text)), digests);
  return summary;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, Links links, const std::function<bool(const std::string&)>& ignored)
    : name_(path.string()), file_(path.string(), links) {
  read_header(ignored);
}

void SafetensorsFile::read_header(const std::function<bool(const std::string&)>& ignored) {
  const std::span<const std::byte> bytes(file_.data(), static_cast<size_t>(file_.bytes()));
  uint64_t length = 0;
  file_.load(0, std::min<int64_t>(file_.bytes(), kLengthBytes));
  if (bytes.size() >= kLengthBytes) std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length == 0 || length > kMaxHeaderBytes || length > bytes.size() - kLengthBytes)
    throw DataError(concat(name_, ": not a safetensors file: header of ", length, " bytes in a file of ", bytes.size()));
  file_.load(kLengthBytes, static_cast<int64_t>(length));
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  const json header = parse_object({text, length}, name_);
  header_bytes_ = kLengthBytes + length;
  const auto data_start = static_cast<int64_t>(header_bytes_);
  const int64_t data_bytes = static_cast<int64_t>(bytes.size()) - data_start;

  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [key, value] : header.items()) {
    if (key == kMetadataKey) {
      if (!value.is_object()) throw DataError(name_ + ": __metadata__ is not an object");
      for (const auto& [name, unused] : value.items()) metadata_[name] = string_member(value, name, name_ + ": __metadata__");
      continue;
    }
    const bool skip = ignored && ignored(key);
    SafetensorsEntry entry = parse_entry(value, data_bytes, skip, concat(name_, ": tensor \"", key, "\""));
    ranges.emplace_back(entry.begin, entry.end);
    if (skip) continue;
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

std::string SafetensorsFile::digest(const SafetensorsEntry& entry, int64_t* non_finite) const {
  constexpr int64_t kPiece = 16 << 20;  // a multiple of every element size
  Digest digest;
  for (int64_t at = entry.begin; at < entry.end; at += kPiece) {
    const int64_t piece = std::min(kPiece, entry.end - at);
    file_.load(at, piece);
    digest.update(file_.data() + at, static_cast<size_t>(piece));
    if (non_finite != nullptr) *non_finite += count_non_finite(entry.dtype, file_.data() + at, piece / size_of(entry.dtype));
    file_.drop(at, piece);
  }
  return digest.str();
}

std::string SafetensorsFile::digest(const std::map<std::string, std::string>& digests) const {
  return file_digest(std::span(file_.data(), header_bytes_), digests);
}

}  // namespace trireme
