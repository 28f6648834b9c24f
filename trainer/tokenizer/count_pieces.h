#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/tokenizer/pretokenizer.h"
#include "trainer/tokenizer/train.h"

namespace trireme {

/// Counts the pieces of all files, each a document, on `threads` threads, which changes nothing in the result. Memory grows with the number of distinct pieces
/// (at worst `threads` times it), not with the text. `file` "-": standard input. `read` is called with the bytes of each stretch, from any thread.
/// Errors: MissingFileError, IoError; DataError as TextStretches and Pretokenizer.
PieceCounts count_pieces(
    const std::vector<std::string>& files, const NamedPattern& pattern, int threads, const std::function<void(int64_t)>& read = [](int64_t) {});

}  // namespace trireme
