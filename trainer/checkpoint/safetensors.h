#pragma once
// The safetensors format: 8 bytes of header length (little endian), a JSON header {name: {dtype, shape, data_offsets}} padded with spaces to a
// multiple of 8, then the tensors, without gaps. Source: https://huggingface.co/docs/safetensors.
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "trainer/files/mapped_file.h"

namespace trireme {

using SafetensorsMetadata = std::map<std::string, std::string>;

/// A tensor to write: row-major, numel(shape) * size_of(dtype) bytes at `data`, or where that is null at what `make` returns when its turn comes. Those are
/// read before the next one is made, so that a file larger than memory can be written.
struct SafetensorsSource {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  std::function<const void*()> make = {};
};

/// A tensor in a file; `begin` and `end` count bytes from the start of the file.
struct SafetensorsEntry {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

/// `digest` is over the bytes before the first tensor and then the text of every tensor's digest, in the order of the tensors' names: it vouches for the
/// whole file, and a reader of one tensor need not read the others to trust it.
struct SafetensorsSummary {
  int64_t bytes = 0;
  std::string digest;
  std::vector<SafetensorsEntry> entries;  ///< in the order of the sources
  std::vector<std::string> digests;       ///< of their data
};

/// Writes a file durably (file.h). Names must differ.   Errors: IoError.
SafetensorsSummary write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsSource> tensors,
                                     const SafetensorsMetadata& metadata);

/// A file whose header was checked whole when it was opened: a regular file; JSON without duplicate keys, known dtypes, byte ranges that equal the shapes,
/// that cover the data without gap or overlap and end with the file.   Errors: MissingFileError, IoError, DataError that names the file and the tensor.
class SafetensorsFile {
 public:
  /// Tensors whose name `ignored` holds for may have any dtype and are none of entries().
  explicit SafetensorsFile(const std::filesystem::path& path, Links links = Links::kRefuse,
                           const std::function<bool(const std::string&)>& ignored = {});
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  /// Errors: DataError if there is none of this name.
  const SafetensorsEntry& entry(const std::string& name) const;
  std::span<const std::byte> data(const SafetensorsEntry& entry) const;
  /// Bytes [begin, end) of the file are read now (MappedFile::load), or given back.
  void load(int64_t begin, int64_t end) const { file_.load(begin, end - begin); }
  void drop(int64_t begin, int64_t end) const { file_.drop(begin, end - begin); }
  /// Reads the data of `entry` once, and keeps none of it. Adds its elements that are not finite to `non_finite`, if given.
  std::string digest(const SafetensorsEntry& entry, int64_t* non_finite = nullptr) const;
  /// The digest of the file, given those of its tensors by name: reads the header alone.
  std::string digest(const std::map<std::string, std::string>& digests) const;

 private:
  void read_header(const std::function<bool(const std::string&)>& ignored);

  std::string name_;
  MappedFile file_;
  size_t header_bytes_ = 0;  ///< before the first tensor: the length and the JSON
  std::map<std::string, SafetensorsEntry> entries_;
  SafetensorsMetadata metadata_;
};

}  // namespace trireme
