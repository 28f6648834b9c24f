#pragma once
// What a build reads: files, pipes, and all that lies below directories.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// A file, a pipe or standard input.
struct Input {
  std::string path;     ///< "standard input" for that
  bool named = true;    ///< on the command line, not found in a directory
  bool regular = true;  ///< else a pipe or device: its length is unknown and it is read once
  int64_t bytes = 0;    ///< of a regular file
  int64_t changed = 0;  ///< when its content last was, in nanoseconds
  bool standard_input = false;
};

/// By the name of a file. Errors: DataError.
void check_not_packed(const std::string& path);
/// By the name of a file: each line is a JSON object with text in it.
bool has_json_lines(const std::string& path);

/// Calls `visit` for each path in order; "-" is standard input; for a directory, for all regular files below in byte order of their paths, without what is hidden (a name
/// that begins with a dot). Memory grows with the largest directory alone.
/// Errors: MissingFileError; IoError for what cannot be read; DataError for an empty file named, a link to a directory, a token directory, a
/// compressed file.
void for_each_input(const std::vector<std::string>& paths, const std::function<void(const Input&)>& visit);

/// What for_each_input visits, in short.
struct InputSurvey {
  int64_t files = 0;
  int64_t bytes = 0;
  bool regular = true;  ///< all of them
  std::string digest;   ///< of paths, sizes and times of change
};
InputSurvey survey_inputs(const std::vector<std::string>& paths);

/// One input, read in order.
class InputReader {
 public:
  /// From byte `offset` on; a pipe begins where it is. Errors: MissingFileError, IoError.
  InputReader(const Input& input, int64_t offset);
  ~InputReader();
  InputReader(const InputReader&) = delete;
  InputReader& operator=(const InputReader&) = delete;

  /// Appends to `text` until it holds `bytes`. False: it holds all there is. `interrupted` is called now and then, and may throw.
  /// Errors: IoError; DataError where a regular file's length is not what it was.
  bool fill(std::string& text, size_t bytes, const std::function<void()>& interrupted);

 private:
  const Input input_;
  int descriptor_;
  int64_t offset_;
};

}  // namespace trireme
