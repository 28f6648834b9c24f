#pragma once
// Files that survive a crash: written under another name, synced, then renamed.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "trainer/files/mapped_file.h"

namespace trireme {

/// Writes `path` through `path`.tmp: until commit() nothing is seen under the name, after it the whole file is, even after a power cut
/// (the directory itself is synced by sync_directory). Dropped uncommitted, it leaves nothing. Errors: IoError that names the file; those of
/// check_replaceable.
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

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
  int64_t sent_ = 0;  ///< bytes on their way to the disk
};

/// A rename would put a file in the place of a pipe, a device or a directory. Errors: IoError where `path` exists and is not a regular file, or its
/// directory is not there.
void check_replaceable(const std::filesystem::path& path);
void write_durably(const std::filesystem::path& path, std::string_view text);
/// Makes the names in a directory durable.
void sync_directory(const std::filesystem::path& path);
/// Renames and syncs the directory of `to`.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// A whole small file. Errors: MissingFileError, IoError; DataError where it is larger, or as MappedFile.
std::string read_text(const std::filesystem::path& path, int64_t max_bytes = std::numeric_limits<int64_t>::max(), Links links = Links::kFollow);

}  // namespace trireme
