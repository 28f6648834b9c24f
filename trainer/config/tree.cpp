#include "trainer/config/tree.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kernels/core/check.h"
#include "trainer/config/bind.h"

namespace trireme {
namespace {

/// Key path and value of "key.path=value".
std::pair<std::string, std::string> split_set(const std::string& set, const std::string& option) {
  const size_t equals = set.find('=');
  const std::string path = set.substr(0, equals);
  if (equals == set.npos || path.empty() || path.front() == '.' || path.back() == '.' || path.find("..") != path.npos)
    throw ConfigError(concat(option, " ", set, ": not of the form key.path=value, e.g. ", option,
                             option == "--cluster-set" ? " nodes=2" : " parallel.tensor=2"));
  return {path, set.substr(equals + 1)};
}

void apply_set(YamlNode& root, const std::string& path, const std::string& text, int source, const Sources& sources, Violations& violations) {
  YamlNode value = parse_yaml(text, source, sources, violations);
  value.at = value.key_at = {source, 1, 1};
  if (value.kind == YamlNode::Kind::kMapping && value.children.empty()) value.kind = YamlNode::Kind::kNull;  // the value is missing
  if (value.kind == YamlNode::Kind::kMapping) {
    violations.add({value.at, path, text, "one key at a time", "a plain value or a list, e.g. [a, b]"});
    return;
  }
  const Location at = value.at;
  if (!put(root, path, std::move(value))) violations.add({at, path, text, "unknown key: the path leads through a value, not a section"});
}

}  // namespace

std::string read_yaml_file(const std::string& path, const std::string& what) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) throw MissingFileError(concat(path, ": no such ", what));
  if (status.type() == std::filesystem::file_type::directory) throw IoError(concat(path, ": a directory, where a ", what, " is expected"));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError(concat(path, ": cannot be opened: ", std::strerror(errno)));
  std::string text(kMaxYamlBytes + 1, '\0');  // so that an endless file ends here
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw IoError(concat(path, ": cannot be read: ", std::strerror(errno)));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

YamlNode read_tree(const std::string& text, const std::vector<std::string>& sets, Sources& sources, Violations& violations) {
  YamlNode root = parse_yaml(text, 0, sources, violations);
  for (const std::string& set : sets) {
    const auto [path, value] = split_set(set, sources.option);
    sources.sets.push_back(path);
    apply_set(root, path, value, static_cast<int>(sources.sets.size()), sources, violations);
  }
  return root;
}

}  // namespace trireme
