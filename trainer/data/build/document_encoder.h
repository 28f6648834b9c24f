#pragma once
// Encodes text and JSON lines as token ids.
#include <condition_variable>
#include <mutex>
#include <string>

#include "trainer/data/build/piece.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

/// JSON fields that contain the documents, and the template that joins prompt and response.
struct DocumentRules {
  std::string field = "text";
  std::string prompt_field, response_field;  ///< both or neither
  std::string before, between, after;        ///< the template is before{prompt}between{response}after
  bool skip_bad_lines = false;               ///< lines without these fields are left out and counted

  bool instruction() const { return !prompt_field.empty(); }
};

/// Sets before, between and after from `text`, with escapes for newline, tab and backslash (`\n`, `\t`, `\\`). {{name}} is the text {name};
/// braces without a name are text.
/// Errors: ConfigError unless `text` contains {prompt} and {response} once each, in this order, and no other field or escape.
void parse_template(const std::string& text, DocumentRules& rules);

/// Limits the text that all threads together encode in one call to kMaxUnsplitBytes: a Turn waits until its bytes fit.
class EncodeBudget {
 public:
  class Turn {
   public:
    Turn(EncodeBudget& turns, size_t bytes);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    EncodeBudget& turns_;
    size_t bytes_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t bytes_ = 0;  ///< being encoded
};

/// Fills in the tokens and documents of `piece` and frees its text. Prompt and response are encoded separately, so no token spans both.
/// Errors: DataError naming file and line for a line of which strings_in() cannot give the fields, unless such lines are skipped, and text above
/// kMaxUnsplitBytes that `tokenizer` cannot split.
void encode_piece(Tokenizer& tokenizer, const DocumentRules& rules, EncodeBudget& turns, Piece& piece);

}  // namespace trireme
