#pragma once
// Drives the binary as a person would: from a fresh directory, by its command line, with everything it says and leaves behind caught.
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace trireme::test {

using Arguments = std::vector<std::string>;

/// A fresh directory, removed with all it holds.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  /// Is not removed, so that a failure can be looked into.
  void keep() { kept_ = true; }
  /// Every path below with its type, size and time of change: equal as long as nothing was written.
  std::vector<std::string> listing() const;
  /// What `before` and listing() do not share; empty where nothing was written.
  std::string changes_since(const std::vector<std::string>& before) const;

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

struct Outcome {
  int code = 0;  ///< 128 + n where signal n ended it
  std::string out, err;
  double seconds = 0;
};

/// A program under way in `directory`, with OMP_NUM_THREADS=1 (rank threads of several cases share the cores). Killed with its group after `limit`.
class Process {
 public:
  Process(const Arguments& command, const std::filesystem::path& directory, std::chrono::seconds limit = std::chrono::seconds(100));
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const;
  pid_t pid() const { return pid_; }
  /// Whether it has not ended; its children may outlive it.
  bool running() const;
  /// Reads on until standard output holds `text`. False: it ended first.
  bool wait_for(const std::string& text);
  Outcome wait();

 private:
  bool read_some();

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point deadline_;
  pid_t pid_ = -1;
  int pipes_[2] = {-1, -1};  ///< its standard output and standard error
  Outcome outcome_;
};

/// `trireme arguments...` to its end.
Outcome run(const TemporaryDirectory& directory, const Arguments& arguments);
/// `mpirun -n ranks trireme arguments...`, as a person types it.
Outcome run_under_mpirun(const TemporaryDirectory& directory, int ranks, const Arguments& arguments);
/// mpirun's own arguments up to the ranks' count, and the path of the binary: for command lines of another shape.
Arguments mpirun_command();
extern const std::string kBinary;

void write_file(const std::filesystem::path& path, const std::string& text);
std::string read_file(const std::filesystem::path& path);

/// Token directories "train" (1,000 sequences of 16 and some) and "validation", made by `data build` from text of this function's making.
void build_data(const TemporaryDirectory& directory);
/// run.yaml of a small model with dropout: 4 layers, 16 wide, steps of 8 sequences of 16 bytes; and the data it names.
void prepare_run(const TemporaryDirectory& directory);
extern const std::string kConfig;

/// Ends the test where the exit code is another one.
Outcome must(const Outcome& outcome, int code = 0);
Outcome must(const TemporaryDirectory& directory, const Arguments& arguments, int code = 0);
/// That exit code, and `words` in what the command said: on standard output where it is 0, else on standard error.
void check(const Outcome& outcome, int code, const std::string& words);

/// The run directory as --set arguments.
Arguments in(const std::string& run_directory);
/// `--set` before each.
Arguments sets(const Arguments& assignments);
Arguments operator+(Arguments a, const Arguments& b);
/// The degrees as --set arguments.
Arguments layout(int tensor, int pipeline, int data, int zero_stage);

/// The lines of metrics.jsonl; a line that is not a JSON object fails the test.
std::vector<nlohmann::json> metrics(const std::filesystem::path& run_directory);
/// Losses of steps 1 to `steps`, each of which must stand there exactly once and in order.
std::vector<double> losses(const std::filesystem::path& run_directory, size_t steps);
/// The last validation_loss.
double validation_loss(const std::filesystem::path& run_directory);

/// Processes whose command line holds `text`.
std::vector<pid_t> processes_with(const std::string& text);

}  // namespace trireme::test
