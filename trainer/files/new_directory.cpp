#include "trainer/files/new_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
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
  if (path.empty()) return path;  // absolute() throws for an empty path
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

/// Marks a PATH.partial as created by this class, so that it may be removed.
constexpr const char* kMarker = ".trireme-partial";

/// Removes everything except the marker, so that if this process is killed, the next one may remove the rest.
void clear(const fs::path& partial, std::error_code& error) {
  for (fs::directory_iterator item(partial, error); !error && item != fs::directory_iterator(); item.increment(error))
    if (item->path().filename() != kMarker) fs::remove_all(item->path(), error);
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
  make_directories(path_.parent_path());
  make_directories_in(path_.parent_path(), partial_.filename());
  lock_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (lock_ < 0) fail("open", partial_, errno);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(lock_);
    if (reason == EWOULDBLOCK) refuse("is being written by another process");
    fail("lock", partial_, reason);
  }
  try {
    if (stands(path_)) refuse("exists; remove it or name another directory");  // another process has just finished it
    const bool marked = stands(partial_ / kMarker);
    if (!marked && !fs::is_empty(partial_, error) && !error)
      refuse(
          concat("is written as ", partial_.string(), ", which exists and was not created by Trireme; remove it or name another directory").c_str());
    if (!error) clear(partial_, error);
    if (error) fail("clear", partial_, error.value());
    if (!marked) mark();
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

void NewDirectory::mark() {
  const int marker = try_open_writable(partial_ / kMarker, Existing::kChanged);
  if (marker >= 0 && ::close(marker) == 0) return;
  const int reason = errno;
  ::unlink((partial_ / kMarker).c_str());
  ::rmdir(partial_.c_str());
  fail("mark", partial_, reason);
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  if (!committed_) {
    clear(partial_, ignored);
    fs::remove_all(partial_, ignored);
  }
  ::close(lock_);
}

void NewDirectory::commit() {
  sync_directory(partial_);
  if (::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno != EINVAL || stands(path_)) fail("rename to", path_, errno == EINVAL ? EEXIST : errno);
    if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("rename to", path_, errno);  // a file system without RENAME_NOREPLACE
  }
  committed_ = true;
  // Removed last: a kill before this leaves a complete directory with an extra empty file. Removed earlier, it would leave a PATH.partial without a
  // marker.
  if (::unlink((path_ / kMarker).c_str()) != 0 && errno != ENOENT) fail("remove", path_ / kMarker, errno);
  sync_directory(path_.parent_path());
}

}  // namespace trireme
