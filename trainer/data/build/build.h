#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/token_file.h"

namespace trireme {

/// Options of `trireme data build`.
struct BuildOptions {
  std::string tokenizer = "bytes";
  std::string output;
  std::vector<std::string> inputs;
  std::string field;                         ///< text field of JSON lines; empty: "text", and only *.jsonl and *.ndjson files are read as JSON lines
  std::string prompt_field, response_field;  ///< instruction data
  std::string prompt_template = "{prompt}{response}";
  bool skip_bad_lines = false;      ///< JSON lines that cannot be read, or lack the field, are left out and counted
  bool plain_text = false;          ///< files that look like JSON, tables, HTML or XML are text too
  std::optional<bool> end_of_text;  ///< append the tokenizer's end-of-text token to documents; nullopt: if the tokenizer has one
  int threads = 1;
  std::chrono::milliseconds save_every{5000};           ///< interval of saves: bounds the work lost by a kill
  std::function<int()> stop_signal = [] { return 0; };  ///< signal that requests a stop; 0: none
};

struct BuildResult {
  TokenIndex index;
  int64_t bytes = 0;                         ///< text read by this attempt
  int64_t empty_documents = 0;               ///< documents without tokens, left out
  int64_t skipped_lines = 0;                 ///< with skip_bad_lines
  std::string first_skipped;                 ///< what is wrong with the first one
  std::vector<std::string> looks_like = {};  ///< files found in directories that look like something else than text, and what; the first of each kind
  bool written = true;                       ///< false: the output already existed with identical content
  std::string no_end;                        ///< why several documents follow each other without an end-of-text token, though that was not asked for
};

/// Reads the inputs in order, encodes them on `threads` threads and writes the output. The output bytes depend neither on the number of threads nor
/// on interrupted earlier attempts. Memory use does not grow with the data.
/// Errors: ConfigError; those of for_each_input, read_pieces, encode_piece and TokenWriter; Error with kRequeue if stopped by a signal, whose
/// message says whether progress was saved.
BuildResult build_tokens(const BuildOptions& options);

}  // namespace trireme
