#pragma once
// Crash-safe files: written to a temporary file, synced, then renamed.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "trainer/files/mapped_file.h"

namespace trireme {

/// Writes `path` atomically through `path`.tmp: the name refers to the old file until commit() and to the complete new file afterwards, even after a
/// power failure (sync_directory syncs the directory entry). Destruction without commit() removes the temporary file.
/// Errors: IoError naming the file; those of check_replaceable.
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
  int64_t sent_ = 0;  ///< bytes whose write-back has been started
};

/// Checks that DurableFile can write `path`: its rename would replace a pipe or a device by a file.
/// Errors: IoError if `path` exists and is not a regular file, or if its directory does not exist.
void check_replaceable(const std::filesystem::path& path);
void write_durably(const std::filesystem::path& path, std::string_view text);
/// Makes the entries of a directory durable.
void sync_directory(const std::filesystem::path& path);
/// Renames and syncs the directory of `to`.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// Reads a complete file. Errors: those of MappedFile; DataError if the file is larger than `max_bytes`.
std::string read_text(const std::filesystem::path& path, int64_t max_bytes = std::numeric_limits<int64_t>::max(), Links links = Links::kFollow);

}  // namespace trireme
