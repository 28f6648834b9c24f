#include "trainer/resilience/run_lock.h"

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

TEST_CASE("run lock: one holder at a time, tokens grow, and the next holder needs no clean-up") {
  const test::TemporaryDirectory directory;
  const fs::path run = directory.path / "run";
  int64_t token = 0;
  {
    const RunLock lock(run);
    token = lock.token();
    CHECK_NOTHROW(lock.check());
    CHECK_THROWS_WITH(RunLock(run, false), Contains("another job trains there (process " + std::to_string(::getpid()) + " on "));
    CHECK_NOTHROW(lock.check());
  }
  const RunLock next(run, false);
  CHECK(next.token() == token + 1);
}

TEST_CASE("run lock: a job that has lost the directory may not publish, though the new one counts from one again") {
  const test::TemporaryDirectory directory;
  const fs::path run = directory.path / "run";
  const RunLock late(run);
  fs::remove_all(run);
  CHECK_THROWS_AS(late.check(), IoError);
  const RunLock now(run, false);
  CHECK(now.token() == late.token());
  CHECK_THROWS_WITH(late.check(), Contains("no longer holds the run directory"));
  CHECK_NOTHROW(now.check());
}

TEST_CASE("run lock: noise in its file is no token") {
  const test::TemporaryDirectory directory;
  std::ofstream(directory.path / "run.lock") << "99999999999999999999999 process";
  const RunLock lock(directory.path);
  CHECK(lock.token() == 1);
  CHECK_NOTHROW(lock.check());
}
