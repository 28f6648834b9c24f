#pragma once
// Inputs of a build: files, pipes, and the files below directories.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// A file, a pipe or standard input.
struct Input {
  std::string path;     ///< or "standard input"
  bool named = true;    ///< given on the command line, as opposed to found in a directory
  bool regular = true;  ///< false: a pipe or device, of unknown length, that can be read only once
  int64_t bytes = 0;    ///< size of a regular file
  int64_t changed = 0;  ///< modification time, in nanoseconds
  bool standard_input = false;
};

/// True if the file name has an extension of JSON lines.
bool has_json_lines(const std::string& path);

/// Calls `visit` for each path in order. "-" is standard input. For a directory, visits all regular files below it in byte order of their paths,
/// except hidden ones (names that begin with a dot). Memory use grows with the largest single directory only.
/// Errors: MissingFileError; IoError for unreadable files; DataError for an empty file given by name, a link to a directory, a token directory, a
/// directory of Hugging Face datasets, and those of check_text_file.
void for_each_input(const std::vector<std::string>& paths, const std::function<void(const Input&)>& visit);

/// Totals over the inputs that for_each_input visits.
struct InputSurvey {
  int64_t files = 0;
  int64_t bytes = 0;
  bool regular = true;  ///< all inputs are regular files
  std::string digest;   ///< of paths, sizes and modification times
};
InputSurvey survey_inputs(const std::vector<std::string>& paths);

/// Reads one input sequentially.
class InputReader {
 public:
  /// Starts at byte `offset` of a regular file, or at the current position of a pipe. Errors: MissingFileError, IoError.
  InputReader(const Input& input, int64_t offset);
  ~InputReader();
  InputReader(const InputReader&) = delete;
  InputReader& operator=(const InputReader&) = delete;

  /// Appends to `text` until it has `bytes` bytes. Returns false if the input ended first. Calls `interrupted` regularly; it may throw.
  /// Errors: IoError; DataError if the size of a regular file has changed.
  bool fill(std::string& text, size_t bytes, const std::function<void()>& interrupted);

 private:
  const Input input_;
  int descriptor_;
  int64_t offset_;
};

}  // namespace trireme
