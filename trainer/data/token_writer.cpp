#include "trainer/data/token_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/tokenizer/companions.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
constexpr const char* kTokens = "tokens.bin";
constexpr const char* kDocuments = "documents.bin";
constexpr const char* kPrompts = "prompts.bin";
constexpr const char* kIndex = "index.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kContent[] = {kTokens, kDocuments, kPrompts, "tokenizer.json", "tokenizer.model", kTokenizerConfig, kIndex};
// Files of the partial directory only. The lock is removed last, so that no process finds a half-removed directory unlocked.
constexpr const char* kJournal = "progress.json";
constexpr const char* kLock = "lock";
constexpr const char* kBuildFormat = "trireme-build";
constexpr int64_t kBuildVersion = 1;

[[noreturn]] void refuse_existing(const fs::path& output) {
  throw ConfigError(concat("--output=", output.string(), ": exists and differs from what would be written; remove it or name another directory"));
}

[[noreturn]] void cannot_write(const fs::path& path, int error_number) {
  throw IoError(concat(path.string(), ": cannot write: ", std::generic_category().message(error_number)));
}

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  const bool there = fs::is_regular_file(a, ignored);
  if (!there || !fs::is_regular_file(b, ignored)) return there == fs::exists(b, ignored);
  const MappedFile left(a.string());
  const MappedFile right(b.string());
  return left.bytes() == right.bytes() && (left.bytes() == 0 || std::memcmp(left.data(), right.data(), static_cast<size_t>(left.bytes())) == 0);
}

TokenIndex read_index(const fs::path& directory) {
  const fs::path path = directory / kIndex;
  return TokenIndex::parse(read_text(path, 1 << 20), path.string());
}

/// `there` may have been built before digests were added to the index.
bool same_index(const TokenIndex& fresh, const TokenIndex& there) {
  return (there.has_digests() ? fresh : fresh.without_digests()).to_json() == there.to_json();
}

bool same_content(const fs::path& fresh, const fs::path& there) {
  return same_index(read_index(fresh), read_index(there)) && std::all_of(std::begin(kContent), std::end(kContent), [&](const char* name) {
           return std::string_view(name) == kIndex || same_file(fresh / name, there / name);
         });
}

/// Refuses, before any work, an output that cannot be identical to the result; commit() compares the content of any other.
void check_existing(const fs::path& output, const TokenIndex& index) {
  std::error_code error;
  if (!fs::exists(output, error) || (fs::is_directory(output, error) && fs::is_empty(output, error))) return;
  if (!fs::exists(output / kIndex, error)) refuse_existing(output);
  TokenIndex there;
  try {
    there = read_index(output);
  } catch (const DataError&) {  // an index.json of another version or another program
    refuse_existing(output);
  }
  if (there.tokenizer_digest != index.tokenizer_digest || there.vocab_size != index.vocab_size || there.prompts != index.prompts)
    refuse_existing(output);
}

/// Without a trailing slash, so that "<output>.partial" is a sibling.
fs::path normalise(const std::string& output) {
  if (output.empty()) throw ConfigError("--output=: must name a directory");
  const fs::path path = fs::absolute(output).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

TokenWriter::TokenWriter(const std::string& output, TokenIndex index, const std::map<std::string, std::string>& tokenizer, std::string command)
    : index_(std::move(index)), command_(std::move(command)), output_(normalise(output)), partial_(output_.string() + ".partial") {
  TRIREME_CHECK(index_.vocab_size >= 1, "the tokenizer has no vocabulary");
  index_.tokens = index_.documents = 0;
  check_existing(output_, index_);
  std::error_code error;
  const fs::path parent = output_.parent_path();
  for (fs::path p = parent; !p.empty() && !fs::exists(p, error); p = p.parent_path()) first_created_ = p;
  try {
    make_directories(parent);
    lock();
    const bool goes_on = read_journal();
    kept_ = goes_on;  // keep the progress of an earlier attempt if the rest of the constructor fails
    if (!goes_on) save(position_);
    open_files(tokenizer);
    kept_ = false;
  } catch (...) {
    leave();
    throw;
  }
}

TokenWriter::~TokenWriter() { leave(); }

void TokenWriter::leave() noexcept {
  for (File* file : {&tokens_, &documents_, &prompts_}) file->stream.reset();
  if (lock_ >= 0 && !kept_) {
    ::unlink((partial_ / kJournal).c_str());
    for (const char* name : kContent) ::unlink((partial_ / name).c_str());
    for (const std::string& name : kCompanionNames) ::unlink((partial_ / name).c_str());
    ::unlink((partial_ / kLock).c_str());
  }
  if (lock_ >= 0) ::close(lock_);
  lock_ = -1;
  ::rmdir(partial_.c_str());  // fails, as intended, if it is not empty
  if (first_created_.empty()) return;
  for (fs::path p = output_.parent_path(); ::rmdir(p.c_str()) == 0 && p != first_created_;) p = p.parent_path();
  first_created_.clear();
}

void TokenWriter::lock() {
  const fs::path path = partial_ / kLock;
  for (;;) {
    make_directories_in(partial_.parent_path(), partial_.filename());
    lock_ = try_open_writable(path, Existing::kChanged);
    if (lock_ < 0 && errno == ENOENT) continue;  // its owner has just removed the directory
    if (lock_ < 0) throw IoError(concat(path.string(), ": cannot be locked: ", why_not_writable(errno)));
    const bool locked = ::flock(lock_, LOCK_EX | LOCK_NB) == 0;
    const int error_number = errno;
    struct stat held {
    }, there{};
    if (locked && ::fstat(lock_, &held) == 0 && ::stat(path.c_str(), &there) == 0 && held.st_ino == there.st_ino && held.st_dev == there.st_dev)
      return;
    ::close(std::exchange(lock_, -1));
    if (!locked && error_number == EWOULDBLOCK)
      throw ConfigError(concat("--output=", output_.string(), ": another process is writing it; wait until it finishes, or name another directory"));
    if (!locked && error_number != EINTR) throw IoError(concat(path.string(), ": cannot lock: ", std::generic_category().message(error_number)));
  }
}

bool TokenWriter::read_journal() {
  const fs::path path = partial_ / kJournal;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(partial_))
      if (const std::string name = entry.path().filename().string(); name != kLock && name != concat(kJournal, ".tmp")) {
        ::unlink((partial_ / kLock).c_str());
        throw ConfigError(concat(partial_.string(), ": exists, but is not an unfinished build: it contains ", name, "; move it away"));
      }
    return false;
  }
  const std::string where = path.string();
  const nlohmann::json json = parse_object(read_text(path, 1 << 20), where);
  require_known_keys(json, {"format", "version", "command", "tokens", "documents", "position"}, where);
  const bool ours = string_member(json, "format", where) == kBuildFormat && integer_member(json, "version", where) == kBuildVersion;
  if (ours && member(json, "position", where).is_null()) {  // no progress was saved, so nothing is lost, whichever command wrote it
    for (const char* name : kContent) ::unlink((partial_ / name).c_str());
    return false;
  }
  if (!ours || string_member(json, "command", where) != command_)
    throw ConfigError(concat(partial_.string(), ": contains the unfinished build of another command, or the input has changed since; ",
                             "rerun the original command, or remove that directory"));
  index_.tokens = integer_member(json, "tokens", where, 0, kMaxInteger / 16);
  index_.documents = integer_member(json, "documents", where, 0, kMaxInteger / 16);
  position_ = member(json, "position", where);
  return true;
}

void TokenWriter::open_files(const std::map<std::string, std::string>& tokenizer) {
  constexpr int64_t kOffset = sizeof(uint64_t);
  tokens_ = open(kTokens, index_.tokens * index_.token_bytes());
  documents_ = open(kDocuments, index_.documents == 0 ? 0 : (index_.documents + 1) * kOffset);
  if (index_.prompts) prompts_ = open(kPrompts, index_.documents * kOffset);
  if (index_.documents == 0) {
    const uint64_t start = 0;
    write(documents_, &start, sizeof start);
  } else {
    const MappedFile documents((partial_ / kDocuments).string());
    std::memcpy(&document_start_, documents.data() + index_.documents * kOffset, kOffset);
    if (document_start_ < 0 || document_start_ > index_.tokens)
      throw DataError(
          concat(documents.path(), ": damaged: a document ends at token ", document_start_, " of ", index_.tokens, "; remove ", partial_.string()));
  }
  for (const std::string& name : kCompanionNames)
    if (!tokenizer.contains(name)) ::unlink((partial_ / name).c_str());
  for (const auto& [name, text] : tokenizer) write_durably(partial_ / name, text);
}

/// Opens a file for appending after its first `bytes` bytes.
TokenWriter::File TokenWriter::open(const char* name, int64_t bytes) const {
  constexpr size_t kBuffer = 1 << 18;
  const fs::path path = partial_ / name;
  const int descriptor = open_writable(path, Existing::kAppended);
  File file{std::unique_ptr<std::FILE, CloseFile>(::fdopen(descriptor, "ab"))};
  if (!file.stream) ::close(descriptor);
  struct stat status {};
  if (!file.stream || ::fstat(::fileno(file.stream.get()), &status) != 0) cannot_write(path, errno);
  if (status.st_size < bytes)
    throw DataError(concat(path.string(), ": ", status.st_size, " bytes, but ", kJournal, " records ", bytes, "; remove ", partial_.string()));
  if (::ftruncate(::fileno(file.stream.get()), bytes) != 0) cannot_write(path, errno);
  if (bytes > 0) update_from(RandomAccessFile(path.string()), bytes, file.digest);
  std::setvbuf(file.stream.get(), nullptr, _IOFBF, kBuffer);
  return file;
}

void TokenWriter::write(File& file, const void* data, size_t bytes) const {
  if (std::fwrite(data, 1, bytes, file.stream.get()) != bytes) cannot_write(output_, errno);
  file.digest.update(data, bytes);
}

void TokenWriter::sync(const File& file) const {
  if (file.stream && (std::fflush(file.stream.get()) != 0 || ::fsync(::fileno(file.stream.get())) != 0)) cannot_write(output_, errno);
}

template <class Id>
void TokenWriter::append_as(std::span<const int32_t> tokens) {
  buffer_.resize(tokens.size() * sizeof(Id));
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= index_.vocab_size)
      throw DataError(concat("token ", index_.tokens + static_cast<int64_t>(i), " is ", tokens[i], ", outside the tokenizer's vocabulary of ",
                             index_.vocab_size));
    const auto id = static_cast<Id>(tokens[i]);
    std::memcpy(buffer_.data() + i * sizeof id, &id, sizeof id);
  }
  write(tokens_, buffer_.data(), buffer_.size());
}

void TokenWriter::append(std::span<const int32_t> tokens) {
  constexpr size_t kStretch = 1 << 16;  // bounds the size of the buffer
  while (!tokens.empty()) {
    const auto stretch = tokens.first(std::min(tokens.size(), kStretch));
    switch (index_.token_bytes()) {
      case 1: append_as<uint8_t>(stretch); break;
      case 2: append_as<uint16_t>(stretch); break;
      default: append_as<uint32_t>(stretch);
    }
    index_.tokens += static_cast<int64_t>(stretch.size());
    tokens = tokens.subspan(stretch.size());
  }
}

bool TokenWriter::end_document(int64_t prompt) {
  TRIREME_CHECK(prompt >= 0 && prompt <= open_tokens() && (prompt == 0 || prompts_.stream), "a prompt of ", prompt, " in a document of ",
                open_tokens());
  if (open_tokens() == 0) return false;
  document_start_ = index_.tokens;
  const auto end = static_cast<uint64_t>(index_.tokens);
  write(documents_, &end, sizeof end);
  const auto length = static_cast<uint64_t>(prompt);
  if (prompts_.stream) write(prompts_, &length, sizeof length);
  ++index_.documents;
  return true;
}

void TokenWriter::save(const nlohmann::json& position) {
  sync(tokens_);
  sync(documents_);
  sync(prompts_);
  const nlohmann::ordered_json journal{{"format", kBuildFormat},  {"version", kBuildVersion},      {"command", command_},
                                       {"tokens", index_.tokens}, {"documents", index_.documents}, {"position", nlohmann::ordered_json(position)}};
  write_durably(partial_ / kJournal, journal.dump(2) + "\n");
}

TokenWriter::Outcome TokenWriter::commit() {
  TRIREME_CHECK(open_tokens() == 0, open_tokens(), " tokens belong to no document");
  if (index_.tokens == 0) throw DataError(concat("--output=", output_.string(), ": no tokens to write"));
  for (File* file : {&tokens_, &documents_, &prompts_}) {
    sync(*file);
    if (file->stream && std::fclose(file->stream.release()) != 0) cannot_write(output_, errno);
  }
  index_.tokens_digest = tokens_.digest.str();
  index_.documents_digest = documents_.digest.str();
  if (index_.prompts) index_.prompts_digest = prompts_.digest.str();
  write_durably(partial_ / kIndex, index_.to_json());
  sync_directory(partial_);

  // rename() replaces an empty directory only.
  if (::rename(partial_.c_str(), output_.c_str()) != 0) {
    const int error_number = errno;
    std::error_code ignored;
    if (!fs::exists(output_, ignored)) cannot_write(output_, error_number);
    if (!same_content(partial_, output_)) refuse_existing(output_);
    leave();
  }
  const bool written = lock_ >= 0;
  // Removed after the rename, so that a build killed before it can be resumed. One killed in between leaves these files in the output.
  ::unlink((output_ / kJournal).c_str());
  ::unlink((output_ / kLock).c_str());
  if (written) ::close(std::exchange(lock_, -1));
  first_created_.clear();
  sync_directory(output_.parent_path());
  return written ? Outcome::kWritten : Outcome::kUnchanged;
}

}  // namespace trireme
