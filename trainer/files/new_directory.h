#pragma once
#include <filesystem>
#include <string>

namespace trireme {

/// A directory that stands under its name only once it is whole: it is filled as PATH.partial and renamed by commit(). Dropped before that it leaves nothing.
/// What a process that was killed has left as PATH.partial is removed by the next one that writes PATH, which knows it by a
/// marker in it; any other directory of that name is left alone unless it is empty.
class NewDirectory {
 public:
  /// Errors: ConfigError, which calls it `option`, where `path` exists or another process is filling it, or PATH.partial is
  /// somebody else's; IoError.
  NewDirectory(const std::filesystem::path& path, const std::string& option);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }        ///< absolute
  const std::filesystem::path& partial() const { return partial_; }  ///< where its files are to be written
  /// Durably. Errors: IoError, also where something has come to stand under the name meanwhile.
  void commit();

 private:
  void mark();

  std::filesystem::path path_, partial_;
  int lock_ = -1;  ///< the directory, opened and locked
  bool committed_ = false;
};

}  // namespace trireme
