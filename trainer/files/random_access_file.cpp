#include "trainer/files/random_access_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/mapped_file.h"

namespace trireme {

RandomAccessFile::RandomAccessFile(const std::string& path) : path_(path) {
  const OpenedFile opened = open_regular_file(path, Links::kFollow);
  descriptor_ = opened.descriptor;
  bytes_ = opened.bytes;
}

RandomAccessFile::RandomAccessFile(RandomAccessFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, 0)), descriptor_(std::exchange(other.descriptor_, -1)) {}

RandomAccessFile::~RandomAccessFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void RandomAccessFile::read(int64_t begin, int64_t count, void* out) const {
  TRIREME_CHECK(begin >= 0 && count >= 0 && begin <= bytes_ - count, path_, ": bytes [", begin, ", +", count, ") of ", bytes_);
  auto* to = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, to, static_cast<size_t>(count), begin);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error(path_, "cannot be read", errno);
    if (got == 0) {
      struct stat status {};
      const int64_t now = ::fstat(descriptor_, &status) == 0 ? static_cast<int64_t>(status.st_size) : 0;
      throw DataError(concat(path_, ": truncated while in use: ", now, " bytes, but ", bytes_, " when it was opened"));
    }
    to += got;
    begin += got;
    count -= got;
  }
}

}  // namespace trireme
