#pragma once
#include <cstddef>
#include <string>

namespace trireme {

/// Columns of the terminal that `descriptor` is, else of the controlling terminal (a rank writes into a pipe to its launcher); 80 if unknown.
size_t terminal_columns(int descriptor);

/// A line of a terminal that is replaced in place, without escape sequences, which not every terminal (TERM=dumb) has.
class TerminalLine {
 public:
  /// The characters that replace the line by `text`, cut so that it does not wrap: \r would return only to the begin of the last row.
  std::string replace(const std::string& text, size_t columns);
  /// The characters that erase the line.
  std::string erase() { return replace("", length_ + 1) + '\r'; }
  bool empty() const { return length_ == 0; }
  /// Call after a newline: the line is kept, and the next one begins.
  void keep() { length_ = 0; }

 private:
  size_t length_ = 0;  ///< of the line as shown
};

}  // namespace trireme
