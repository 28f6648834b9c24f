#pragma once
// What a rank leaves behind about itself in RUN/logs: a log, and the black box of its progress.
#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "parallel/comm/progress.h"
#include "trainer/resilience/black_box_file.h"
#include "trainer/resilience/fatal_signals.h"
#include "trainer/resilience/stacks.h"

namespace trireme {

class RankRecord {
 public:
  enum class Level : uint8_t { kInfo, kWarning, kError };

  /// `program`: the trireme binary, which reads stacks.
  explicit RankRecord(const char* program = "/proc/self/exe") : stack_writer_(program) {}
  ~RankRecord();
  RankRecord(const RankRecord&) = delete;
  RankRecord& operator=(const RankRecord&) = delete;

  Progress& progress() { return progress_; }

  /// Appends to RUN/logs/rank-0003.log from now on and, if `black_box`, creates RUN/logs/rank-0003.blackbox. Call it from the main thread once this
  /// job owns the run directory; before that write() has no effect. A file that cannot be made does not stop the run: returns the reason, else "".
  std::string open(const std::filesystem::path& run_directory, const BlackBoxOwner& owner, bool black_box);

  /// Appends a line with time and level to the log; further lines of `text` are indented. Thread-safe.
  void write(Level level, const std::string& text);

  /// Records how this rank ends, in log and black box. Later calls have no effect. Thread-safe.
  void end(Level level, const std::string& how);
  /// end() with an error, for a caller that then ends the process: returns after half a second, even if a lost file system blocks the log forever.
  void end_in_time(const std::string& how);

  /// Starts to write the stacks of all threads to the log, or to standard error before open(), and returns at once. No effect while another request
  /// is being served. Thread-safe.
  void request_stacks(const std::string& why);
  /// Once after each request has been served: the file that the stacks are in, or an empty text if they could not be read. Thread-safe.
  std::optional<std::string> take_stacks();

 private:
  void write_stacks(const std::string& why);

  // No lock is held while a file is written: on a lost file system that may last forever, and the Monitor must continue.
  std::atomic<int> log_ = -1;
  std::atomic<BlackBox*> written_box_ = nullptr;
  std::atomic<bool> ended_ = false;
  StackWriter stack_writer_;
  std::mutex stack_mutex_;  ///< of the next four
  std::string log_path_ = "standard error";
  std::thread stack_thread_;
  bool writes_stacks_ = false;
  std::optional<std::string> stacks_;
  std::optional<MappedBlackBox> box_;
  std::optional<FatalSignals> signals_;
  Progress progress_;  ///< destroyed first, because it writes into the black box
};

}  // namespace trireme
