#pragma once
// A token directory, written by `trireme data build` and immutable afterwards:
//   tokens.bin     all token ids, little-endian, uint8 for a vocabulary up to 256, uint16 up to 65536, uint32 above; no header
//   documents.bin  little-endian uint64: the start of each document, in tokens, then the total number of tokens
//   prompts.bin    instruction data only: little-endian uint64 per document, the length of its prompt, whose tokens are never targets
//   tokenizer.json | tokenizer.model   copy of the tokenizer's file, if it has one
//   tokenizer_config.json              copy of the file beside the tokenizer's, if it exists: names the end-of-text token
//   index.json     see TokenIndex
#include <cstdint>
#include <optional>
#include <string>

#include "trainer/files/random_access_file.h"

namespace trireme {

struct TokenIndex {
  std::string tokenizer;         ///< Tokenizer::name()
  std::string tokenizer_digest;  ///< Tokenizer::digest() of the tokenizer that produced the ids
  int64_t vocab_size = 0;        ///< of that tokenizer: every id is below it
  int64_t tokens = 0;
  int64_t documents = 0;
  bool prompts = false;  ///< the directory has a prompts.bin
  /// digest_of() of each file; empty in directories built before format version 2.
  std::string tokens_digest = {}, documents_digest = {}, prompts_digest = {};

  bool has_digests() const { return !tokens_digest.empty(); }
  TokenIndex without_digests() const;
  int64_t token_bytes() const { return vocab_size <= 256 ? 1 : vocab_size <= 65536 ? 2 : 4; }
  std::string to_json() const;
  /// `path` is used in messages. Errors: DataError for an unknown or missing key, a wrong type, another format or version, or a value out of range.
  static TokenIndex parse(const std::string& text, const std::string& path);
};

/// Reader of a token directory. All offsets are 64-bit.
/// Errors: MissingFileError, IoError; DataError if index.json is invalid, there are no tokens, or a file's size does not match index.json.
class TokenFile {
 public:
  explicit TokenFile(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const TokenIndex& index() const { return index_; }
  int64_t tokens() const { return index_.tokens; }
  /// Compares the files with the digests in index.json; reads all of them.
  /// Errors: ConfigError if index.json has no digests; DataError naming the file that differs; IoError.
  void verify() const;

  /// Reads tokens [begin, begin + count). Errors: DataError naming file and position of an id outside the vocabulary.
  void read(int64_t begin, int64_t count, int32_t* out) const;

  struct Document {
    int64_t begin, end;  ///< in tokens
    int64_t response;    ///< first token after the prompt, the first that can be a target; equals `begin` except in instruction data
  };
  /// Random access to documents; sequential access costs few system calls. `file` must outlive the reader.
  class DocumentReader {
   public:
    explicit DocumentReader(const TokenFile& file);
    /// Errors: DataError if the offsets do not ascend or exceed the number of tokens, or if a prompt is longer than its document.
    Document operator[](int64_t i);

   private:
    const TokenFile& file_;
    ValueReader<uint64_t> offsets_;
    std::optional<ValueReader<uint64_t>> prompts_;
  };
  Document document(int64_t i) const { return DocumentReader(*this)[i]; }

 private:
  std::string directory_;
  TokenIndex index_;
  RandomAccessFile tokens_;
  RandomAccessFile documents_;
  std::optional<RandomAccessFile> prompts_;
};

}  // namespace trireme
