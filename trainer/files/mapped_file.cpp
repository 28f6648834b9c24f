#include "trainer/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/core/check.h"

namespace trireme {

void throw_file_error(const std::string& path, const char* what, int error_number) {
  const std::string message = concat(path, ": ", what, ": ", std::generic_category().message(error_number));
  if (error_number == ENOENT || error_number == ENOTDIR) throw MissingFileError(message);
  throw IoError(message);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // O_NONBLOCK: a named pipe must be refused, not waited for
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
  bytes_ = status.st_size;
  void* address = bytes_ == 0 ? nullptr : ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ, MAP_SHARED, file, 0);
  const int error_number = errno;
  ::close(file);
  if (address == MAP_FAILED) throw_file_error(path, "cannot map into memory", error_number);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes_));
}

}  // namespace trireme
