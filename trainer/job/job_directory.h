#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// A temporary directory of mode 0700 with an unpredictable name, protected by flock and removed by the destructor. The constructor also removes
/// directories of this kind in the same place whose owners were killed.
class LockedTemporaryDirectory {
 public:
  explicit LockedTemporaryDirectory(const std::filesystem::path& place);
  ~LockedTemporaryDirectory();
  LockedTemporaryDirectory(const LockedTemporaryDirectory&) = delete;
  LockedTemporaryDirectory& operator=(const LockedTemporaryDirectory&) = delete;

  /// Empty if the directory could not be created; errno then has the reason.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

/// Private directories for the files that Open MPI processes of this host share: the session directory, in /dev/shm or, if that lacks space, below
/// TMPDIR; and, if all ranks run here, the shared-memory segments, in
/// /dev/shm or, if that lacks space for those of `ranks` ranks, below TMPDIR. Open MPI's default names can be claimed by another user beforehand,
/// and a killed mpirun leaves megabytes per rank there. With several hosts only the host of mpirun is affected, whose ranks get the directory as
/// TMPDIR. Directories that the user sets through Open MPI's own variables are respected.
class JobDirectory {
 public:
  /// Errors: IoError if no session directory can be created.
  JobDirectory(const LaunchEnvironment& environment, bool one_host, int ranks = 1);
  ~JobDirectory();
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

  /// What the user should know of it: the segments are not in memory. Empty: nothing.
  const std::string& note() const { return note_; }

 private:
  /// Sets `variable` to the directory. `before`: the value that the destructor restores. Returns false if the directory does not exist.
  bool name(const char* variable, const LockedTemporaryDirectory& directory, const std::optional<std::string>& before);

  std::optional<LockedTemporaryDirectory> in_memory_, on_disk_;
  std::string note_;
  std::vector<std::pair<const char*, std::optional<std::string>>> named_;  ///< variables set, with the values to restore
};

}  // namespace trireme
