// How busy other processes keep the cores: `bench machine` writes no figures that describe them.
#include "trainer/bench/foreign_load.h"

#include "kernels/core/check.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::bench;

TEST_CASE("foreign load: the busy time of this process's cores, without idle and waiting time") {
  const std::string text =
      "cpu  9999 9999 9999 9999 9999 9999 9999 9999 9999 9999\n"
      "cpu0 100 20 30 4000 500 6 7 8 50 0\n"
      "cpu1 1000 0 0 4000 500 0 0 0 0 0\n"
      "cpu11 5 0 0 0 0 0 0 0 0 0\n"
      "intr 12345\n";
  CHECK(busy_seconds(text, {0}, 100) == Approx(1.71));
  CHECK(busy_seconds(text, {0, 1}, 100) == Approx(11.71));
  CHECK(busy_seconds(text, {2}, 100) == 0);
  CHECK(busy_seconds("", {0}, 100) == 0);
  CHECK(busy_seconds("cpu0 7", {0}, 1) == 7);
}

TEST_CASE("foreign load: the share of the cores that is not this process's") {
  const CpuSeconds before{.wall = 10, .busy = 100, .own = 20};
  CHECK(foreign_share(before, {.wall = 20, .busy = 112, .own = 27}, 2) == Approx(0.25));
  CHECK(foreign_share(before, {.wall = 20, .busy = 106.9, .own = 27}, 2) == 0);  // the clocks are not exactly equal
  CHECK(foreign_share(before, before, 2) == 0);
}

TEST_CASE("foreign load: this process's own work is not foreign") {
  const CpuSeconds before = read_cpu_seconds();
  volatile double sum = 0;
  while (read_cpu_seconds().own < before.own + 0.05)
    for (int i = 0; i < 100000; ++i) sum = sum + i;
  const CpuSeconds after = read_cpu_seconds();
  CHECK(after.busy - before.busy >= 0);
  CHECK(after.wall > before.wall);
  CHECK(read_cpu_seconds("/nowhere").busy == 0);
}

TEST_CASE("foreign load: a busy machine is refused, and the message names the option that allows it") {
  CHECK_NOTHROW(refuse_busy_machine(0.1));
  try {
    refuse_busy_machine(0.426);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kInternal);
    CHECK(std::string(error.what()) ==
          "bench machine: other processes use 43 % of the cores, so the figures would not be those of this machine; stop the other processes and "
          "repeat, or take the figures anyway with --allow-busy");
  }
}
