#pragma once
// Runs a command of trireme in this process.
#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

#include "trainer/commands/config_command.h"

namespace trireme::test {

/// Returns the exit code and what was printed. `add` adds the command to the program. Errors: those of the command, and CLI::ParseError.
inline std::pair<int, std::string> command_output(const std::function<void(CLI::App& app, int& exit_code)>& add, const std::string& arguments) {
  CLI::App app;
  int exit_code = -1;
  add(app, exit_code);
  std::ostringstream out;
  std::streambuf* const before = std::cout.rdbuf(out.rdbuf());
  try {
    app.parse(arguments, false);
  } catch (...) {
    std::cout.rdbuf(before);
    throw;
  }
  std::cout.rdbuf(before);
  return {exit_code, out.str()};
}

/// The same of `trireme config ...`.
inline std::pair<int, std::string> config_output(const std::string& arguments) { return command_output(add_config_command, arguments); }

}  // namespace trireme::test
