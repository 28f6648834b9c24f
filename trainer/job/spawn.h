#pragma once
// Starts programs without a shell.
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct SpawnOptions {
  std::optional<int> output = {}, errors = {};  ///< descriptors that become standard output and standard error; nullopt: /dev/null
  bool own_group = false;                       ///< the program gets a process group of its own
  std::vector<std::string> environment = {};    ///< NAME=VALUE each; empty: the environment of this process
};

/// Starts command[0], which is looked up in PATH, without standard input and with the default action of every signal: this process blocks most of them, for its
/// signal thread. Returns the process, or 0 if there is no such program. Errors: IoError.
pid_t spawn(const std::vector<std::string>& command, const SpawnOptions& options);

/// The environment of this process, NAME=VALUE each, in which these names have these values.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& values);

/// Pointers to the words, and a null pointer behind them, as exec(3) takes them.
std::vector<char*> exec_words(const std::vector<std::string>& words);

}  // namespace trireme
