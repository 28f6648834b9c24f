#include "trainer/resilience/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <iostream>
#include <limits>
#include <random>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/files/printable.h"
#include "trainer/machine/environment.h"

namespace trireme {
namespace {

struct Holder {
  int64_t token = 0;
  std::string name;  ///< "process 12 on host, start 81985529216486895"
};

/// Parses "TOKEN process PID on HOST, start NUMBER\n"; an empty or incomplete file is token 0.
Holder read_holder(int file) {
  std::array<char, 512> bytes{};
  const ssize_t count = ::pread(file, bytes.data(), bytes.size(), 0);
  const std::string_view text(bytes.data(), count > 0 ? static_cast<size_t>(count) : 0);
  Holder holder;
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, holder.token);
  if (error != std::errc() || next == end || text.back() != '\n' || holder.token < 0) return {};
  holder.name = printable({next + 1, end - 1});
  return holder;
}

/// The next token. After the maximum counting restarts at 1, as in a recreated run directory: Holder::name tells holders of equal tokens apart.
int64_t token_after(int64_t token) { return token == std::numeric_limits<int64_t>::max() ? 1 : token + 1; }

/// Opens only a regular file, never a link or a pipe that would block. Returns -1 with errno on failure.
int open_to_read(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat status {};
  if (file < 0 || (::fstat(file, &status) == 0 && S_ISREG(status.st_mode))) return file;
  ::close(file);
  errno = EINVAL;
  return -1;
}

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int error) {
  throw IoError(concat(path.string(), ": ", what, ": ", why_not_writable(error)));
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& run_directory, const std::function<bool()>& may_wait, const LockWords& words)
    : path_(run_directory / "run.lock") {
  // A disconnected job notices within fifteen seconds; a file server drops the locks of a lost host after a minute or two.
  constexpr auto kHere = std::chrono::seconds(15), kElsewhere = std::chrono::seconds(120);
  try {
    make_directories(run_directory);
  } catch (const IoError& refused) {
    throw IoError(concat(words.key, "=", run_directory.string(), ": cannot be written: ", refused.what()));
  }
  file_ = try_open_writable(path_, Existing::kChanged, 0600);
  if (file_ < 0 && (errno == ELOOP || errno == EINVAL || errno == EMLINK)) fail(path_, "cannot be locked", errno);
  if (file_ < 0) throw IoError(concat(words.key, "=", run_directory.string(), ": cannot be written: ", why_not_writable(errno)));
  ::fchmod(file_, 0600);  // whoever may read a file can lock it; an earlier version made it readable for others
  try {
    const auto begin = std::chrono::steady_clock::now();
    bool told = false;
    while (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) fail(path_, "cannot be locked", errno);
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (may_wait && !may_wait())
        throw Error(ExitCode::kRequeue, concat(words.key, "=", run_directory.string(), ": stopped on request while waiting for ",
                                               read_holder(file_).name, " to release the lock"));
      if (!may_wait || waited > (read_holder(file_).name.find(concat(" on ", host_name(), ",")) == std::string::npos ? kElsewhere : kHere))
        throw ConfigError(concat(words.key, "=", run_directory.string(), ": ", words.holder, " (", read_holder(file_).name,
                                 "); allowed a different directory, or wait until it has ended"));
      if (!told && waited > std::chrono::seconds(1)) {
        std::cerr << concat(words.key, "=", run_directory.string(), ": waiting for ", read_holder(file_).name, " to release it\n");
        told = true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    token_ = token_after(read_holder(file_).token);
    std::random_device random;
    holder_ = concat("process ", ::getpid(), " on ", host_name(), ", start ", (static_cast<uint64_t>(random()) << 32) | random());
    const std::string text = concat(token_, " ", holder_, "\n");
    // Overwrite, then truncate, so that the token never decreases: a crash in between only leaves too long a name.
    if (::pwrite(file_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
        ::ftruncate(file_, static_cast<off_t>(text.size())) != 0 || ::fsync(file_) != 0)
      fail(path_, "cannot be written", errno);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

RunLock::~RunLock() { ::close(file_); }

void RunLock::check() const {
  // Open by name instead of using file_: after a reconnection the file server may have a different file there.
  const int file = open_to_read(path_);
  if (file < 0) fail(path_, "cannot be read", errno);
  const Holder holder = read_holder(file);
  ::close(file);
  if (holder.token != token_ || holder.name != holder_)
    throw IoError(concat(path_.string(), ": this job no longer holds the lock on the run directory; ", holder.name, " has taken it over"));
}

}  // namespace trireme
