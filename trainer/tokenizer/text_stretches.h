#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace trireme {

/// Where a text may be cut, as Tokenizer::cut.
using Cut = std::function<size_t(std::string_view)>;

/// One document, from a file or a pipe, in stretches that can be tokenized apart. Memory does not grow with it.
class TextStretches {
 public:
  /// `path`: "-" is standard input. Errors: MissingFileError, IoError.
  TextStretches(const std::string& path, Cut cut);
  ~TextStretches();
  TextStretches(const TextStretches&) = delete;
  TextStretches& operator=(const TextStretches&) = delete;

  /// About a MiB; more where the text offers no place to cut, less at its end, behind which it is empty.
  /// Errors: IoError; DataError where 64 MiB in a row have no such place.
  std::string next();

 private:
  /// Appends to rest_ until it holds `bytes` or the text ends.
  void fill(size_t bytes);

  std::string path_;
  Cut cut_;
  int descriptor_;
  size_t position_ = 0;  ///< of rest_ in the text
  std::string rest_;
  bool ended_ = false;
};

}  // namespace trireme
