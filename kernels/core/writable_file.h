#pragma once
// The only place where the program opens files for writing and makes directories; tests/unit/file_rules_test.cpp finds any other.
//
// A directory that somebody else has made, such as the run directory from an archive, may have anything under the names that a run writes. The rule:
//   - No link is followed, and nothing but a regular file is opened: a pipe, a device, a socket or a directory is refused without waiting.
//   - A file that has a second name (a hard link) is not changed, because the second name may be that of another file of the user.
//   - Temporary files and files that are mapped are created anew.
//   - A directory inside of such a directory is no link either, because what is made, renamed and removed in it would be elsewhere.
// A path that the user names (an option, a key of the configuration) may go through links to directories. Files of such names are replaced by a
// rename (trainer/files/durable_file.h): where the name is a link, the link is replaced, and what it points to stays as it was.
// The rule holds for what a directory contains when it is opened. It does not protect from a user who may write there at the same time.
#include <sys/types.h>

#include <filesystem>
#include <string>

namespace trireme {

/// What becomes of a regular file that has the name already.
enum class Existing : uint8_t {
  kRefused,   ///< the file must be new
  kReplaced,  ///< removed first; the file is always a new one
  kAppended,  ///< it grows: every write goes to its end
  kChanged,   ///< it is read and written in place
};

/// Opens a file for reading and writing. Returns the descriptor, which is closed on exec, or -1 with errno set: to ELOOP, EINVAL or EMLINK where the
/// rule above refuses it. why_not_writable() has words for errno.
int try_open_writable(const std::filesystem::path& path, Existing existing, mode_t mode = 0644);
std::string why_not_writable(int error);

/// The same. Errors: IoError "cannot write PATH: reason".
int open_writable(const std::filesystem::path& path, Existing existing, mode_t mode = 0644);

/// Creates a file with a new name that begins with `prefix`, readable for its user only. Returns the descriptor, or -1 with errno set.
int open_temporary(const std::string& prefix, std::string& path);
/// Creates a directory in the same way; an empty path with errno set if that is not possible.
std::filesystem::path make_temporary_directory(const std::string& prefix);

/// Makes a directory and its parents, for a path that the user names: links to directories are followed. Errors: IoError.
void make_directories(const std::filesystem::path& path);
/// Makes the directories of the relative path `below` in `directory`, of which none may be a link. Returns the innermost one. Errors: IoError.
std::filesystem::path make_directories_in(const std::filesystem::path& directory, const std::filesystem::path& below, mode_t mode = 0777);

}  // namespace trireme
