#include "trainer/files/lfs_pointer.h"

#include "kernels/core/check.h"

namespace trireme {

bool is_lfs_pointer(std::string_view start) { return start.starts_with("version https://git-lfs.github.com/spec/v"); }

void check_no_lfs_pointer(std::string_view start, int64_t bytes, const std::string& path) {
  if (bytes <= kLongestLfsPointer && is_lfs_pointer(start))
    throw DataError(
        concat(path, ": is a Git LFS pointer, not the file itself; fetch the file with git lfs pull in its repository, or download it again"));
}

}  // namespace trireme
