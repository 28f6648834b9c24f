#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "trainer/checkpoint/manifest.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

/// What a checkpoint keeps of a tokenizer: its entry in the manifest, and what the files in it hold, by their names there.
struct TokenizerCopy {
  StoredTokenizer entry;
  std::map<std::string, std::string> texts;
};

/// tokenizer.json or tokenizer.model, and what lies beside it under the names that transformers gives to the rest of a tokenizer: the token that ends a text,
/// special tokens, a chat template. Errors: MissingFileError, IoError.
TokenizerCopy copy_of(const Tokenizer& tokenizer);

/// Writes those files durably and lists them. Errors: IoError.
void write_tokenizer(const std::map<std::string, std::string>& texts, const std::filesystem::path& checkpoint, Contents& contents);

}  // namespace trireme
