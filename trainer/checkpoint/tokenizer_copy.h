#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "trainer/checkpoint/manifest.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

/// A checkpoint's copy of a tokenizer: its manifest entry, and the contents of its files by name in the checkpoint.
struct TokenizerCopy {
  StoredTokenizer entry;
  std::map<std::string, std::string> texts;
};

/// Reads tokenizer.json or tokenizer.model, and the companion files that transformers stores beside it (end-of-text token, special tokens, chat
/// template). Errors: MissingFileError, IoError.
TokenizerCopy copy_of(const Tokenizer& tokenizer);

/// Writes the files durably into `checkpoint` and adds them to `contents`. Errors: IoError.
void write_tokenizer(const std::map<std::string, std::string>& texts, const std::filesystem::path& checkpoint, Contents& contents);

}  // namespace trireme
