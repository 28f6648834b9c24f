#include "trainer/data/build/inputs.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "kernels/core/check.h"
#include "trainer/data/build/text_check.h"
#include "trainer/files/digest.h"
#include "trainer/files/mapped_file.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct stat status_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_file_error(path, "cannot open", errno);
  return status;
}

void visit_file(const std::string& path, const struct stat& status, bool named, const std::function<void(const Input&)>& visit) {
  if (::access(path.c_str(), R_OK) != 0) throw_file_error(path, "cannot open", errno);
  const bool regular = S_ISREG(status.st_mode);
  if (regular && named && status.st_size == 0) throw DataError(concat(path, ": is empty"));
  if (regular) check_text_file(path);
  visit({path, named, regular, regular ? status.st_size : 0, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec});
}

void visit_directory(const std::string& path, const std::function<void(const Input&)>& visit) {
  check_not_dataset(path);
  std::vector<std::string> names;  // names of directories end in a slash, so that sorting gives the byte order of the paths below them
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.starts_with('.')) continue;
    std::error_code ignored;
    if (entry->is_directory(ignored)) name += '/';
    names.push_back(std::move(name));
  }
  if (error) throw_file_error(path, "cannot read", error.value());
  std::sort(names.begin(), names.end());
  if (std::binary_search(names.begin(), names.end(), "index.json") && std::binary_search(names.begin(), names.end(), "tokens.bin"))
    throw DataError(concat(path, ": is a token directory, not text"));
  const std::string prefix = path.ends_with('/') ? path : path + "/";
  for (const std::string& name : names) {
    const std::string below = prefix + name;
    if (!name.ends_with('/')) {
      if (const struct stat status = status_of(below); S_ISREG(status.st_mode)) visit_file(below, status, false, visit);
      continue;
    }
    const std::string directory = below.substr(0, below.size() - 1);
    if (fs::is_symlink(directory))
      throw DataError(concat(directory, ": is a link to a directory; name that directory instead"));  // links can form cycles
    visit_directory(directory, visit);
  }
}

}  // namespace

bool has_json_lines(const std::string& path) { return path.ends_with(".jsonl") || path.ends_with(".ndjson"); }

void for_each_input(const std::vector<std::string>& paths, const std::function<void(const Input&)>& visit) {
  for (const std::string& path : paths) {
    if (path == "-") {  // read once from its current position, even if it is a regular file
      visit({.path = "standard input", .regular = false, .standard_input = true});
      continue;
    }
    const struct stat status = status_of(path);
    if (S_ISDIR(status.st_mode)) {
      visit_directory(path, visit);
    } else {
      visit_file(path, status, true, visit);
    }
  }
}

InputSurvey survey_inputs(const std::vector<std::string>& paths) {
  InputSurvey survey;
  Digest digest;
  for_each_input(paths, [&](const Input& input) {
    ++survey.files;
    survey.bytes += input.bytes;
    survey.regular = survey.regular && input.regular;
    digest.update(concat(input.path, '\0', input.regular, ' ', input.bytes, ' ', input.regular ? input.changed : 0, '\n'));
  });
  survey.digest = digest.str();
  return survey;
}

static int open_input(const Input& input) {
  if (input.standard_input) return ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  return ::open(input.path.c_str(), O_RDONLY | O_CLOEXEC | (input.regular ? 0 : O_NONBLOCK));
}

InputReader::InputReader(const Input& input, int64_t offset) : input_(input), descriptor_(open_input(input)), offset_(offset) {
  if (descriptor_ < 0) throw_file_error(input_.path, "cannot open", errno);
  if (offset == 0 || ::lseek(descriptor_, offset, SEEK_SET) == offset) return;
  const int error_number = errno;
  ::close(descriptor_);
  throw_file_error(input_.path, "cannot seek", error_number);
}

InputReader::~InputReader() { ::close(descriptor_); }

bool InputReader::fill(std::string& text, size_t bytes, const std::function<void()>& interrupted) {
  size_t size = text.size();
  if (size >= bytes) return true;
  text.resize(bytes);
  while (size < bytes) {
    interrupted();
    // The timeout is for stop signals: the signal thread only sets a flag, which interrupted() checks.
    pollfd source{descriptor_, POLLIN, 0};
    if (!input_.regular && ::poll(&source, 1, 100) <= 0) continue;
    const ssize_t count = ::read(descriptor_, text.data() + size, bytes - size);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) throw_file_error(input_.path, "cannot read", errno);
    if (count == 0) break;
    size += static_cast<size_t>(count);
    offset_ += count;
  }
  text.resize(size);
  if (size == bytes) return true;
  if (input_.regular && offset_ != input_.bytes)
    throw DataError(concat(input_.path, ": changed from ", input_.bytes, " to ", offset_, " bytes while it was read"));
  return false;
}

}  // namespace trireme
