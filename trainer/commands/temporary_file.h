#pragma once
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"

namespace trireme {

/// A temporary file with a unique name, removed by the destructor: for the results of ranks that a command starts.
class TemporaryFile {
 public:
  /// Created in `directory`, or in /tmp if that is empty. Errors: IoError.
  explicit TemporaryFile(const std::string& directory) {
    const int descriptor = open_temporary(concat(directory.empty() ? "/tmp" : directory, "/trireme-bench-"), path_);
    if (descriptor < 0) throw IoError(concat(path_, ": cannot be created: ", std::strerror(errno), "; set TMPDIR to another directory"));
    ::close(descriptor);
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace trireme
