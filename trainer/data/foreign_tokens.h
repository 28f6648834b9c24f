#pragma once
// Token files of other programs, read in place: consecutive little-endian ids. Each read checks that the ids are in the model's vocabulary.
#include <cstdint>
#include <string>

#include "trainer/data/token_file.h"
#include "trainer/files/random_access_file.h"

namespace trireme {

enum class IdType : uint8_t { kU8, kI8, kU16, kI16, kI32, kU32, kI64 };
int64_t size_of(IdType type);

/// Ids of one type from byte `first_byte` to the end of a file.
/// Errors: MissingFileError, IoError; DataError if there are no ids or the last one is incomplete.
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

/// Format of nanoGPT's prepare.py: uint16 ids without a header.
struct NanoGptTokens {
  explicit NanoGptTokens(const std::string& path) : flat(path, 0, IdType::kU16) {}
  std::string suspicion() const;  ///< see TokenSource
  FlatTokens flat;
};

/// Format of llm.c: a header of 256 int32 {magic, version, number of ids}, then the ids: uint16 for magic 20240520 version 1 (GPT-2), uint32 for
/// magic 20240801 version 7 (LLaMA-3). Source: dev/data/data_common.py of llm.c.
/// Errors: those of FlatTokens; DataError for another version, or if the file's size does not match the header.
struct LlmcTokens {
  /// True if the file begins with a magic number of llm.c. Errors: those of RandomAccessFile.
  static bool recognises(const std::string& path);
  explicit LlmcTokens(const std::string& path);
  FlatTokens flat;
};

/// Format of Megatron-LM: PREFIX.bin contains the ids of all sequences, PREFIX.idx their index: "MMIDIDX\0\0", version 1 (u64), id type (u8), number
/// of sequences and of document boundaries (u64 each), the lengths of all sequences (i32), their byte offsets (i64), and the boundaries as sequence
/// numbers, from 0 to the number of sequences (i64). Source: megatron/core/datasets/indexed_dataset.py of Megatron-LM.
/// Errors: those of FlatTokens; DataError for an index that is truncated or too long, sequences that are not contiguous, boundaries that do not
/// ascend, or a non-integer id type.
class MegatronTokens {
 public:
  explicit MegatronTokens(const std::string& prefix);

  const FlatTokens& flat() const { return flat_; }
  int64_t documents() const { return borders_ - 1; }
  /// See TokenFile::DocumentReader.
  class DocumentReader {
   public:
    explicit DocumentReader(const MegatronTokens& tokens) : tokens_(tokens), borders_(tokens.borders()), starts_(tokens.starts()) {}
    TokenFile::Document operator[](int64_t i);

   private:
    int64_t token_at(int64_t border);  ///< token at which the given document boundary lies

    const MegatronTokens& tokens_;
    ValueReader<int64_t> borders_, starts_;
  };
  TokenFile::Document document(int64_t i) const { return DocumentReader(*this)[i]; }

 private:
  ValueReader<int32_t> lengths() const;  ///< sequence lengths, in ids
  ValueReader<int64_t> starts() const;   ///< byte offsets of the sequences
  ValueReader<int64_t> borders() const;  ///< document boundaries, as sequence numbers
  void check_index() const;

  RandomAccessFile index_;
  IdType type_;
  int64_t sequences_ = 0, borders_ = 0;
  FlatTokens flat_;
};

}  // namespace trireme
