#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

/// A clone without Git LFS has small text files in place of large ones. Their names are right, so every reader of files asks.
inline constexpr int64_t kLongestLfsPointer = 1024;  ///< Source: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
/// True if a file that begins with `start` is such a pointer.
bool is_lfs_pointer(std::string_view start);
/// Errors: DataError if a file of `bytes` bytes that begins with `start` is a pointer.
void check_no_lfs_pointer(std::string_view start, int64_t bytes, const std::string& path);

}  // namespace trireme
