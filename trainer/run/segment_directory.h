#pragma once
#include <filesystem>

namespace trireme {

/// Where the ranks of one host keep the memory they share: a directory of this job's own, which goes with this object. Open MPI leaves its segments in /dev/shm when
/// mpirun is killed, megabytes of memory for every rank. What launchers that were killed have left is removed by the next. Where the user has
/// chosen a place, or there is no /dev/shm, it does nothing.
class SegmentDirectory {
 public:
  SegmentDirectory();
  ~SegmentDirectory();
  SegmentDirectory(const SegmentDirectory&) = delete;
  SegmentDirectory& operator=(const SegmentDirectory&) = delete;

 private:
  std::filesystem::path path_;  ///< empty: nothing was made
  int lock_ = -1;               ///< held while this job lives
};

}  // namespace trireme
