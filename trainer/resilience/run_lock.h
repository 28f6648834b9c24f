#pragma once
// Mutual exclusion of jobs in a run directory: a job that was presumed dead must not write there later.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace trireme {

/// Words of the messages about a directory that is in use.
struct LockWords {
  std::string key = "run.directory";                     ///< what names the directory
  std::string holder = "another job is training there";  ///< who uses it
};

/// Holds an flock on `<run_directory>/run.lock`, which is created if missing. The kernel releases the lock however its holder dies, so no timeout for
/// stale locks is needed. Each holder writes a token greater than all previous ones (a fencing token): a job that lost the lock unnoticed, because
/// its host was disconnected from the file server, finds another token there and must not publish.
class RunLock {
 public:
  /// Takes the lock. While another job holds it, waits as long as `may_wait` returns true, up to 15 s for a job on this host and two minutes for one
  /// on another host. Without `may_wait` it does not wait. Errors: ConfigError naming host and process of the job that holds the lock; Error with
  /// kRequeue if `may_wait` returned false; IoError.
  explicit RunLock(const std::filesystem::path& run_directory, const std::function<bool()>& may_wait = {}, const LockWords& words = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  int64_t token() const { return token_; }
  /// Checks that this job still holds the lock. Errors: IoError if another job has taken it since.
  void check() const;

 private:
  std::filesystem::path path_;
  int file_ = -1;
  int64_t token_ = 0;
  std::string holder_;  ///< process, host and start number: tells holders of equal tokens apart, as counting restarts if the directory is recreated
};

}  // namespace trireme
