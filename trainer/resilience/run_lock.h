#pragma once
// One job at a time in a run directory, and none that was thought dead writes there later.
#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

/// Holds <run_directory>/run.lock (made where missing), a lock of the kernel: it goes with its holder however that dies, so a stale one is never judged by its
/// age. Each holder writes a token greater than all before it; a job that lost the lock without noticing (its host was cut off from the file
/// server) finds another's token there and may no longer publish.
class RunLock {
 public:
  /// Waits for a job that is on its way out, 15 s on this host, two minutes for another. Errors: ConfigError naming host and process while another job trains there; IoError.
  /// `patient` false: does not wait.
  explicit RunLock(const std::filesystem::path& run_directory, bool patient = true);
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
