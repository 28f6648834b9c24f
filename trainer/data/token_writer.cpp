#include "trainer/data/token_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/core/check.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFiles[] = {"tokens.bin", "documents.bin", "index.json"};

[[noreturn]] void refuse_existing(const fs::path& output) {
  throw ConfigError(concat("--output=", output.string(), ": exists and differs from what would be written; remove it or name another directory"));
}

[[noreturn]] void cannot_write(const fs::path& path, int error_number) {
  throw IoError(concat(path.string(), ": cannot write: ", std::generic_category().message(error_number)));
}

bool same_content(const fs::path& a, const fs::path& b) {
  for (const char* name : kFiles) {
    std::error_code ignored;
    if (!fs::is_regular_file(b / name, ignored)) return false;
    const MappedFile left((a / name).string());
    const MappedFile right((b / name).string());
    if (left.bytes() != right.bytes() || std::memcmp(left.data(), right.data(), static_cast<size_t>(left.bytes())) != 0) return false;
  }
  return true;
}

/// Without a trailing slash, so that "<output>.partial" is a sibling.
fs::path normalise(const std::string& output) {
  if (output.empty()) throw ConfigError("--output=: must name a directory");
  const fs::path path = fs::absolute(output).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

TokenWriter::TokenWriter(const std::string& output, TokenIndex index) : index_(std::move(index)), output_(normalise(output)) {
  TRIREME_CHECK(index_.vocab_size >= 1, "the tokenizer has no vocabulary");
  index_.tokens = index_.documents = 0;
  std::error_code error;
  // What could not be kept in any case is refused before the work; what may be identical, at commit.
  if (fs::exists(output_, error) && !fs::exists(output_ / kFiles[2], error) && !(fs::is_directory(output_, error) && fs::is_empty(output_, error)))
    refuse_existing(output_);

  const fs::path parent = output_.parent_path();
  for (fs::path p = parent; !p.empty() && !fs::exists(p, error); p = p.parent_path()) first_created_ = p;
  try {
    fs::create_directories(parent, error);
    if (error) cannot_write(parent, error.value());
    std::string partial = output_.string() + ".partial-XXXXXX";
    if (::mkdtemp(partial.data()) == nullptr) cannot_write(output_, errno);
    partial_ = partial;
    const mode_t mask = ::umask(0);  // the only way to read it
    ::umask(mask);
    ::chmod(partial.c_str(), 0777 & ~mask);
    tokens_ = create(kFiles[0]);
    documents_ = create(kFiles[1]);
  } catch (...) {
    discard();
    throw;
  }
}

TokenWriter::~TokenWriter() { discard(); }

void TokenWriter::discard() noexcept {
  tokens_.reset();
  documents_.reset();
  std::error_code ignored;
  if (!partial_.empty()) fs::remove_all(partial_, ignored);
  partial_.clear();
  if (first_created_.empty()) return;
  for (fs::path p = output_.parent_path(); ::rmdir(p.c_str()) == 0 && p != first_created_;) p = p.parent_path();
  first_created_.clear();
}

TokenWriter::File TokenWriter::create(const char* name) const {
  const fs::path path = partial_ / name;
  File file(std::fopen(path.c_str(), "wbe"));
  if (!file) cannot_write(path, errno);
  return file;
}

void TokenWriter::write(const File& file, const void* data, size_t bytes) const {
  if (std::fwrite(data, 1, bytes, file.get()) != bytes) cannot_write(output_, errno);
}

void TokenWriter::finish(File file) const {
  if (std::fflush(file.get()) != 0 || ::fsync(::fileno(file.get())) != 0) cannot_write(output_, errno);
  if (std::fclose(file.release()) != 0) cannot_write(output_, errno);
}

void TokenWriter::begin_document() {
  const auto start = static_cast<uint64_t>(index_.tokens);
  write(documents_, &start, sizeof start);
  ++index_.documents;
}

void TokenWriter::append(std::span<const int32_t> tokens) {
  TRIREME_CHECK(index_.documents > 0, "tokens outside a document");
  if (tokens.empty()) return;
  const auto width = static_cast<size_t>(index_.token_bytes());
  buffer_.resize(tokens.size() * width);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= index_.vocab_size)
      throw DataError(concat("token ", index_.tokens + static_cast<int64_t>(i), " is ", tokens[i], ", outside the tokenizer's vocabulary of ",
                             index_.vocab_size));
    std::memcpy(buffer_.data() + i * width, &tokens[i], width);  // the low bytes: little-endian
  }
  write(tokens_, buffer_.data(), buffer_.size());
  index_.tokens += static_cast<int64_t>(tokens.size());
}

TokenWriter::Outcome TokenWriter::commit() {
  if (index_.tokens == 0) throw DataError(concat(output_.string(), ": there is no token to write"));
  const auto end = static_cast<uint64_t>(index_.tokens);
  write(documents_, &end, sizeof end);
  finish(std::move(tokens_));
  finish(std::move(documents_));
  File index = create(kFiles[2]);
  const std::string json = index_.to_json();
  write(index, json.data(), json.size());
  finish(std::move(index));

  // rename replaces an empty directory and nothing else, so two builds of one output cannot overwrite each other.
  if (::rename(partial_.c_str(), output_.c_str()) == 0) {
    partial_.clear();
    first_created_.clear();
    return Outcome::kWritten;
  }
  const int error_number = errno;
  std::error_code ignored;
  if (!fs::exists(output_, ignored)) cannot_write(output_, error_number);
  if (!same_content(partial_, output_)) refuse_existing(output_);
  discard();
  return Outcome::kUnchanged;
}

}  // namespace trireme
