#pragma once
// Packs documents into sequences of a fixed length.
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "trainer/data/token_file.h"

namespace trireme {

/// Best-fit decreasing: the longest item first, each into the fullest bin that has room for it, else into a new bin. Returns the bin of each item;
/// bins are numbered from 0 in the order in which they are opened. Of items of equal length the one with the lower index comes first, of equally full
/// bins the one with the lower number. Uses at most 11/9 of the fewest possible bins, and 6/9 of a bin (Dosa, 2007). O(n log n).
/// Errors: InternalError if a length is not in [1, capacity].
std::vector<int64_t> best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity);

/// The documents of a stream of tokens in sequences of T tokens. Documents are taken in windows of `window` consecutive ones, and each window is packed
/// by best-fit decreasing. A document longer than T is cut every T tokens, and its rest is packed. Every token is in exactly one sequence, and what a
/// sequence lacks to T tokens is padding at its end. The result is a function of the documents, T and the window only.
/// The constructor packs every window once, to number the sequences: 8 bytes per window stay. Later a window is packed again when one of its sequences
/// is read and it is not among those kept: the last 1,024 that were used, of at most 2^20 parts of documents or one window, 32 bytes each. Thread-safe.
/// Errors: those of `visit`; DataError if a window that is packed again has another number of sequences.
class PackedDocuments {
 public:
  /// Tokens [begin, end) of the stream, of one document. They are targets from `response` on, except the first token of the document.
  struct Piece {
    int64_t begin, end;
    int64_t response;
    bool continues;  ///< the document continues behind `end`, so that token `end` is the target of the last token
  };
  /// Calls its second argument for the documents of the stream from the given one on, in order, until it returns false or no document is left.
  using Visit = std::function<void(int64_t first, const std::function<bool(const TokenFile::Document&)>&)>;

  PackedDocuments(Visit visit, int64_t documents, int64_t sequence_length, int64_t window);

  int64_t sequences() const { return first_.back(); }
  std::vector<Piece> pieces(int64_t sequence) const;  ///< in the order of the stream; not empty
  int64_t padding(int64_t sequence) const;            ///< positions behind the last piece

 private:
  struct Window {
    std::vector<Piece> pieces;    ///< by sequence
    std::vector<int64_t> starts;  ///< first piece of each sequence, then the number of pieces
    int64_t sequences() const { return static_cast<int64_t>(starts.size()) - 1; }
  };
  struct Kept {
    std::mutex mutex;
    std::vector<std::pair<int64_t, std::shared_ptr<const Window>>> windows;  ///< by number, the last used one last
  };

  Window pack(int64_t window) const;
  std::shared_ptr<const Window> window_of(int64_t window) const;
  std::span<const Piece> find(int64_t sequence, std::shared_ptr<const Window>& window) const;

  Visit visit_;
  int64_t documents_, length_, window_;
  std::vector<int64_t> first_;  ///< first sequence of each window, then the number of sequences
  std::unique_ptr<Kept> kept_;
};

}  // namespace trireme
