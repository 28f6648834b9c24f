#pragma once
// Files that survive a crash: written under another name, synced, then renamed.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "kernels/core/hash.h"

namespace trireme {

/// 64-bit FNV-1a over the bytes of a file: finds damage, proves no authorship.
class Digest {
 public:
  void update(const void* data, size_t bytes);
  std::string str() const;  ///< "fnv1a64:" and sixteen hexadecimal digits

 private:
  uint64_t hash_ = kFnv1aStart;
};

/// Writes `path` through `path`.tmp: until commit() nothing is seen under the name, after it the whole file is, even after a power cut
/// (the directory itself is synced by sync_directory). Dropped uncommitted, it leaves nothing. Errors: IoError that names the file.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();
  int64_t bytes() const { return bytes_; }
  std::string digest() const { return digest_.str(); }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
  Digest digest_;
};

void write_durably(const std::filesystem::path& path, std::string_view text);
/// Makes the names in a directory durable.
void sync_directory(const std::filesystem::path& path);
/// Renames and syncs the directory of `to`.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// A whole small file. Errors: MissingFileError, IoError.
std::string read_text(const std::filesystem::path& path);

}  // namespace trireme
