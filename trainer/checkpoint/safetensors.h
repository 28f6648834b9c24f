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

/// A tensor to write: row-major, numel(shape) * size_of(dtype) bytes at `data`. If `make` is set, it is called when the tensor is due and returns the
/// data, which are written before the next call, so that a file larger than memory can be written.
struct SafetensorsSource {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  std::function<const void*()> make = {};
};

/// A tensor in a file; `begin` and `end` are byte offsets from the start of the file.
struct SafetensorsEntry {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

/// `digest` covers the bytes before the first tensor, then the text of every tensor's digest, ordered by tensor name. It covers the
/// complete file, yet a reader of one tensor need not read the others.
struct SafetensorsSummary {
  int64_t bytes = 0;
  std::string digest;
  std::vector<SafetensorsEntry> entries;  ///< in the order of the sources
  std::vector<std::string> digests;       ///< of the data of each entry
};

/// Writes a file durably (durable_file.h). Names must be unique.   Errors: IoError.
SafetensorsSummary write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsSource> tensors,
                                     const SafetensorsMetadata& metadata);

/// A file whose header is fully checked when it is opened: it must be a regular file, with JSON without duplicate keys, known dtypes, and byte ranges
/// that match the shapes and cover the data without gap or overlap up to the end.   Errors: MissingFileError, IoError, DataError naming the file and
/// the tensor.
class SafetensorsFile {
 public:
  /// Tensors whose name satisfies `ignored` may have any dtype and are left out of entries().
  explicit SafetensorsFile(const std::filesystem::path& path, Links links = Links::kRefuse,
                           const std::function<bool(const std::string&)>& ignored = {});
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  /// Errors: DataError if there is no tensor of this name.
  const SafetensorsEntry& entry(const std::string& name) const;
  std::span<const std::byte> data(const SafetensorsEntry& entry) const;
  /// Reads bytes [begin, end) of the file into memory now (MappedFile::load), or releases their pages.
  void load(int64_t begin, int64_t end) const { file_.load(begin, end - begin); }
  void drop(int64_t begin, int64_t end) const { file_.drop(begin, end - begin); }
  /// Digest of the data of `entry`; releases the pages it read. Adds the number of non-finite elements to `non_finite`, if given.
  std::string digest(const SafetensorsEntry& entry, int64_t* non_finite = nullptr) const;
  /// Digest of the file, given those of its tensors by name; reads only the header.
  std::string digest(const std::map<std::string, std::string>& digests) const;

 private:
  void read_header(const std::function<bool(const std::string&)>& ignored);

  std::string name_;
  MappedFile file_;
  size_t header_bytes_ = 0;  ///< bytes before the first tensor: length and JSON
  std::map<std::string, SafetensorsEntry> entries_;
  SafetensorsMetadata metadata_;
};

}  // namespace trireme
