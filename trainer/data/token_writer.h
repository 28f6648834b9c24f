#pragma once
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/token_file.h"
#include "trainer/files/digest.h"

namespace trireme {

/// Makes a token directory: all or nothing. Writes into `<output>.partial` beside it, which one process at a time holds, and renames that at commit.
/// Destroyed without a commit it leaves nothing behind; killed, or after keep(), the partial directory stays, and the next writer of the same command
/// goes on from the last save(). Memory does not grow with the data.
/// Errors: ConfigError where the output exists (an empty directory is taken, an identical one is kept; by its index.json it is refused at once), where another process writes it, or where the
/// partial directory is another command's; DataError where that is damaged; IoError.
class TokenWriter {
 public:
  /// `index` names the tokenizer; its counts are filled in here. `tokenizer_file` is copied where it is not empty, with the
  /// tokenizer_config.json beside it. `command`: a digest of all that
  /// decides the result.
  TokenWriter(const std::string& output, TokenIndex index, const std::string& tokenizer_file = "", std::string command = "");
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Errors: DataError for an id outside the vocabulary.
  void append(std::span<const int32_t> tokens);
  int64_t open_tokens() const { return index_.tokens - document_start_; }  ///< appended since the last document ended
  /// Ends the document of these tokens; its first `prompt` ones are never targets. False where there are none: no document.
  bool end_document(int64_t prompt = 0);

  /// Makes what was written durable, with `position`: an object that tells the caller where to go on, in the middle of a document too.
  void save(const nlohmann::json& position);
  /// What the last save() of an earlier attempt said; null where there was none.
  const nlohmann::json& position() const { return position_; }
  /// From here on the partial directory outlives this object.
  void keep() { kept_ = true; }

  enum class Outcome : uint8_t {
    kWritten,
    kUnchanged,  ///< the output held exactly these bytes already and was left alone
  };
  Outcome commit();
  const TokenIndex& index() const { return index_; }
  const std::filesystem::path& partial() const { return partial_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct File {
    std::unique_ptr<std::FILE, CloseFile> stream;  ///< null: there is no such file
    Digest digest = {};                            ///< of what was written
  };

  void lock();
  bool read_journal();  ///< false: there is none, nothing was written
  void open_files(const std::string& tokenizer_file);
  File open(const char* name, int64_t bytes) const;
  void write(File& file, const void* data, size_t bytes) const;
  void sync(const File& file) const;
  template <class Id>
  void append_as(std::span<const int32_t> tokens);
  void leave() noexcept;

  TokenIndex index_;
  std::string command_;
  std::filesystem::path output_;
  std::filesystem::path partial_;
  std::filesystem::path first_created_;  ///< topmost parent directory made here; empty when all stood
  int lock_ = -1;
  bool kept_ = true;
  nlohmann::json position_;
  int64_t document_start_ = 0;
  File tokens_;
  File documents_;
  File prompts_;  ///< of instruction data only
  std::vector<std::byte> buffer_;
};

}  // namespace trireme
