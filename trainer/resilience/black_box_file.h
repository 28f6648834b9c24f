#pragma once
// The file of a rank's black box: a writer that maps it, and a reader that trusts nothing in it.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/black_box.h"

namespace trireme {

/// The rank that a black box belongs to.
struct BlackBoxOwner {
  int rank = 0, world = 1;
  std::string session;     ///< equal on all ranks of a job, different in every job
  std::string device;      ///< "cpu, 4 threads"
  std::string coordinate;  ///< "pipeline 0, replicate 0, shard 1, tensor 0"
};

/// A black box of this process in memory that is shared with a file.
class MappedBlackBox {
 public:
  /// Creates `path` with all its blocks, because a full disk would otherwise end the process at a later write to memory. An older black box there is
  /// renamed to previous_black_box(path). Errors: IoError, also if the file system cannot map files.
  MappedBlackBox(const std::filesystem::path& path, const BlackBoxOwner& owner);
  ~MappedBlackBox();
  MappedBlackBox(const MappedBlackBox&) = delete;
  MappedBlackBox& operator=(const MappedBlackBox&) = delete;

  BlackBox& box() { return *box_; }

 private:
  BlackBox* box_;
};

/// RUN/logs/rank-0003.blackbox.
std::filesystem::path black_box_path(const std::filesystem::path& run_directory, int rank);
/// RUN/logs/rank-0003.previous.blackbox: that of the start before.
std::filesystem::path previous_black_box(const std::filesystem::path& path);

/// A black box as a reader sees it. Texts are as they are in the file: printable() before a terminal shows them.
struct BlackBoxContents {
  BlackBoxOwner owner;
  int64_t pid = 0;
  uint64_t process_start = 0, pid_namespace = 0;
  std::string boot, host;
  int64_t begun = 0, ended = 0;  ///< nanoseconds since 1970; ended 0: the rank has not said how it ends
  std::string end;
  Progress::Snapshot last;
  int64_t moved = 0, action_began = 0;  ///< when `last` last changed, and when its action began
  struct Record : BlackBoxRecord {
    std::string words;  ///< `text` without its padding
  };
  std::vector<Record> records;  ///< oldest first; those that were being written are left out
};

/// Reads a black box, also while it is being written. Errors: MissingFileError, IoError; DataError if it is malformed or of another version.
BlackBoxContents read_black_box(const std::filesystem::path& path);
/// Decodes the bytes of the file `where`. Errors: DataError.
BlackBoxContents decode_black_box(std::string_view bytes, const std::string& where);

/// A process as /proc shows it.
enum class ProcessLife : uint8_t {
  kAlive,
  kStopped,  ///< by SIGSTOP or a debugger
  kGone,     ///< also a zombie, and a number that another process has taken over
  kUnknown,  ///< of another host or another PID namespace
};
ProcessLife life_of(const BlackBoxContents& box);

}  // namespace trireme
