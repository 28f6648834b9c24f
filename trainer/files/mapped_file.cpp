#include "trainer/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/lfs_pointer.h"
#include "trainer/files/open_file_limit.h"

namespace trireme {

void throw_file_error(const std::string& path, const char* what, int error_number) {
  const std::string message = concat(path, ": ", what, ": ", std::generic_category().message(error_number));
  if (error_number == ENOENT || error_number == ENOTDIR) throw MissingFileError(message);
  throw IoError(message);
}

static int open_for_reading(const std::string& path, Links links) {
  // O_NONBLOCK: opening a named pipe must not block; the caller refuses it
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::kRefuse ? O_NOFOLLOW : 0);
  const int file = ::open(path.c_str(), flags);
  if (file >= 0 || errno != EMFILE) return file;
  raise_open_file_limit(UINT64_MAX);
  return ::open(path.c_str(), flags);
}

OpenedFile open_regular_file(const std::string& path, Links links) {
  const int file = open_for_reading(path, links);
  if (file < 0 && errno == ELOOP && links == Links::kRefuse) throw DataError(concat(path, ": is a symbolic link; expected the file itself"));
  // ENXIO: a socket, or a device without a driver
  if (file < 0 && errno == ENXIO) throw DataError(concat(path, ": not a regular file"));
  if (file < 0) throw_file_error(path, "cannot open", errno);
  struct stat status {};
  if (::fstat(file, &status) != 0) {
    const int error_number = errno;
    ::close(file);
    throw_file_error(path, "cannot read its size", error_number);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(file);
    throw DataError(concat(path, ": not a regular file"));
  }
  if (status.st_size > 0 && status.st_size <= kLongestLfsPointer) {
    std::string start(static_cast<size_t>(status.st_size), '\0');
    const ssize_t count = ::pread(file, start.data(), start.size(), 0);
    start.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));  // an unreadable file is reported by whoever reads it
    if (is_lfs_pointer(start)) ::close(file);
    check_no_lfs_pointer(start, status.st_size, path);
  }
  return {file, status.st_size};
}

int try_open_regular_file(const std::string& path) {
  try {
    return open_regular_file(path, Links::kFollow).descriptor;
  } catch (const Error&) {
    return -1;
  }
}

MappedFile::MappedFile(const std::string& path, Links links) : path_(path) {
  const auto [file, bytes] = open_regular_file(path, links);
  bytes_ = bytes;
  void* address = bytes_ == 0 ? nullptr : ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ, MAP_SHARED, file, 0);
  const int error_number = errno;
  ::close(file);
  if (address == MAP_FAILED) throw_file_error(path, "cannot map into memory", error_number);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

void MappedFile::load(int64_t begin, int64_t count) const {
  TRIREME_CHECK(begin >= 0 && count >= 0 && begin <= bytes_ - count, path_, ": bytes [", begin, ", +", count, ") of ", bytes_);
#ifdef MADV_POPULATE_READ
  const int64_t start = begin / ::sysconf(_SC_PAGESIZE) * ::sysconf(_SC_PAGESIZE);
  if (count == 0 || ::madvise(const_cast<std::byte*>(data_) + start, static_cast<size_t>(begin + count - start), MADV_POPULATE_READ) == 0) return;
  if (errno == EFAULT || errno == EHWPOISON) throw_file_error(path_, "cannot be read", EIO);
#endif
}

void MappedFile::drop(int64_t begin, int64_t count) const {
  TRIREME_CHECK(begin >= 0 && count >= 0 && begin <= bytes_ - count, path_, ": bytes [", begin, ", +", count, ") of ", bytes_);
  const int64_t start = begin / ::sysconf(_SC_PAGESIZE) * ::sysconf(_SC_PAGESIZE);
  if (count > 0) ::madvise(const_cast<std::byte*>(data_) + start, static_cast<size_t>(begin + count - start), MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes_));
}

}  // namespace trireme
