#pragma once
// Inputs in pieces that can be encoded apart.
#include <cstdint>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/data/build/inputs.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

constexpr size_t kPieceBytes = size_t{1} << 18;     ///< enough to pay for passing it to a thread
constexpr size_t kMaxLineBytes = size_t{64} << 20;  ///< of JSON
/// Of text that its tokenizer cannot cut: a word without end, or any text where the best tokens of the whole are not those of its parts (unigram
/// models). Encoding it takes up to 200 times as much memory.
constexpr size_t kMaxUncutBytes = size_t{2} << 20;

/// What a build has read: `input` counts what for_each_input visits; the others are of that one. A text with an offset is cut inside its document.
struct Position {
  int64_t input = 0;
  int64_t offset = 0;
  int64_t line = 0;

  nlohmann::json to_json() const;
  static Position parse(const nlohmann::json& json, const std::string& where);
};

/// Ends the message about such a text, behind the number that is too much.
constexpr const char* kUncut = " MiB of text that this tokenizer must encode as one; split the document";

struct Piece {
  std::string path;    ///< for messages
  std::string text;    ///< empty once encoded
  int64_t bytes = 0;   ///< of text
  bool lines = false;  ///< whole lines, each a document of its own, the first of them number `line` from 1; else a part of one document
  int64_t line = 0;
  bool first = true, last = true;  ///< of the document, where it is one
  Position end;

  // What encoding makes of it.
  struct Document {
    int64_t tokens;
    int64_t prompt;
    bool ends;
  };
  std::vector<std::vector<int32_t>> tokens;  ///< in parts, so that a long line's never have to be moved
  std::vector<Document> documents;
  std::exception_ptr error;
};

/// Calls `push` for the pieces of `input` from `start` on. Where they are cut depends on the text alone.
/// Errors: those of InputReader; DataError for an empty pipe, a line above kMaxLineBytes, and text above kMaxUncutBytes that `tokenizer` cannot cut.
void read_pieces(const Input& input, const Position& start, bool lines, const Tokenizer& tokenizer, const std::function<void()>& interrupted,
                 const std::function<void(Piece)>& push);

}  // namespace trireme
