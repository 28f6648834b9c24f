#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>

#include "trainer/files/descriptor.h"

namespace trireme {

/// A file that grows by whole records, each written immediately. A record that cannot be written is kept and tried again with the next one, so the
/// file contains whole records in order, also on a disk that was full for a while.
class AppendFile {
 public:
  enum class Open : uint8_t { kExistingOrNew, kNew };
  /// Errors: IoError; also for a link, a pipe, or with kNew an existing file.
  explicit AppendFile(std::filesystem::path path, Open open = Open::kExistingOrNew);

  void append(std::string record);
  /// Why the last records could not be written; empty if all have been.
  const std::string& error() const { return error_; }
  /// Flushes to stable storage. Thread-safe.
  void sync() const;
  /// The same for records that must not be lost. Errors: IoError if one could not be written or not flushed.
  void sync_all() const;
  /// Errors: IoError if another program has made the file longer or shorter.
  void check_unchanged() const;
  /// Size of the file as this object has found or left it.
  int64_t bytes() const { return written_; }

 private:
  bool write_first();

  std::filesystem::path path_;
  const Descriptor file_;
  int64_t written_ = 0;              ///< bytes of whole records in the file
  std::deque<std::string> waiting_;  ///< records not yet written
  std::string error_;
};

}  // namespace trireme
