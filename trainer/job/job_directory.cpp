#include "trainer/job/job_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kMemory = "/dev/shm";
constexpr const char* kDirectoryPrefix = "trireme-mpi-";

/// Closes the descriptor in the destructor; -1 if opening failed.
struct Opened {
  explicit Opened(int descriptor) : file(descriptor) {}
  ~Opened() {
    if (file >= 0) ::close(file);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  const int file;
};

/// True if the file has this type and owner: any user can create files with these names in a shared directory.
bool is_own(const Opened& opened, mode_t type) {
  struct stat status {};
  return ::fstat(opened.file, &status) == 0 && (status.st_mode & S_IFMT) == type && status.st_uid == ::geteuid();
}

/// Removes directories whose owners have died: their flock is free, also across containers that share `place`. Never blocks on another process.
void remove_abandoned(const fs::path& place) {
  std::error_code ignored;
  for (fs::directory_iterator iterator(place, ignored), end; iterator != end; iterator.increment(ignored)) {
    const fs::directory_entry& item = *iterator;
    if (!item.path().filename().string().starts_with(kDirectoryPrefix)) continue;
    const Opened directory(::open(item.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!is_own(directory, S_IFDIR)) continue;
    const Opened lock(::openat(directory.file, "lock", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!is_own(lock, S_IFREG)) continue;  // without a lock file it is just being created
    if (::flock(lock.file, LOCK_EX | LOCK_NB) == 0) fs::remove_all(item.path(), ignored);
  }
}

/// Locks a new directory. Returns false if another launcher removed it as abandoned between creation and locking.
bool take(int lock, const fs::path& path) {
  struct stat held {
  }, there{};
  return ::flock(lock, LOCK_EX | LOCK_NB) == 0 && ::fstat(lock, &held) == 0 && ::stat(path.c_str(), &there) == 0 && held.st_ino == there.st_ino;
}

constexpr int64_t kSessionBytes = 32 << 20;  ///< session directories take about 8 MiB; containers often have only 64 MiB of shared memory in total
constexpr int64_t kSegmentBytes = 5 << 20;   ///< of a rank: 4 MiB, and what goes with it

int64_t free_bytes(const fs::path& place) {
  struct statvfs status {};
  return ::statvfs(place.c_str(), &status) == 0 ? static_cast<int64_t>(status.f_bavail * status.f_frsize) : 0;
}

}  // namespace

LockedTemporaryDirectory::LockedTemporaryDirectory(const fs::path& place) {
  remove_abandoned(place);
  for (int tries = 0; tries < 100; ++tries) {
    const fs::path name = make_temporary_directory((place / kDirectoryPrefix).string());
    if (name.empty()) return;
    const fs::path lock = name / "lock";
    lock_ = try_open_writable(lock, Existing::kChanged, 0600);
    if (lock_ < 0 || take(lock_, lock)) {  // a directory without a lock file is never removed as abandoned
      path_ = name;
      return;
    }
    ::close(std::exchange(lock_, -1));
  }
  errno = EBUSY;
}

LockedTemporaryDirectory::~LockedTemporaryDirectory() {
  if (path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

JobDirectory::JobDirectory(const LaunchEnvironment& environment, bool one_host, int ranks) {
  const std::string temporary = environment.temporary_directory.value_or("");
  std::error_code error;
  const fs::path place = fs::absolute(temporary.empty() ? "/tmp" : temporary, error);
  if (one_host && !environment.segments_are_placed) {
    const int64_t needed = ranks * kSegmentBytes, room = free_bytes(kMemory);
    if (room >= needed) {
      name(kSegmentsVariable, in_memory_.emplace(kMemory), {});
    } else if (name(kSegmentsVariable, on_disk_.emplace(place), {})) {
      note_ = concat("note: ", kMemory, " has ", room >> 20, " MiB free, and the shared memory of ", ranks, " ranks may take ", needed >> 20,
                     " MiB, so it is in ", place.string(),
                     ", which is slower; a container has more with --shm-size=1g, a host with mount -o remount,size=1g ", kMemory);
    }
  }
  if (environment.session_is_placed) return;  // Open MPI rejects conflicting session variables
  // With several hosts set TMPDIR, which stays on this host: Open MPI forwards its own variable to all hosts, and rejects its host-specific one
  // beside it.
  const char* const session = one_host ? kSessionVariable : kTemporaryVariable;
  const std::optional<std::string> before = one_host ? std::nullopt : environment.temporary_directory;
  const auto name_session = [&](const LockedTemporaryDirectory& directory) {
    if (one_host) name(kPrteSessionVariable, directory, {});
    return name(session, directory, before);
  };
  if (free_bytes(kMemory) >= kSessionBytes) {
    if (!in_memory_) in_memory_.emplace(kMemory);
    if (name_session(*in_memory_)) return;
  }
  if (!on_disk_) on_disk_.emplace(place);
  if (!name_session(*on_disk_))
    throw IoError(concat("TMPDIR=", place.string(), ": mpirun cannot create its files there: ", std::strerror(errno),
                         "; allowed a directory in which this user can create directories"));
}

bool JobDirectory::name(const char* variable, const LockedTemporaryDirectory& directory, const std::optional<std::string>& before) {
  if (directory.path().empty()) return false;
  named_.emplace_back(variable, before);
  ::setenv(variable, directory.path().c_str(), 1);
  return true;
}

JobDirectory::~JobDirectory() {
  for (const auto& [variable, before] : named_) before ? ::setenv(variable, before->c_str(), 1) : ::unsetenv(variable);
}

}  // namespace trireme
