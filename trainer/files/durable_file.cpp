#include "trainer/files/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/files/descriptor.h"

namespace trireme {
namespace {

[[noreturn]] void fail(const char* verb, const std::filesystem::path& path) {
  throw IoError(concat("cannot ", verb, " ", path.string(), ": ", std::strerror(errno)));
}

}  // namespace

void check_replaceable(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  const bool there = std::filesystem::exists(status);
  if (there && !std::filesystem::is_regular_file(status))
    throw IoError(concat("cannot write ", path.string(), ": it exists and is not a regular file; choose another name"));
  if (!there && path.has_parent_path() && !std::filesystem::is_directory(path.parent_path(), error))
    throw IoError(concat("cannot write ", path.string(), ": no such directory: ", path.parent_path().string()));
}

DurableFile::DurableFile(std::filesystem::path path) : path_(std::move(path)), temporary_(path_.string() + ".tmp") {
  check_replaceable(path_);
  descriptor_ = try_open_writable(temporary_, Existing::kReplaced);  // a regular file of that name was left by a killed writer
  if (descriptor_ < 0 && (errno == EINVAL || errno == ELOOP || errno == EISDIR))
    throw IoError(concat("cannot write ", path_.string(), ": ", temporary_.string(), " exists and is not a regular file; remove it"));
  if (descriptor_ < 0) fail("create", temporary_);
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void DurableFile::write(const void* data, size_t bytes) {
  constexpr int64_t kStretch = 8 << 20;
  bytes_ += static_cast<int64_t>(bytes);
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", temporary_);
    next += written;
    bytes -= static_cast<size_t>(written);
  }
  if (bytes_ - sent_ < kStretch) return;
  // Starts write-back early, so that fsync has little left to do. Errors are ignored here, because fsync reports them.
  ::sync_file_range(descriptor_, sent_, bytes_ - sent_, SYNC_FILE_RANGE_WRITE);
  sent_ = bytes_;
}

void DurableFile::commit() {
  if (::fsync(descriptor_) != 0) fail("sync", temporary_);
  // Network file systems may report a full disk or quota only here.
  if (::close(std::exchange(descriptor_, -1)) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    fail("write", path_);
  }
}

void write_durably(const std::filesystem::path& path, std::string_view text) {
  DurableFile file(path);
  file.write(text);
  file.commit();
}

void sync_directory(const std::filesystem::path& path) {
  const std::filesystem::path name = path.empty() ? "." : path;
  const Descriptor directory(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory < 0 && (errno == ENOENT || errno == ENOTDIR)) throw MissingFileError(concat(name.string(), " does not exist"));
  if (directory < 0) fail("open", name);
  if (::fsync(directory) != 0 && errno != EINVAL) fail("sync", path);  // EINVAL: the file system does not support it
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("rename to", to);
  sync_directory(to.parent_path());
}

std::string read_text(const std::filesystem::path& path, int64_t max_bytes, Links links) {
  const MappedFile file(path.string(), links);
  if (file.bytes() > max_bytes) throw DataError(concat(path.string(), ": too large: ", file.bytes(), " bytes; at most ", max_bytes, " are allowed"));
  file.load(0, file.bytes());
  return {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.bytes())};
}

}  // namespace trireme
