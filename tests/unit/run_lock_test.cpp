#include "trainer/resilience/run_lock.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using namespace trireme;

TEST_CASE("run lock: one holder at a time, growing tokens, no clean-up needed by the next holder") {
  const test::TemporaryDirectory directory;
  const fs::path run = directory.path / "run";
  int64_t token = 0;
  {
    const RunLock lock(run);
    token = lock.token();
    CHECK_NOTHROW(lock.check());
    CHECK_THROWS_WITH(RunLock(run), Contains("another job is training there (process " + std::to_string(::getpid()) + " on "));
    CHECK_NOTHROW(lock.check());
  }
  const RunLock next(run);
  CHECK(next.token() == token + 1);
}

TEST_CASE("run lock: a job that has lost the directory must not publish, even if a new one has the same token") {
  const test::TemporaryDirectory directory;
  const fs::path run = directory.path / "run";
  const RunLock late(run);
  fs::remove_all(run);
  CHECK_THROWS_AS(late.check(), IoError);
  const RunLock now(run);
  CHECK(now.token() == late.token());
  CHECK_THROWS_WITH(late.check(), Contains("no longer holds the lock on the run directory"));
  CHECK_NOTHROW(now.check());
}

TEST_CASE("run lock: a stop request ends the wait for another job") {
  const test::TemporaryDirectory directory;
  const RunLock held(directory.path);
  int asked = 0;
  try {
    const RunLock second(directory.path, [&] { return ++asked < 3; });
    FAIL("the lock is held");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kRequeue);
    CHECK_THAT(error.what(), Contains("stopped on request while waiting for process " + std::to_string(::getpid()) + " on "));
  }
  CHECK(asked == 3);
}

TEST_CASE("run lock: garbage in the lock file is ignored") {
  const test::TemporaryDirectory directory;
  std::ofstream(directory.path / "run.lock") << "99999999999999999999999 process";
  const RunLock lock(directory.path);
  CHECK(lock.token() == 1);
  CHECK_NOTHROW(lock.check());
}

TEST_CASE("run lock: tokens restart at 1 after the maximum, and negative ones are ignored") {
  for (const char* token : {"9223372036854775807", "-5", "-9223372036854775808"}) {
    const test::TemporaryDirectory directory;
    std::ofstream(directory.path / "run.lock") << token << " process 1 on elsewhere, start 2\n";
    const RunLock lock(directory.path);
    CHECK(lock.token() == 1);
    CHECK_NOTHROW(lock.check());
  }
}

TEST_CASE("run lock: a link or a pipe in place of the lock file is refused, and the target of the link is not changed") {
  const test::TemporaryDirectory directory;
  const fs::path precious = directory.path / "precious", lock = directory.path / "run.lock";
  std::ofstream(precious) << "7 nobody\n";
  fs::create_symlink(precious, lock);
  CHECK_THROWS_WITH(RunLock(directory.path), Contains("run.lock: cannot be locked: is a symbolic link"));
  CHECK(fs::file_size(precious) == 9);
  fs::remove(lock);
  REQUIRE(::mkfifo(lock.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(RunLock(directory.path), Contains("run.lock: cannot be locked: is not a regular file"));
  fs::remove(lock);
  const RunLock held(directory.path);
  fs::remove(lock);
  REQUIRE(::mkfifo(lock.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(held.check(), Contains("run.lock: cannot be read: is not a regular file"));
}

TEST_CASE("run lock: control characters in the name of the holder are escaped") {
  const test::TemporaryDirectory directory;
  const RunLock held(directory.path);
  std::ofstream(directory.path / "run.lock") << "3 \x1b]0;title\x07 process\n";
  CHECK_THROWS_WITH(RunLock(directory.path), Contains("another job is training there (\\x1b]0;title\\x07 process)"));
}
