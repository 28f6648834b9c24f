#include "trainer/files/new_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/core/check.h"
#include "trainer/files/durable_file.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

bool stands(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

/// Without a trailing slash, so that PATH.partial is a sibling.
fs::path normalise(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

[[noreturn]] void fail(const char* verb, const fs::path& path, int error) {
  throw IoError(concat("cannot ", verb, " ", path.string(), ": ", std::strerror(error)));
}

}  // namespace

NewDirectory::NewDirectory(const fs::path& path, const std::string& option) : path_(normalise(path)), partial_(path_.string() + ".partial") {
  const auto refuse = [&](const char* what) { throw ConfigError(concat(option, "=", path.string(), ": ", what)); };
  if (path.empty()) refuse("must name a directory");
  if (stands(path_)) refuse("exists; remove it or name another directory");
  std::error_code error;
  fs::create_directories(partial_, error);
  if (error) fail("make", partial_, error.value());
  lock_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (lock_ < 0) fail("open", partial_, errno);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(lock_);
    if (reason == EWOULDBLOCK) refuse("is being written by another process");
    fail("lock", partial_, reason);
  }
  try {
    if (stands(path_)) refuse("exists; remove it or name another directory");  // that process was just done
    for (const auto& item : fs::directory_iterator(partial_)) fs::remove_all(item.path());
  } catch (const fs::filesystem_error& failure) {
    ::close(lock_);
    fail("clear", partial_, failure.code().value());
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(partial_, ignored);
  ::close(lock_);
}

void NewDirectory::commit() {
  sync_directory(partial_);
  if (::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno != EINVAL || stands(path_)) fail("rename to", path_, errno == EINVAL ? EEXIST : errno);
    if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("rename to", path_, errno);  // a file system without RENAME_NOREPLACE
  }
  committed_ = true;
  sync_directory(path_.parent_path());
}

}  // namespace trireme
