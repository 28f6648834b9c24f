#pragma once
#include <string>

#include <nlohmann/json.hpp>

#include "trainer/files/descriptor.h"

namespace trireme {

/// Reads a file of objects, one a line. Another process may be appending to it or truncating it, which would end a process that has mapped it.
class JsonLines {
 public:
  /// Errors: those of open_regular_file.
  explicit JsonLines(const std::string& path);

  /// Reads the next line; false at the end of the file. Errors: IoError.
  bool next();
  /// The object of the line; null if it is cut, damaged, too long or too deep (json_line()).
  nlohmann::ordered_json& value() { return value_; }
  /// The line without its newline; the beginning of a line that is too long.
  const std::string& text() const { return text_; }
  /// False for the end of a file without a newline, and for a line that is too long.
  bool is_whole() const { return whole_; }

 private:
  bool read_text();
  bool fill();

  std::string path_;
  Descriptor file_;
  std::string buffer_, text_;
  size_t at_ = 0;
  bool whole_ = true;
  nlohmann::ordered_json value_;
};

}  // namespace trireme
