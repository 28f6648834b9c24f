#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme {

/// A whole file, memory-mapped read-only; pages are read when touched, so opening costs nothing and a file may be larger than memory.
/// Errors: MissingFileError where there is none, DataError for a directory or device, IoError for anything else the system refuses.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  const std::byte* data() const { return data_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Throws MissingFileError or IoError "path: <what>: <the system's reason>" for an errno.
[[noreturn]] void throw_file_error(const std::string& path, const char* what, int error_number);

}  // namespace trireme
