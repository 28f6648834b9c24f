#pragma once
// Text and lines of JSON as token ids.
#include <condition_variable>
#include <mutex>
#include <string>

#include "trainer/data/build/piece.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

/// Where the documents lie in lines of JSON, and how prompt and response are put together.
struct DocumentRules {
  std::string field = "text";
  std::string prompt_field, response_field;  ///< both or neither
  std::string before, between, after;        ///< of a template before{prompt}between{response}after

  bool instruction() const { return !prompt_field.empty(); }
};

/// Sets before, between and after; \n, \t and \\ in `text` stand for a new line, a tab and a backslash.
/// Errors: ConfigError where {prompt} and {response} do not stand in it once each, in this order, or another backslash does.
void parse_template(const std::string& text, DocumentRules& rules);

/// Lets threads encode text that cannot be cut in turns, so that together they hold no more of it than one may.
class UncutTurns {
 public:
  class Turn {
   public:
    Turn(UncutTurns& turns, size_t bytes);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    UncutTurns& turns_;
    size_t bytes_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t bytes_ = 0;  ///< under way
};

/// Fills in tokens and documents and lets the text go. Prompt and response are encoded apart, so that a token ends where the prompt does.
/// Errors: DataError that names file and line: not a JSON object, a field missing or no string, text above kMaxUncutBytes that `tokenizer` cannot
/// cut.
void encode_piece(Tokenizer& tokenizer, const DocumentRules& rules, UncutTurns& turns, Piece& piece);

}  // namespace trireme
