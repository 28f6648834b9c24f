#include "trainer/job/spawn.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "kernels/core/check.h"

namespace trireme {

pid_t spawn(const std::vector<std::string>& command, const SpawnOptions& options) {
  const std::vector<char*> words = exec_words(command), environment = exec_words(options.environment);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const auto& [descriptor, stream] : {std::pair(options.output, STDOUT_FILENO), std::pair(options.errors, STDERR_FILENO)})
    if (descriptor)
      posix_spawn_file_actions_adddup2(&files, *descriptor, stream);
    else
      posix_spawn_file_actions_addopen(&files, stream, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int group = options.own_group ? POSIX_SPAWN_SETPGROUP : 0;
  posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | group));
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, words[0], &files, &attributes, words.data(), options.environment.empty() ? environ : environment.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error == ENOENT) return 0;
  if (error != 0) throw IoError(concat("cannot start ", command[0], ": ", std::strerror(error)));
  return child;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& values) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : values) variables.push_back(concat(name, "=", value));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!values.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  return variables;
}

std::vector<char*> exec_words(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace trireme
