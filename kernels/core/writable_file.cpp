#include "kernels/core/writable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "kernels/core/check.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

/// The errno that refuses a file of this kind; 0 if it may be opened.
int refusal_of(const struct stat& status, Existing existing) {
  if (S_ISLNK(status.st_mode)) return ELOOP;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  if (!S_ISREG(status.st_mode)) return EINVAL;
  if (existing == Existing::kRefused) return EEXIST;
  return existing != Existing::kReplaced && status.st_nlink > 1 ? EMLINK : 0;
}

}  // namespace

int try_open_writable(const fs::path& path, Existing existing, mode_t mode) {
  struct stat status {};
  // Looks first, because opening a device may already have an effect. What is opened is looked at again.
  const bool there = ::lstat(path.c_str(), &status) == 0;
  if (const int error = there ? refusal_of(status, existing) : 0; error != 0) {
    errno = error;
    return -1;
  }
  const bool is_new = existing == Existing::kRefused || existing == Existing::kReplaced;
  if (there && existing == Existing::kReplaced && ::unlink(path.c_str()) != 0 && errno != ENOENT) return -1;
  const int flags = (is_new ? O_EXCL : 0) | (existing == Existing::kAppended ? O_APPEND : 0);
  const int file = ::open(path.c_str(), flags | O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode);
  if (file < 0 || is_new) return file;
  int error = ::fstat(file, &status) == 0 ? refusal_of(status, existing) : errno;
  if (error == 0) return file;
  ::close(file);
  errno = error;
  return -1;
}

std::string why_not_writable(int error) {
  switch (error) {
    case ELOOP: return "is a symbolic link; expected the file itself";
    case EINVAL:
    case ENXIO: return "is not a regular file";
    case EMLINK: return "has a second name (a hard link), whose file would change with it; copy it to a file of its own";
    default: return std::strerror(error);
  }
}

int open_writable(const fs::path& path, Existing existing, mode_t mode) {
  const int file = try_open_writable(path, existing, mode);
  if (file < 0) throw IoError(concat("cannot write ", path.string(), ": ", why_not_writable(errno)));
  return file;
}

int open_temporary(const std::string& prefix, std::string& path) {
  path = prefix + "XXXXXX";
  return ::mkostemp(path.data(), O_CLOEXEC);
}

fs::path make_temporary_directory(const std::string& prefix) {
  std::string path = prefix + "XXXXXX";
  return ::mkdtemp(path.data()) == nullptr ? fs::path() : fs::path(path);
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw IoError(concat("cannot create ", path.string(), ": ", error.message()));
}

fs::path make_directories_in(const fs::path& directory, const fs::path& below, mode_t mode) {
  fs::path made = directory;
  for (const fs::path& name : below) {
    made /= name;
    struct stat status {};
    // Looks first: what is there needs no space. Another process may make or remove the directory between the two calls.
    while (::lstat(made.c_str(), &status) != 0)
      if (errno != ENOENT || (::mkdir(made.c_str(), mode) != 0 && errno != EEXIST))
        throw IoError(concat("cannot create ", made.string(), ": ", std::strerror(errno)));
    if (S_ISLNK(status.st_mode)) throw IoError(concat("cannot write into ", made.string(), ": is a symbolic link; expected the directory itself"));
    if (!S_ISDIR(status.st_mode)) throw IoError(concat("cannot write into ", made.string(), ": is not a directory"));
  }
  return made;
}

}  // namespace trireme
