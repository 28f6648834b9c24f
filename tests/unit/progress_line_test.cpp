// The progress line of long commands: its text, and that it is only printed to a terminal.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <streambuf>

#include "tests/support/catch.h"
#include "trainer/files/progress_line.h"

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

/// Writes to standard error unbuffered, like std::cerr.
class ToStandardError final : public std::streambuf {
  int_type overflow(int_type c) override {
    const char byte = traits_type::to_char_type(c);
    return ::write(STDERR_FILENO, &byte, 1) == 1 ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize count) override { return ::write(STDERR_FILENO, text, static_cast<size_t>(count)); }
};

/// Runs `body` with standard error redirected to `file`. Catch's machine-readable reporters capture std::cerr, so it must be redirected as well.
template <class Body>
void with_standard_error(int file, Body&& body) {
  ToStandardError direct;
  std::streambuf* const stream = std::cerr.rdbuf(&direct);
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(file, STDERR_FILENO);
  body();
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  std::cerr.rdbuf(stream);
}

/// What `body` writes to standard error on a terminal with `columns` columns.
template <class Body>
std::string on_terminal(unsigned short columns, Body&& body) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(master >= 0);
  REQUIRE(::grantpt(master) == 0);
  REQUIRE(::unlockpt(master) == 0);
  const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  REQUIRE(slave >= 0);
  const winsize size{24, columns, 0, 0};
  REQUIRE(::ioctl(slave, TIOCSWINSZ, &size) == 0);
  with_standard_error(slave, body);
  ::close(slave);  // a read of the master ends with an error once it has returned everything, however late the kernel passes it on
  std::string text;
  char buffer[4096];
  for (ssize_t bytes = 0; (bytes = ::read(master, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(bytes));
  ::close(master);
  return text;
}

}  // namespace

TEST_CASE("progress line: share, rate and time left") {
  constexpr auto kBytes = ProgressUnit::kBytes, kItems = ProgressUnit::kItems;
  CHECK(progress_text("reading", kBytes, 512 << 20, 1 << 30, 512 << 20, 16) ==
        "reading [############............] 50 % of 1 GiB, 32 MiB/s, 0:16 left");
  CHECK(progress_text("merging", kItems, 300, 1300, 10, 100, "now") == "merging [#####...................] 23 % of 1300, 0/s, 2:46:40 left, now");
  CHECK(progress_text("reading", kBytes, 3 << 20, 0, 3 << 20, 2) == "reading 3 MiB, 1.5 MiB/s");
  CHECK(progress_text("reading", kBytes, 0, 100, 0, 0) == "reading [........................] 0 % of 100 B");
  // Bytes of an earlier attempt do not count towards the rate.
  CHECK_THAT(progress_text("reading", kBytes, 900, 1000, 100, 1), Contains("90 %") && Contains("100 B/s, 0:01 left"));
  // The file has grown since its size was read.
  CHECK(progress_text("reading", kBytes, 30, 20, 30, 1) == "reading [########################] 100 % of 20 B, 30 B/s, 0:00 left");
}

TEST_CASE("progress line: truncated to the width of the terminal, and erased at the end") {
  const std::string wide = on_terminal(100, [] {
    ProgressLine line("reading", ProgressUnit::kItems, 10);
    line.advance(5);
    line.advance(1);  // too soon after the previous update
  });
  CHECK_THAT(wide, StartsWith("\rreading [############............] 50 % of 10") && EndsWith("\r" + std::string(wide.find('\r', 1) - 1, ' ') + "\r"));
  CHECK(wide.find("60 %") == wide.npos);
  const std::string narrow = on_terminal(20, [] { ProgressLine("reading", ProgressUnit::kItems, 10).advance(5); });
  CHECK(narrow == "\rreading [##########\r                   \r");
}

TEST_CASE("progress line: erased for other output, and drawn again at once") {
  const std::string text = on_terminal(80, [] {
    ProgressLine line("reading", ProgressUnit::kItems, 10);
    line.advance(5);
    line.clear();
    std::cerr << "other\n";
    line.advance(1);
  });
  CHECK_THAT(text, Contains(" \rother\r\n\rreading [##############..........] 60 %"));
}

TEST_CASE("progress line: not printed if standard error is not a terminal") {
  int pipes[2];
  REQUIRE(::pipe(pipes) == 0);
  with_standard_error(pipes[1], [] { ProgressLine("reading", ProgressUnit::kItems, 10).advance(5); });
  ::close(pipes[1]);
  char c;
  CHECK(::read(pipes[0], &c, 1) == 0);
  ::close(pipes[0]);
}

}  // namespace trireme::test
