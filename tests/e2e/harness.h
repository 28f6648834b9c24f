#pragma once
// Runs the binary as a user would: from a new directory, by its command line. Captures its output and the files it writes.
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/places.h"

namespace trireme::test {

using Arguments = std::vector<std::string>;

/// A new directory, removed with its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  /// Keeps the directory, so that a failure can be investigated.
  void keep() { kept_ = true; }
  /// Every path below with type, inode, size and modification time: equal as long as nothing was written.
  std::vector<std::string> listing() const;
  /// The differences between `before` and listing(); empty if nothing was written.
  std::string changes_since(const std::vector<std::string>& before) const;

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

struct Outcome {
  int code = 0;  ///< 128 + n for death by signal n
  std::string out, err;
  double seconds = 0;
};

/// A program running in `directory`, with OMP_NUM_THREADS=1 and with MPI ranks that yield while they wait, because several test cases share the cores.
/// Otherwise, as long as a launcher's ranks are no more than the cores, each message costs a time slice. Its process group is killed after `limit`.
class Process {
 public:
  Process(const Arguments& command, const std::filesystem::path& directory, std::chrono::seconds limit = std::chrono::seconds(100));
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const;
  pid_t pid() const { return pid_; }
  /// True until the process has ended; its children may outlive it.
  bool running() const;
  /// Reads until standard output contains `text`. Returns false if the process ends first.
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

/// Runs `trireme arguments...` and waits for its end.
Outcome run(const TemporaryDirectory& directory, const Arguments& arguments);
/// Runs a shell command in which $T is the binary.
Outcome shell(const TemporaryDirectory& directory, const std::string& line);
/// Runs `mpirun -n ranks trireme arguments...`, as a user would type it.
Outcome run_under_mpirun(const TemporaryDirectory& directory, int ranks, const Arguments& arguments);
/// mpirun and its options up to the number of ranks: for other command lines. kBinary: path of the binary.
Arguments mpirun_command();
inline const std::string kBinary = trireme_program();

/// Arguments of most tests. Inline, so that they are initialised before the constants of the tests that use them.
inline const Arguments kTrain = {"train", "run.yaml"};

void write_file(const std::filesystem::path& path, const std::string& text);
std::string read_file(const std::filesystem::path& path);
/// Names of the files and directories in `directory`.
std::set<std::string> names_in(const std::filesystem::path& directory);

/// Token directories "train" (1,000 sequences of 16 and some) and "validation", built by `data build` from generated text.
void build_data(const TemporaryDirectory& directory);
/// run.yaml of a small model with dropout: 4 layers, 16 wide, steps of 8 sequences of 16 bytes; and its data.
void prepare_run(const TemporaryDirectory& directory);
extern const std::string kConfig;

/// The checkpoints of a run: {"step-00000002", ...}.
std::set<std::string> checkpoint_names(const std::filesystem::path& run_directory);

/// Ends the test unless the exit code is `code`.
Outcome must(const Outcome& outcome, int code = 0);
Outcome must(const TemporaryDirectory& directory, const Arguments& arguments, int code = 0);
/// Checks the exit code, and that the output contains `words`: standard output if `code` is 0, else standard error.
void check(const Outcome& outcome, int code, const std::string& words);
/// Checks the exit code, and that standard error contains `words`.
void check_error(const Outcome& outcome, int code, const std::string& words);
/// True if standard error contains `words`.
bool says(const Outcome& outcome, const std::string& words);
/// How often `text` contains `part`.
size_t count(const std::string& text, const std::string& part);

/// The run directory as --set arguments.
Arguments in(const std::string& run_directory);
/// `--set` before each assignment.
Arguments sets(const Arguments& assignments);
Arguments operator+(Arguments a, const Arguments& b);
/// Without evaluation.
inline const Arguments kNoEvaluation = sets({"training.evaluate.every=0", "data.validation=[]"});
inline const Arguments kTrainOnly = kTrain + kNoEvaluation;
/// `checkpoint export` to a Hugging Face folder.
Arguments exporting(const std::string& from, const std::string& to, const Arguments& more = {});
/// The degrees as --set arguments.
Arguments layout(int tensor, int pipeline, int data, int zero_stage);

/// The lines of metrics.jsonl; a line that is not a JSON object fails the test.
std::vector<nlohmann::json> metrics(const std::filesystem::path& run_directory);
/// Losses of steps 1 to `steps`; fails the test unless each step occurs exactly once and in order.
std::vector<double> losses(const std::filesystem::path& run_directory, size_t steps);
/// The last validation_loss.
double validation_loss(const std::filesystem::path& run_directory);

/// Processes whose command line contains `text`.
std::vector<pid_t> processes_with(const std::string& text);

}  // namespace trireme::test
