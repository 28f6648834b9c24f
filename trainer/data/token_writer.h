#pragma once
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/token_file.h"
#include "trainer/files/digest.h"

namespace trireme {

/// Writes a token directory atomically: into `<output>.partial`, locked against other processes, renamed to `<output>` by commit(). Destruction
/// without commit() removes the partial directory. After a kill or keep() it remains, and the next writer with the same `command` resumes from the
/// last save(). Memory use does not grow with the data.
/// Errors: ConfigError if the output exists (an empty directory is replaced, an identical one is kept; one whose index.json rules out identity is
/// refused by the constructor), if another process is writing it, or if the partial directory belongs to another command; DataError if the partial
/// directory is damaged; IoError.
class TokenWriter {
 public:
  /// `index` names the tokenizer; the writer fills in its counts. `tokenizer`: Tokenizer::copies().
  /// `command`: digest of everything that determines the result.
  TokenWriter(const std::string& output, TokenIndex index, const std::map<std::string, std::string>& tokenizer = {}, std::string command = "");
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Errors: DataError for an id outside the vocabulary.
  void append(std::span<const int32_t> tokens);
  int64_t open_tokens() const { return index_.tokens - document_start_; }  ///< appended since the last document ended
  /// Ends the document of the open tokens; its first `prompt` tokens are never targets. Without open tokens, adds no document and returns false.
  bool end_document(int64_t prompt = 0);

  /// Makes everything written so far durable, together with `position`, the caller's resume position. Allowed in the middle of a document.
  void save(const nlohmann::json& position);
  /// Position of the last save() of an earlier attempt; null if there was none.
  const nlohmann::json& position() const { return position_; }
  /// Makes the partial directory outlive this object.
  void keep() { kept_ = true; }

  enum class Outcome : uint8_t {
    kWritten,
    kUnchanged,  ///< the output already existed with identical content
  };
  Outcome commit();
  const TokenIndex& index() const { return index_; }
  const std::filesystem::path& partial() const { return partial_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct File {
    std::unique_ptr<std::FILE, CloseFile> stream;  ///< null: the directory does not have this file
    Digest digest = {};                            ///< of the content
  };

  void lock();
  bool read_journal();  ///< false if there is no saved progress
  void open_files(const std::map<std::string, std::string>& tokenizer);
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
  std::filesystem::path first_created_;  ///< topmost parent directory created by this writer; empty if all existed
  int lock_ = -1;
  bool kept_ = true;
  nlohmann::json position_;
  int64_t document_start_ = 0;
  File tokens_;
  File documents_;
  File prompts_;  ///< instruction data only
  std::vector<std::byte> buffer_;
};

}  // namespace trireme
