#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// A directory of mode 0700 with a name that nobody can foresee, locked by the kernel and removed with this object; what processes that were killed have left
/// of its kind in the same place is removed when it is made.
class OwnDirectory {
 public:
  explicit OwnDirectory(const std::filesystem::path& place);
  ~OwnDirectory();
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;

  /// Empty where none could be made; then errno says why.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

/// Where Open MPI keeps what its processes on this host share: its session directory, in /dev/shm or, where that has no room, below TMPDIR; and where all
/// ranks run here their memory segments, in /dev/shm. Its own choices have names that another user can take beforehand, and a killed mpirun leaves megabytes
/// in them for every rank. Of several hosts this is about the one where mpirun runs, and there the ranks, too, find the directory in TMPDIR. A place that the
/// user has chosen through Open MPI's own variables stays.
class JobDirectory {
 public:
  /// Errors: IoError where there is no place for a session directory.
  JobDirectory(const LaunchEnvironment& environment, bool one_host);
  ~JobDirectory();
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

 private:
  /// Tells Open MPI. `before`: the variable's value that comes back in the end. False: there is no such directory.
  bool name(const char* variable, const OwnDirectory& directory, const std::optional<std::string>& before);

  std::optional<OwnDirectory> in_memory_, on_disk_;
  std::vector<std::pair<const char*, std::optional<std::string>>> named_;  ///< variables, with the values they get back in the end
};

}  // namespace trireme
