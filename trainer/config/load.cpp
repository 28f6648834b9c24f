#include "trainer/config/load.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kernels/core/check.h"
#include "trainer/config/bind.h"
#include "trainer/config/check.h"
#include "trainer/config/yaml.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {
namespace {

/// At most one byte more than the reader takes, so that an endless file ends here.
std::string read_text(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) throw MissingFileError(concat(path, ": no such configuration file"));
  if (status.type() == std::filesystem::file_type::directory) throw IoError(concat(path, ": a directory, where a configuration file is expected"));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError(concat(path, ": cannot be opened: ", std::strerror(errno)));
  std::string text(kMaxYamlBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw IoError(concat(path, ": cannot be read: ", std::strerror(errno)));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

/// Key path and value of "key.path=value".
std::pair<std::string, std::string> split_set(const std::string& set) {
  const size_t equals = set.find('=');
  const std::string path = set.substr(0, equals);
  if (equals == set.npos || path.empty() || path.front() == '.' || path.back() == '.' || path.find("..") != path.npos)
    throw ConfigError(concat("--set ", set, ": not of the form key.path=value, e.g. --set parallel.tensor=2"));
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

int64_t vocab_size_of(const std::string& tokenizer, const Sources& sources) {
  try {
    return Tokenizer::open(tokenizer).vocab_size();
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    if (!message.starts_with("tokenizer=")) throw;
    throw ConfigError(concat(sources.name_of(sources.locate("data.tokenizer")), " data.", message));
  }
}

}  // namespace

LoadedConfig parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& sets) {
  LoadedConfig loaded;
  Violations violations;
  loaded.sources.file = name;
  YamlNode root = parse_yaml(text, 0, loaded.sources, violations);
  for (const std::string& set : sets) {
    const auto [path, value] = split_set(set);
    loaded.sources.sets.push_back(path);
    apply_set(root, path, value, static_cast<int>(loaded.sources.sets.size()), loaded.sources, violations);
  }
  bind(root, loaded.config, loaded.sources, violations);
  check(loaded.config, loaded.sources, violations);
  violations.raise(loaded.sources);
  DataConfig& data = loaded.config.data;
  if (data.tokenizer != "bytes" && !loaded.config.model.vocab_size) data.tokenizer_vocab_size = vocab_size_of(data.tokenizer, loaded.sources);
  return loaded;
}

LoadedConfig load_config(const std::string& path, const std::vector<std::string>& sets) { return parse_config(read_text(path), path, sets); }

}  // namespace trireme
