#pragma once
// One job at a time in a run directory, and none that was thought dead writes there later.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace trireme {

/// Holds <run_directory>/run.lock (made where missing), a lock of the kernel: it goes with its holder however that dies, so a stale one is never judged by its
/// age. Each holder writes a token greater than all before it; a job that lost the lock without noticing (its host was cut off from the file
/// server) finds another's token there and may no longer publish.
class RunLock {
 public:
  /// Takes the lock. While another job holds it, waits for that job to end as long as `may_wait` returns true: at most 15 s for a job of this host, two
  /// minutes for another host's. Without `may_wait` it does not wait. Errors: ConfigError naming host and process of the job that trains there; Error with
  /// kRequeue if `may_wait` has returned false; IoError.
  explicit RunLock(const std::filesystem::path& run_directory, const std::function<bool()>& may_wait = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  int64_t token() const { return token_; }
  /// Errors: IoError if another job has held the lock since.
  void check() const;

 private:
  std::filesystem::path path_;
  int file_ = -1;
  int64_t token_ = 0;
  std::string holder_;  ///< and which process at which start: a run directory that was removed begins to count anew
};

}  // namespace trireme
