#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/tokenizer/pretokenizer.h"
#include "trainer/tokenizer/train.h"

namespace trireme {

/// Counts the pieces of all files, each one document, on `threads` threads; the result does not depend on `threads`. Memory use grows with the
/// number of distinct pieces (at worst times `threads`), not with the text. A file "-" is standard input. `read` is called with the bytes of each
/// stretch, from any thread. Errors: MissingFileError, IoError; those of TextChunkReader and Pretokenizer.
PieceCounts count_pieces(
    const std::vector<std::string>& files, const NamedPattern& pattern, int threads, const std::function<void(int64_t)>& read = [](int64_t) {});

}  // namespace trireme
