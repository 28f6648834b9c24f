#pragma once
// Runs `trireme config ...` in this process.
#include <CLI/CLI.hpp>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

#include "trainer/commands/config_command.h"

namespace trireme::test {

/// Returns the exit code and what was printed. Errors: those of the command, and CLI::ParseError.
inline std::pair<int, std::string> config_output(const std::string& arguments) {
  CLI::App app;
  int exit_code = -1;
  add_config_command(app, exit_code);
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

}  // namespace trireme::test
