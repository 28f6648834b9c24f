#pragma once
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/token_file.h"

namespace trireme {

/// Makes a token directory: all or nothing. Writes into `<output>.partial-XXXXXX` beside it and renames that at commit; destroyed without a commit
/// it leaves nothing behind. Memory does not grow with the data.
/// Errors: ConfigError where the output exists (an empty directory is taken, an identical one is kept); IoError.
class TokenWriter {
 public:
  /// `index` names the tokenizer; its counts are filled in here.
  TokenWriter(const std::string& output, TokenIndex index);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void begin_document();
  /// Errors: DataError for an id outside the vocabulary.
  void append(std::span<const int32_t> tokens);

  enum class Outcome : uint8_t {
    kWritten,
    kUnchanged,  ///< the output held exactly these bytes already and was left alone
  };
  Outcome commit();
  const TokenIndex& index() const { return index_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, CloseFile>;

  File create(const char* name) const;
  void write(const File& file, const void* data, size_t bytes) const;
  void finish(File file) const;  ///< flush to the disk and close
  void discard() noexcept;

  TokenIndex index_;
  std::filesystem::path output_;
  std::filesystem::path first_created_;  ///< topmost parent directory made here; empty when all stood
  std::filesystem::path partial_;
  File tokens_;
  File documents_;
  std::vector<std::byte> buffer_;
};

}  // namespace trireme
