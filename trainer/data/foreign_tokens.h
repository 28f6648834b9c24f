#pragma once
// Token files of other programs, read as they lie on disk: ids in a row, little-endian. What is no id of the model's vocabulary is refused as it is read.
#include <cstdint>
#include <string>

#include "trainer/data/token_file.h"
#include "trainer/files/random_access_file.h"

namespace trireme {

enum class IdType : uint8_t { kU8, kI8, kU16, kI16, kI32, kU32, kI64 };
int64_t size_of(IdType type);

/// Ids of one type from byte `first_byte` to the end of a file.
/// Errors: MissingFileError, IoError; DataError where the ids end in the middle of one, or there are none.
class FlatTokens {
 public:
  FlatTokens(const std::string& path, int64_t first_byte, IdType type);

  const std::string& path() const { return file_.path(); }
  int64_t tokens() const { return tokens_; }
  /// Tokens [begin, begin + count). Errors: DataError naming file and position of an id outside [0, vocab_size).
  void read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const;

 private:
  RandomAccessFile file_;
  int64_t first_byte_;
  IdType type_;
  int64_t tokens_ = 0;
};

/// prepare.py of nanoGPT: uint16 ids and nothing else.
struct NanoGptTokens {
  explicit NanoGptTokens(const std::string& path) : flat(path, 0, IdType::kU16) {}
  FlatTokens flat;
};

/// A header of 256 int32 {magic, version, ids}, then the ids: 20240520 version 1 has uint16 (GPT-2), 20240801 version 7 uint32 (LLaMA-3).
/// Source: dev/data/data_common.py of llm.c.   Errors: also DataError for another version, or where the file's size is not what the header promises.
struct LlmcTokens {
  /// The file begins with a magic number of llm.c. Errors: those of RandomAccessFile.
  static bool recognises(const std::string& path);
  explicit LlmcTokens(const std::string& path);
  FlatTokens flat;
};

/// PREFIX.bin holds the ids of all sequences in a row, PREFIX.idx says where they lie: "MMIDIDX\0\0", version 1 (u64), type of the ids (u8), sequences and
/// borders of documents (u64), then lengths (i32) and first bytes (i64) of the sequences, and the borders, in sequences, from 0 to all (i64).
/// Source: megatron/core/datasets/indexed_dataset.py of Megatron-LM.
/// Errors: also DataError for an index cut short or too long, sequences that do not lie end to end, borders that do not rise, ids that are no integers.
class MegatronTokens {
 public:
  explicit MegatronTokens(const std::string& prefix);

  const FlatTokens& flat() const { return flat_; }
  int64_t documents() const { return borders_ - 1; }
  /// As TokenFile::DocumentReader.
  class DocumentReader {
   public:
    explicit DocumentReader(const MegatronTokens& tokens) : tokens_(tokens), borders_(tokens.borders()), starts_(tokens.starts()) {}
    TokenFile::Document operator[](int64_t i);

   private:
    int64_t token_at(int64_t border);  ///< where the sequence begins at which this border of documents is

    const MegatronTokens& tokens_;
    ValueReader<int64_t> borders_, starts_;
  };
  TokenFile::Document document(int64_t i) const { return DocumentReader(*this)[i]; }

 private:
  ValueReader<int32_t> lengths() const;  ///< of the sequences
  ValueReader<int64_t> starts() const;   ///< of the sequences, in bytes
  ValueReader<int64_t> borders() const;  ///< of the documents, in sequences
  void check_index() const;

  RandomAccessFile index_;
  IdType type_;
  int64_t sequences_ = 0, borders_ = 0;
  FlatTokens flat_;
};

}  // namespace trireme
