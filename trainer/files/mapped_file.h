#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme {

/// Policy for a path whose last component is a symbolic link.
enum class Links { kFollow, kRefuse };

/// A complete file, memory-mapped read-only. Pages are read on access, so opening is cheap and a file may be larger than memory.
/// Errors: MissingFileError; DataError for a directory, pipe, device or refused link; IoError for any other system error.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path, Links links = Links::kFollow);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  const std::byte* data() const { return data_; }
  /// Reads bytes [begin, begin + count) into memory. A disk error or a truncated file throws here; a plain access would end the process by SIGBUS.
  /// Errors: IoError. No effect before Linux 5.14.
  void load(int64_t begin, int64_t count) const;
  /// Releases the memory of bytes [begin, begin + count); the next access reads them again.
  void drop(int64_t begin, int64_t count) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Descriptor, owned by the caller, and size of a regular file.
struct OpenedFile {
  int descriptor;
  int64_t bytes;
};
/// Opens a regular file for reading. At the soft limit on open files, raises it to the hard limit: a run may read thousands of token files.
/// Errors: those of MappedFile.
OpenedFile open_regular_file(const std::string& path, Links links);

/// The same without errors: -1 where there is no regular file that can be read.
int try_open_regular_file(const std::string& path);

/// Throws MissingFileError or IoError "path: <what>: <the system's reason>" for an errno.
[[noreturn]] void throw_file_error(const std::string& path, const char* what, int error_number);

}  // namespace trireme
