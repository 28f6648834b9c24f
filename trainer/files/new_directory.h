#pragma once
#include <filesystem>
#include <string>

namespace trireme {

/// A directory created atomically: filled as PATH.partial, locked against other processes, and renamed to PATH by commit(). Destruction without
/// commit() removes PATH.partial. If a process was killed, the next one that writes PATH recognises its PATH.partial by a marker file and removes
/// its content; a PATH.partial without the marker is refused unless it is empty.
class NewDirectory {
 public:
  /// `option` names the command-line option in messages. Errors: ConfigError if `path` exists, another process is writing it, or PATH.partial was
  /// not created by this class; IoError.
  NewDirectory(const std::filesystem::path& path, const std::string& option);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }        ///< absolute
  const std::filesystem::path& partial() const { return partial_; }  ///< write the files here
  /// Renames durably. Errors: IoError, also if `path` has been created in the meantime.
  void commit();

 private:
  void mark();

  std::filesystem::path path_, partial_;
  int lock_ = -1;  ///< locked descriptor of partial_
  bool committed_ = false;
};

}  // namespace trireme
