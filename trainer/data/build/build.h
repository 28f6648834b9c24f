#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/token_file.h"

namespace trireme {

/// `trireme data build`: text as a token directory.
struct BuildOptions {
  std::string tokenizer = "bytes";
  std::string output;
  std::vector<std::string> inputs;
  std::string field;                         ///< of JSON lines; empty: "text", and only files named *.jsonl and *.ndjson are such
  std::string prompt_field, response_field;  ///< of instruction data
  std::string prompt_template = "{prompt}{response}";
  std::optional<bool> end_of_text;  ///< whether documents end with the tokenizer's end-of-text token; not said: where it has one
  int threads = 1;
  std::chrono::milliseconds save_every{5000};           ///< how much work a kill may cost
  std::function<int()> stop_signal = [] { return 0; };  ///< which signal asks to stop; 0: none
};

struct BuildResult {
  TokenIndex index;
  int64_t bytes = 0;            ///< of text, read by this attempt
  int64_t empty_documents = 0;  ///< left out, for they have no token
  bool written = true;          ///< false: the output was there already, the same to the byte
};

/// Reads the inputs in order, encodes them on `threads` threads and writes the output: the same bytes whatever their number, and whether or not an
/// earlier attempt was killed in the middle. Memory does not grow with the data.
/// Errors: ConfigError, those of for_each_input, read_pieces, encode_piece and TokenWriter; Error with kRequeue where a signal stopped it, which
/// says whether work is kept.
BuildResult build_tokens(const BuildOptions& options);

}  // namespace trireme
