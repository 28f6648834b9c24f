#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme {

/// Whether the last part of a path may be a symbolic link.
enum class Links { kFollow, kRefuse };

/// A whole file, memory-mapped read-only; pages are read when touched, so opening costs nothing and a file may be larger than memory.
/// Errors: MissingFileError where there is none, DataError for a directory, pipe, device or refused link, IoError for anything else the system refuses.
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
  /// Reads a part in, so that a disk that cannot deliver it, or a file that has become shorter, is an error here: a plain access would end the process.
  /// Errors: IoError. Does nothing before Linux 5.14.
  void load(int64_t begin, int64_t count) const;
  /// Gives the memory of a part back, which the next access reads again: a process that is through with it holds no more of the file.
  void drop(int64_t begin, int64_t count) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// A descriptor of a regular file, opened for reading, and the file's size. The caller closes it. Where the process has as many files open as its soft limit
/// allows, the soft limit is raised to the hard one: a run may read thousands of token files. Errors: those of MappedFile.
struct OpenedFile {
  int descriptor;
  int64_t bytes;
};
OpenedFile open_regular_file(const std::string& path, Links links);

/// Throws MissingFileError or IoError "path: <what>: <the system's reason>" for an errno.
[[noreturn]] void throw_file_error(const std::string& path, const char* what, int error_number);

}  // namespace trireme
