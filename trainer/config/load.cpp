#include "trainer/config/load.h"

#include <filesystem>

#include "kernels/core/check.h"
#include "trainer/config/bind.h"
#include "trainer/config/check.h"
#include "trainer/config/include.h"
#include "trainer/config/tree.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {
namespace {

int64_t vocab_size_of(const std::string& tokenizer, const Sources& sources) {
  try {
    return Tokenizer::open(tokenizer).vocab_size();
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    if (!message.starts_with("tokenizer=")) throw;
    throw ConfigError(concat(sources.name_of(sources.locate("data.tokenizer")), " data.", message));
  }
}

LoadedConfig parse(const std::string& text, const std::string& name, const std::vector<std::string>& sets, bool includes) {
  LoadedConfig loaded;
  Violations violations;
  loaded.sources.file = name;
  YamlNode root = parse_yaml(text, 0, loaded.sources, violations);
  if (includes) expand_includes(root, loaded.sources, violations);
  apply_sets(root, sets, loaded.sources, violations);
  bind(root, loaded.config, loaded.sources, violations);
  check(loaded.config, loaded.sources, violations);
  violations.raise(loaded.sources);
  DataConfig& data = loaded.config.data;
  if (data.tokenizer != "bytes" && !loaded.config.model.vocab_size) data.tokenizer_vocab_size = vocab_size_of(data.tokenizer, loaded.sources);
  return loaded;
}

}  // namespace

LoadedConfig parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& sets) {
  return parse(text, name, sets, false);
}

void check_read_again(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored)) return;
  throw ConfigError(concat(path, ": not a regular file, but every rank reads the configuration; allowed a regular file"));
}

LoadedConfig load_config(const std::string& path, const std::vector<std::string>& sets) {
  return parse(read_yaml_file(path, "configuration file"), path, sets, true);
}

}  // namespace trireme
