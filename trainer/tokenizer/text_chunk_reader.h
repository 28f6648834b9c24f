#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace trireme {

/// Returns where a text may be cut; see Tokenizer::cut.
using Cut = std::function<size_t(std::string_view)>;

/// Reads one document from a file or a pipe in stretches that can be tokenized independently. Memory use does not grow with the document.
class TextChunkReader {
 public:
  /// `path` "-" is standard input. Errors: MissingFileError, IoError.
  TextChunkReader(const std::string& path, Cut cut);
  ~TextChunkReader();
  TextChunkReader(const TextChunkReader&) = delete;
  TextChunkReader& operator=(const TextChunkReader&) = delete;

  /// The next stretch, of about 1 MiB: longer if the text has no place to cut, shorter at the end of the text; empty after the end.
  /// Errors: IoError; DataError if there is no place to cut within 64 MiB.
  std::string next();

 private:
  /// Appends to rest_ until it has `bytes` bytes or the text ends.
  void fill(size_t bytes);

  std::string path_;
  Cut cut_;
  int descriptor_;
  size_t position_ = 0;  ///< byte offset of rest_ in the text
  std::string rest_;
  bool ended_ = false;
};

}  // namespace trireme
