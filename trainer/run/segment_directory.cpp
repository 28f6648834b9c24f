#include "trainer/run/segment_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kVariable = "OMPI_MCA_btl_vader_backing_directory";
constexpr const char* kPlace = "/dev/shm";
constexpr const char* kPrefix = "trireme-mpi-";

/// A lock of the kernel tells the dead from the living, in other containers that share the place too.
void remove_abandoned() {
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(kPlace, ignored)) {
    if (!item.path().filename().string().starts_with(kPrefix)) continue;
    const int lock = ::open((item.path() / "lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (lock < 0) continue;  // just being made, or another user's
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) fs::remove_all(item.path(), ignored);
    ::close(lock);
  }
}

/// False: between its making and its locking another launcher took it for abandoned.
bool take(int lock, const fs::path& path) {
  struct stat held {
  }, there{};
  return ::flock(lock, LOCK_EX | LOCK_NB) == 0 && ::fstat(lock, &held) == 0 && ::stat(path.c_str(), &there) == 0 && held.st_ino == there.st_ino;
}

}  // namespace

SegmentDirectory::SegmentDirectory() {
  remove_abandoned();
  if (std::getenv(kVariable) != nullptr) return;
  for (int tries = 0; tries < 100 && path_.empty(); ++tries) {
    std::string name = std::string(kPlace) + "/" + kPrefix + "XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) return;
    const fs::path lock = fs::path(name) / "lock";
    lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_ < 0 || take(lock_, lock)) {  // without a lock it is left alone
      path_ = name;
    } else {
      ::close(std::exchange(lock_, -1));
    }
  }
  if (!path_.empty()) ::setenv(kVariable, path_.c_str(), 1);
}

SegmentDirectory::~SegmentDirectory() {
  if (path_.empty()) return;
  ::unsetenv(kVariable);
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace trireme
