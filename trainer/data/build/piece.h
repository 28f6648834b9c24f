#pragma once
// Splits inputs into pieces that can be encoded independently.
#include <cstdint>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/build/inputs.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

constexpr size_t kPieceBytes = size_t{1} << 18;     ///< large enough to amortise handing it to a thread
constexpr size_t kMaxLineBytes = size_t{64} << 20;  ///< longest JSON line
/// Longest text that is encoded without splitting: a very long word, or any text of a unigram model, whose best segmentation of a text is not that
/// of its parts. Encoding needs up to 200 times as much memory.
constexpr size_t kMaxUnsplitBytes = size_t{2} << 20;

/// Read position of a build: inputs completed, in the order of for_each_input, then byte offset and line in the next input. In a text input, an
/// offset above 0 lies inside its document.
struct Position {
  int64_t input = 0;
  int64_t offset = 0;
  int64_t line = 0;

  nlohmann::json to_json() const;
  static Position parse(const nlohmann::json& json, const std::string& where);
};

/// Message for text above kMaxUnsplitBytes, after the limit.
constexpr const char* kUnsplittableMessage = " MiB of text that this tokenizer cannot split; split the document";

struct Piece {
  std::string path;                ///< for messages
  std::string text;                ///< empty once encoded
  int64_t bytes = 0;               ///< size of the text
  bool lines = false;              ///< true: complete lines, each a document; false: part of one document
  int64_t line = 0;                ///< number of the first line, from 1
  bool first = true, last = true;  ///< the piece begins and ends its document, if it is part of one
  Position end;

  // Filled in by encode_piece.
  struct Document {
    int64_t tokens;
    int64_t prompt;
    bool ends;
  };
  std::vector<std::vector<int32_t>> tokens;  ///< in chunks, so that growth never copies the tokens of a long line
  std::vector<Document> documents;
  int64_t skipped = 0;        ///< bad lines
  std::string first_skipped;  ///< what is wrong with the first of them
  std::exception_ptr error;
};

/// Calls `push` for the pieces of `input` from `start` on. The split points depend on the text alone.
/// Errors: those of InputReader; DataError for an empty pipe, an input that is not text (text_check.h), a line above kMaxLineBytes, or text
/// above kMaxUnsplitBytes that cannot be split; what `check_look` throws, which is called with the beginning of the text.
void read_pieces(const Input& input, const Position& start, bool lines, const Tokenizer& tokenizer,
                 const std::function<void(std::string_view start, bool lines)>& check_look, const std::function<void()>& interrupted,
                 const std::function<void(Piece)>& push);

}  // namespace trireme
