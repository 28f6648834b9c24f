#include "trainer/files/append_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/files/durable_file.h"

namespace trireme {

namespace {

int opened(const std::filesystem::path& path, AppendFile::Open open) {
  check_replaceable(path);
  return open_writable(path, open == AppendFile::Open::kNew ? Existing::kRefused : Existing::kChanged);
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, Open open)
    : path_(std::move(path)), file_(opened(path_, open)), written_(::lseek(file_, 0, SEEK_END)) {}

void AppendFile::append(std::string record) {
  waiting_.push_back(std::move(record));
  error_.clear();
  while (!waiting_.empty() && write_first()) {
    written_ += static_cast<int64_t>(waiting_.front().size());
    waiting_.pop_front();
  }
}

/// Leaves nothing of a record that does not fit.
bool AppendFile::write_first() {
  const std::string& record = waiting_.front();
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t count = ::pwrite(file_, record.data() + done, record.size() - done, written_ + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  if (done == record.size()) return true;
  error_ = concat("cannot write ", path_.string(), ": ", std::strerror(errno));
  if (done > 0 && ::ftruncate(file_, written_) != 0) error_ = concat("cannot truncate ", path_.string(), ": ", std::strerror(errno));
  return false;
}

void AppendFile::sync() const { ::fdatasync(file_); }

void AppendFile::sync_all() const {
  if (!waiting_.empty()) throw IoError(error_);
  if (::fdatasync(file_) != 0) throw IoError(concat("cannot write ", path_.string(), ": ", std::strerror(errno)));
}

void AppendFile::check_unchanged() const {
  const int64_t bytes = ::lseek(file_, 0, SEEK_END);
  if (bytes != written_) throw IoError(concat(path_.string(), ": has ", bytes, " bytes instead of ", written_, ": another program changes it"));
}

}  // namespace trireme
