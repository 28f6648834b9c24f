#include "trainer/config/tree.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/core/check.h"
#include "trainer/config/bind.h"

namespace trireme {
namespace {

/// Key path and value of "key.path=value".
std::pair<std::string, std::string> split_set(const std::string& set, const std::string& option) {
  const size_t equals = set.find('=');
  const std::string path = set.substr(0, equals);
  // YAML would fold a line feed into a space and silently change the value.
  if (const std::string control = control_character_in(set); !control.empty())
    throw ConfigError(concat(option,
                             control_character_in(path).empty() ? " " + path + ": " + control + " in the value" : ": " + control + " in the key",
                             "; allowed text without control characters"));
  constexpr int64_t kDeepest = 32;  // the limit for files, kMaxYamlDepth
  if (std::ranges::count(path, '.') >= kDeepest)
    throw ConfigError(concat(option, ": the key path has more than ", kDeepest, " parts; allowed key.path=value, e.g. parallel.tensor=2"));
  if (equals == set.npos || path.empty() || path.front() == '.' || path.back() == '.' || path.find("..") != path.npos)
    throw ConfigError(
        concat(option, " ", set, ": not of the form key.path=value, e.g. ", option, option == "--cluster-set" ? " nodes=2" : " parallel.tensor=2"));
  return {path, set.substr(equals + 1)};
}

/// The node at a path of keys; nullptr if there is none.
const YamlNode* find(const YamlNode& root, const std::string& path) {
  const size_t dot = path.find('.');
  const std::string key = path.substr(0, dot);
  const auto child = std::find_if(root.children.begin(), root.children.end(), [&](const YamlNode& c) { return c.key == key; });
  if (child == root.children.end()) return nullptr;
  return dot == path.npos ? &*child : find(*child, path.substr(dot + 1));
}

void apply_set(YamlNode& root, const std::string& path, const std::string& text, int source, const Sources& sources, Violations& violations) {
  YamlNode value = parse_yaml(text, source, sources, violations);
  value.at = value.key_at = {source, 1, 1};
  if (value.kind == YamlNode::Kind::kMapping && value.children.empty()) value.kind = YamlNode::Kind::kNull;  // the value is missing
  if (value.kind == YamlNode::Kind::kMapping) {
    violations.add({value.at, path, text, "sets one key at a time, not a section", "a plain value or a list, e.g. [a, b]"});
    return;
  }
  if (const YamlNode* const section = find(root, path);
      value.kind == YamlNode::Kind::kNull && section != nullptr && section->kind == YamlNode::Kind::kMapping) {
    violations.add({value.at, path, text, "null would drop the whole section", "its keys one at a time"});
    return;
  }
  const Location at = value.at;
  if (!put(root, path, std::move(value))) violations.add({at, path, text, "unknown key: a part of the path is a value, not a section"});
}

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

/// Waits for text from a pipe or another file that is not regular. Returns false if the writer has closed it. A named pipe that no process has opened
/// for writing reads as end of file, so the caller accepts an end of file only after some text. Errors: IoError after 10 seconds without text.
bool wait_for_text(int descriptor, const std::string& path) {
  constexpr int kSeconds = 10;
  pollfd source{descriptor, POLLIN, 0};
  const int ready = ::poll(&source, 1, kSeconds * 1000);
  if (ready < 0 && errno == EINTR) return true;
  if (ready == 0) throw IoError(concat(path, ": cannot be read: nothing was written to this pipe for ", kSeconds, " seconds"));
  return (source.revents & POLLIN) != 0;
}

}  // namespace

std::string read_yaml_file(const std::string& path, const std::string& what) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) throw MissingFileError(concat(path, ": no such ", what));
  if (status.type() == std::filesystem::file_type::directory) throw IoError(concat(path, ": a directory, where a ", what, " is expected"));
  // O_NONBLOCK: opening a named pipe would otherwise wait until another process opens it for writing.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) throw IoError(concat(path, ": cannot be opened: ", std::strerror(errno)));
  std::string text(kMaxYamlBytes + 1, '\0');  // bounds the read of an endless file
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(file.number, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) throw IoError(concat(path, ": cannot be read: ", std::strerror(errno)));
    if (count > 0) {
      size += static_cast<size_t>(count);
    } else if ((count == 0 && (size > 0 || status.type() != std::filesystem::file_type::fifo)) || !wait_for_text(file.number, path)) {
      break;
    }
  }
  text.resize(size);
  return text;
}

void apply_sets(YamlNode& root, const std::vector<std::string>& sets, Sources& sources, Violations& violations) {
  for (const std::string& set : sets) {
    const auto [path, value] = split_set(set, sources.option);
    sources.sets.push_back(path);
    apply_set(root, path, value, static_cast<int>(sources.sets.size()), sources, violations);
  }
}

}  // namespace trireme
