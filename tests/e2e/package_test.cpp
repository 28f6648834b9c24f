// What `cmake --install` leaves: the program, its manual pages and completions. tests/package_test.sh installs the packages on a bare system.
#include <sstream>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// Commands that `trireme COMMAND --help` lists, with their own: "train", "data build".
std::vector<std::string> commands_of(const TemporaryDirectory& directory, const Arguments& parent) {
  std::vector<std::string> found;
  std::istringstream help(must(directory, parent + Arguments{"--help"}).out);
  bool lists = false;
  for (std::string line; std::getline(help, line);) {
    if (lists && line.starts_with("  ") && !line.starts_with("   ")) found.push_back(line.substr(2, line.find(' ', 2) - 2));
    lists = lists || line.starts_with("Subcommands");
  }
  return found;
}

}  // namespace

TEST_CASE("package: an installed program trains, has a manual page for every command, and completes its options") {
  TemporaryDirectory directory;
  const std::string build = fs::path(kBinary).parent_path();
  const Outcome installed = Process({"cmake", "--install", build, "--prefix", (directory / "usr").string()}, directory.path()).wait();
  INFO(installed.err);
  REQUIRE(installed.code == 0);
  for (const char* file : {"share/doc/trireme/README.md", "share/doc/trireme/docs/hosts.md", "share/trireme/configs/quickstart.yaml"})
    CHECK(fs::exists(directory / "usr" / file));
  build_data(directory);
  write_file(directory / "run.yaml", kConfig);
  const std::string program = directory / "usr/bin/trireme";
  must(Process({program, "train", "run.yaml"}, directory.path()).wait());
  losses(directory / "run", 6);

  const std::vector<std::string> commands = commands_of(directory, {});
  REQUIRE(commands.size() > 15);
  for (const std::string& command : commands) {
    INFO(command);
    const std::string page = directory / ("usr/share/man/man1/trireme-" + command + ".1");
    REQUIRE(fs::exists(page));
    CHECK(read_file(page).find(".SH SYNOPSIS\n") != std::string::npos);
  }
  CHECK(fs::exists(directory / "usr/share/man/man1/trireme-data-build.1"));
  const Outcome one = must(directory, {"manual", "data", "build"});
  CHECK(one.out == read_file(directory / "usr/share/man/man1/trireme-data-build.1"));
  CHECK(one.out.find(".TP\n\\fB\\-\\-output\\fR ") != std::string::npos);

  write_file(directory / "complete.sh",
             "source usr/share/bash-completion/completions/trireme\n"
             "COMP_WORDS=(trireme data build --tok); COMP_CWORD=3; _trireme; echo \"${COMPREPLY[*]}\"\n"
             "COMP_WORDS=(trireme tra); COMP_CWORD=1; _trireme; echo \"${COMPREPLY[*]}\"\n");
  CHECK(must(Process({"bash", "complete.sh"}, directory.path()).wait()).out == "--tokenizer\ntrain\n");
}

TEST_CASE("package: the manual pages are valid, and refused for unknown commands") {
  TemporaryDirectory directory;
  check_error(run(directory, {"manual", "data", "bild"}), 64, "manual: unknown command: trireme data bild");
  check_error(run(directory, {"manual", "train", "--output", "pages"}), 64, "--output: writes the pages of all commands");
  CHECK_FALSE(fs::exists(directory / "pages"));
  write_file(directory / "file", "");
  check_error(run(directory, {"manual", "--output", "file/pages"}), 74, "cannot create file/pages");
  must(directory, {"manual", "--output", "pages"});
  if (Process({"sh", "-c", "command -v groff"}, directory.path()).wait().code != 0) {
    WARN("groff is not installed: pages were not rendered");
    return;
  }
  const Outcome rendered = Process({"sh", "-c", "groff -man -Tutf8 -ww -W break pages/*.1"}, directory.path()).wait();
  CHECK(rendered.code == 0);
  CHECK(rendered.err == "");
  CHECK(rendered.out.find("Print this help message and exit\n") != std::string::npos);
  CHECK(rendered.out.find("resilience.restarts") != std::string::npos);  // not hyphenated
}

}  // namespace trireme::test
