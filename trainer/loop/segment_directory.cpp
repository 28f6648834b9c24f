#include "trainer/loop/segment_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

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

}  // namespace

SegmentDirectory::SegmentDirectory() {
  remove_abandoned();
  std::string name = std::string(kPlace) + "/" + kPrefix + "XXXXXX";
  if (std::getenv(kVariable) != nullptr || ::mkdtemp(name.data()) == nullptr) return;
  path_ = name;
  lock_ = ::open((path_ / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ >= 0) ::flock(lock_, LOCK_EX | LOCK_NB);
  ::setenv(kVariable, name.c_str(), 1);
}

SegmentDirectory::~SegmentDirectory() {
  if (path_.empty()) return;
  ::unsetenv(kVariable);
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace trireme
