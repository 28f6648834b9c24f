// Writing files beside other users' files, and printing text from untrusted files.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/json_lines.h"
#include "trainer/files/plain_zero.h"
#include "trainer/files/printable.h"
#include "trainer/files/strict_json.h"
#include "trainer/files/terminal_filter.h"
#include "trainer/run/metrics_sink.h"

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using namespace trireme;

TEST_CASE("printable: exceptions of the standard library are worded, and have an exit code") {
  const auto text_and_code = [](const auto& error) { return std::pair(printable(static_cast<const std::exception&>(error)), exit_code_of(error)); };
  using Said = std::pair<std::string, ExitCode>;
  CHECK(text_and_code(DataError("a\x1b")) == Said("a\\x1b", ExitCode::kData));
  const auto failed = [](std::errc code) { return std::filesystem::filesystem_error("cannot open", "runs/a", std::make_error_code(code)); };
  CHECK(text_and_code(failed(std::errc::permission_denied)) == Said("runs/a: Permission denied", ExitCode::kIo));
  CHECK(text_and_code(failed(std::errc::no_such_file_or_directory)) == Said("runs/a: No such file or directory", ExitCode::kMissingFile));
  CHECK(text_and_code(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again), "thread")) ==
        Said("the system refused: Resource temporarily unavailable", ExitCode::kInternal));
  CHECK(text_and_code(std::out_of_range("stoi")) ==
        Said("a fault of this program (std::out_of_range); please report it with the command and the configuration", ExitCode::kInternal));
  CHECK(text_and_code(std::bad_alloc()).first.starts_with("out of memory: "));
}

TEST_CASE("printable: text of any language is unchanged, terminal control characters are escaped") {
  CHECK(printable("a line\n\tand \xc3\xa4\xc2\xa0\xe2\x82\xac\xf0\x9f\x9a\xa3 another") ==
        "a line\n\tand \xc3\xa4\xc2\xa0\xe2\x82\xac\xf0\x9f\x9a\xa3 another");
  CHECK(printable("\x1b[31mred\x07\r\x7f") == "\\x1b[31mred\\x07\\x0d\\x7f");
  CHECK(printable(std::string_view("\0", 1)) == "\\x00");
  CHECK(printable("\xc2\x9b"
                  "2J") == "\\xc2\\x9b2J");  // U+009B is ESC [ in one character
  CHECK(printable("\x9b"
                  "2J \xff \xc3") == "\\x9b2J \\xff \\xc3");
  CHECK(printable("\xe2\x82") == "\\xe2\\x82");
  CHECK(printable("").empty());
  const std::string once = printable("\x1b\x9b");
  CHECK(printable(once) == once);
  CHECK(printable(InternalError("\x1b")) == "\\x1b");
  CHECK_THAT(printable(std::bad_alloc()), Contains("out of memory"));
}

TEST_CASE("durable file: the temporary file of a killed writer is replaced, links and pipes are refused without blocking") {
  const test::TemporaryDirectory directory;
  const fs::path path = directory.path / "file", temporary = directory.path / "file.tmp", precious = directory.path / "precious";
  std::ofstream(precious) << "precious";
  std::ofstream(temporary) << "of an earlier writer, and longer than what comes";
  write_durably(path, "new");
  CHECK(read_text(path) == "new");
  CHECK_FALSE(fs::exists(temporary));

  std::ofstream(temporary) << "earlier";
  fs::create_hard_link(temporary, directory.path / "other name");
  write_durably(path, "newer");
  CHECK(read_text(directory.path / "other name") == "earlier");  // the other hard link is not changed

  fs::create_symlink(precious, temporary);
  CHECK_THROWS_WITH(write_durably(path, "x"), Contains("file.tmp exists and is not a regular file; remove it"));
  CHECK(read_text(precious) == "precious");
  CHECK(fs::is_symlink(temporary));
  fs::remove(temporary);
  fs::create_symlink(directory.path / "nowhere", temporary);
  CHECK_THROWS_AS(write_durably(path, "x"), IoError);
  CHECK_FALSE(fs::exists(directory.path / "nowhere"));
  fs::remove(temporary);
  REQUIRE(::mkfifo(temporary.c_str(), 0600) == 0);
  CHECK_THROWS_AS(write_durably(path, "x"), IoError);
  CHECK(read_text(path) == "newer");
}

TEST_CASE("metrics: a pipe or a link in place of the file is refused") {
  const test::TemporaryDirectory directory;
  const fs::path path = directory.path / "metrics.jsonl";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_AS(MetricsSink(path), IoError);
  fs::remove(path);
  fs::create_symlink(directory.path / "nowhere", path);
  CHECK_THROWS_WITH(MetricsSink(path), Contains("is a symbolic link"));
  CHECK_FALSE(fs::exists(directory.path / "nowhere"));
}

namespace {

/// Everything that may have a name where this program writes, and is not its file.
std::vector<std::pair<const char*, std::function<void(const fs::path& at)>>> foreign_things(const fs::path& precious) {
  const auto socket_at = [](const fs::path& at) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(at.string().size() < sizeof address.sun_path);
    std::strcpy(address.sun_path, at.c_str());
    const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    ::close(listener);
  };
  return {{"is a symbolic link", [=](const fs::path& at) { fs::create_symlink(precious, at); }},
          {"is a symbolic link", [=](const fs::path& at) { fs::create_symlink(precious.string() + ".new", at); }},
          {"is a symbolic link", [](const fs::path& at) { fs::create_symlink(at.filename(), at); }},
          {"is a symbolic link", [](const fs::path& at) { fs::create_symlink("/dev/null", at); }},
          {"hard link", [=](const fs::path& at) { fs::create_hard_link(precious, at); }},
          {"Is a directory", [](const fs::path& at) { fs::create_directory(at); }},
          {"not a regular file", [](const fs::path& at) { REQUIRE(::mkfifo(at.c_str(), 0600) == 0); }},
          {"not a regular file", socket_at}};
}

}  // namespace

TEST_CASE("writable file: links, second names, pipes, sockets and directories are refused without waiting, and nothing behind them changes") {
  const test::TemporaryDirectory directory;
  const fs::path precious = directory.path / "precious", at = directory.path / "file";
  std::ofstream(precious) << "precious";
  for (const auto& [reason, make] : foreign_things(precious))
    for (const Existing existing : {Existing::kRefused, Existing::kReplaced, Existing::kAppended, Existing::kChanged}) {
      make(at);
      INFO(reason << ", " << static_cast<int>(existing));
      const bool is_second_name = std::string_view(reason) == "hard link";
      if (is_second_name && existing == Existing::kReplaced) {
        const int file = open_writable(at, existing);
        CHECK(::write(file, "new", 3) == 3);
        ::close(file);
        CHECK(read_text(at) == "new");
      } else {
        CHECK_THROWS_WITH(open_writable(at, existing), Contains("cannot write " + at.string()) &&
                                                           Contains(is_second_name && existing == Existing::kRefused ? "File exists" : reason));
      }
      CHECK(read_text(precious) == "precious");
      CHECK_FALSE(fs::exists(precious.string() + ".new"));
      fs::remove(at);
    }
}

TEST_CASE("writable file: what becomes of a file that is there") {
  const test::TemporaryDirectory directory;
  const fs::path path = directory.path / "file";
  const auto after = [&](Existing existing) {
    std::ofstream(path) << "before";
    const int file = open_writable(path, existing);
    CHECK(::write(file, "new", 3) == 3);
    ::close(file);
    return read_text(path);
  };
  CHECK(after(Existing::kReplaced) == "new");
  CHECK(after(Existing::kAppended) == "beforenew");
  CHECK(after(Existing::kChanged) == "newore");
  CHECK_THROWS_WITH(open_writable(path, Existing::kRefused), Contains("File exists"));
  fs::remove(path);
  for (const Existing existing : {Existing::kRefused, Existing::kReplaced, Existing::kAppended, Existing::kChanged}) {
    const int file = open_writable(path, existing, 0600);
    struct stat status {};
    CHECK((::fstat(file, &status) == 0 && (status.st_mode & 0777) == 0600));
    ::close(file);
    fs::remove(path);
  }
  CHECK_THROWS_WITH(open_writable(directory.path / "nowhere" / "file", Existing::kAppended), Contains("No such file or directory"));
}

TEST_CASE("writable file: a directory below a foreign one is no link") {
  const test::TemporaryDirectory directory;
  const fs::path elsewhere = directory.path / "elsewhere", run = directory.path / "run";
  fs::create_directories(elsewhere);
  fs::create_directory_symlink(elsewhere, run);  // the user names this one
  CHECK(make_directories_in(run, "logs/deep") == run / "logs/deep");
  CHECK(make_directories_in(run, "logs/deep") == run / "logs/deep");
  CHECK(fs::is_directory(elsewhere / "logs" / "deep"));
  fs::create_directory_symlink(directory.path, elsewhere / "checkpoints");
  CHECK_THROWS_WITH(make_directories_in(run, "checkpoints"), Contains("checkpoints: is a symbolic link; expected the directory itself"));
  CHECK_THROWS_WITH(make_directories_in(run, "checkpoints/step"), Contains("is a symbolic link"));
  CHECK_FALSE(fs::exists(directory.path / "step"));
  fs::create_symlink("nowhere", elsewhere / "dangling");
  CHECK_THROWS_WITH(make_directories_in(run, "dangling"), Contains("is a symbolic link"));
  std::ofstream(elsewhere / "file") << "x";
  CHECK_THROWS_WITH(make_directories_in(run, "file"), Contains("is not a directory"));
}

TEST_CASE("JSON lines: deep, long, cut and foreign lines are left out, and the others are read") {
  const auto deep = [](size_t depth) { return R"({"x":)" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}"; };
  CHECK(json_line(deep(kMaxJsonDepth)).is_object());
  CHECK(json_line(deep(kMaxJsonDepth + 1)).is_null());
  CHECK(json_line(deep(1000000)).is_null());
  CHECK(json_line(R"({"x":)" + std::string(1000000, '[')).is_null());
  CHECK(json_line(R"({"x":")" + std::string(1000, '[') + R"("})").is_object());
  CHECK(json_line(R"({"x":"\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["})").is_object());
  CHECK(json_line(R"({"x":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]})").is_object());
  for (const char* text : {"", "[1]", "1", "null", "{\"a\":", "{\"a\":1e999}", "{\"a\":\"\xff\"}", "{}{}", "\x1f\x8b"})
    CHECK(json_line(text).is_null());
  CHECK_THROWS_WITH(parse_value(std::string(100000, '['), "text"), "text: JSON nested deeper than 32");
  CHECK_THROWS_WITH(parse_object(deep(33), "text"), "text: JSON nested deeper than 32");
  CHECK(parse_value("[1]", "text").is_array());

  const test::TemporaryDirectory directory;
  const fs::path path = directory.path / "lines.jsonl";
  std::ofstream(path) << "{\"a\":1}\n" << deep(160000) << "\n\n" << std::string(3 << 20, 'x') << "\n{\"a\":2}\r\n{\"a\":3}";
  std::vector<int> found;
  int damaged = 0;
  bool whole = true;
  for (JsonLines lines(path.string()); lines.next();) {
    lines.value().is_object() ? found.push_back(lines.value().at("a").get<int>()) : void(++damaged);
    whole = lines.is_whole();
  }
  CHECK(found == std::vector<int>{1, 2, 3});
  CHECK(damaged == 3);
  CHECK_FALSE(whole);  // the last line has no newline
  CHECK_THROWS_AS(JsonLines((directory.path / "none").string()), MissingFileError);
  fs::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_AS(JsonLines(path.string()), DataError);
}

TEST_CASE("printable: characters that change the direction of text are escaped, and long names are cut with a mark") {
  for (const char* one : {"\xe2\x80\x8e", "\xe2\x80\x8f", "\xe2\x80\xaa", "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x81\xa9", "\xd8\x9c"}) {
    const std::string shown = printable(concat("a", one, "b"));
    CHECK(shown.find_first_of("\xe2\xd8") == shown.npos);
    CHECK((shown.starts_with("a\\x") && shown.ends_with("b")));
  }
  for (const char* one : {"\xe2\x80\x8d", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\xa5", "\xe2\x81\xaa", "\xd8\x9d", "\xd7\xa9\xd7\x9c"})
    CHECK(printable(one) == one);
  const std::string euros = [] {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += "\xe2\x82\xac";
    return text;
  }();
  const std::string shown = printable(InternalError("first\nname " + euros + ": is not allowed\nlast"));
  CHECK(shown.size() < 5000);
  CHECK_THAT(shown, Contains("first\nname \xe2\x82\xac") && Contains(" bytes are left out ...] \xe2\x82\xac") &&
                        Contains("\xe2\x82\xac: is not allowed\nlast"));
  CHECK(printable(std::string_view(shown)) == shown);  // still UTF-8
  CHECK(printable(InternalError(std::string(4000, 'a'))) == std::string(4000, 'a'));
}

TEST_CASE("terminal filter: what reaches a terminal is printable, in whole characters, however it is written") {
  std::ostringstream terminal;
  {
    const TerminalFilter filter(terminal);
    terminal << "a\x1b[31m\r" << std::flush << '\xe2' << std::flush << '\x82' << "\xac" << '\n'
             << 12 << "\xc2"
             << "\x9b"
             << "2J\xe2\x80";
    terminal.put('\xae');
    terminal << "\xff\t\xe2\x82";
    CHECK(terminal.good());
  }
  CHECK(terminal.str() == "a\\x1b[31m\\x0d\xe2\x82\xac\n12\\xc2\\x9b2J\\xe2\\x80\\xae\\xff\t\\xe2\\x82");
  terminal << "\x1b";
  CHECK(terminal.str().ends_with("\x1b"));  // the filter is gone
  terminal.str("");
  {
    const TerminalFilter filter(terminal, TerminalFilter::CarriageReturn::kPasses);
    terminal << "\rone\x1b\r\rtwo\r";
  }
  CHECK(terminal.str() == "\rone\\x1b\r\rtwo\r");
  CHECK(unfinished_character("a\xe2\x82") == 2);
  CHECK(unfinished_character("\xe2\x82\xac") == 0);
  CHECK(unfinished_character("\x82\x82\x82\x82") == 0);
  CHECK(unfinished_character("") == 0);
}

TEST_CASE("plain zero: a number that rounds to zero has no sign, and nothing else changes") {
  CHECK(plain_zero("loss -0.0000") == "loss 0.0000");
  CHECK(plain_zero("-0, -0.0 %, (-0.00)") == "0, 0.0 %, (0.00)");
  CHECK(plain_zero("step      -0.0000  1") == "step       0.0000  1");
  for (const char* text : {"-0.0001", "1e-0", "2026-00-00", "a-0", "-0.0e5", "-00", "--0", "x -0-1", "- 0", "-", "-0x1", "-0.", "-.0", "1 - 0.0"})
    CHECK(plain_zero(text) == text);
  CHECK(concat(-0.0, " ", -0.0F, " ", -1.5) == "0 0 -1.5");
}
