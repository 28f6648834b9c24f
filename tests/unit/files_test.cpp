// Writing files beside other users' files, and printing text from untrusted files.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
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
