#pragma once
// A token directory, made by `trireme data build`, never changed afterwards:
//   tokens.bin     all token ids in a row, little-endian, uint8 for a vocabulary up to 256, uint16 up to 65536, uint32 above; no header
//   documents.bin  little-endian uint64: where each document starts, in tokens, and the end
//   prompts.bin    instruction data only: little-endian uint64 for each document, its first tokens that are prompt and never a target
//   tokenizer.json | tokenizer.model   a copy of the tokenizer's file, where it has one
//   tokenizer_config.json              a copy of what is beside that, where it is there: it names the token that ends a text
//   index.json     what TokenIndex says
#include <cstdint>
#include <optional>
#include <string>

#include "trainer/files/random_access_file.h"

namespace trireme {

struct TokenIndex {
  std::string tokenizer;         ///< Tokenizer::name()
  std::string tokenizer_digest;  ///< of the tokenizer that made the ids
  int64_t vocab_size = 0;        ///< of that tokenizer: every id is below it
  int64_t tokens = 0;
  int64_t documents = 0;
  bool prompts = false;  ///< there is a prompts.bin
  /// digest_of of each file's content; all empty in directories that were built before version 2 of the format.
  std::string tokens_digest = {}, documents_digest = {}, prompts_digest = {};

  bool has_digests() const { return !tokens_digest.empty(); }
  TokenIndex without_digests() const;
  int64_t token_bytes() const { return vocab_size <= 256 ? 1 : vocab_size <= 65536 ? 2 : 4; }
  std::string to_json() const;
  /// `path` is for messages. Errors: DataError for a key unknown, missing or of the wrong type, another format or version, a value out of range.
  static TokenIndex parse(const std::string& text, const std::string& path);
};

/// Reader of a token directory. All offsets are 64 bits.
/// Errors: MissingFileError, IoError; DataError where index.json is invalid, there is no token, or a file's size is not what index.json promises.
class TokenFile {
 public:
  explicit TokenFile(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const TokenIndex& index() const { return index_; }
  int64_t tokens() const { return index_.tokens; }
  /// Reads all files and compares them with the digests in index.json.
  /// Errors: ConfigError where it has none; DataError naming the file that differs; IoError.
  void verify() const;

  /// Tokens [begin, begin + count). Errors: DataError naming file and position of an id that is not below the vocabulary size.
  void read(int64_t begin, int64_t count, int32_t* out) const;

  struct Document {
    int64_t begin, end;  ///< in tokens
    int64_t response;    ///< its first token that counts as a target: begin, but for instruction data
  };
  /// Reads documents, in order with few system calls. The file must outlive it.
  class DocumentReader {
   public:
    explicit DocumentReader(const TokenFile& file);
    /// Errors: DataError where the offsets do not rise, leave the file, or a prompt is longer than its document.
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
