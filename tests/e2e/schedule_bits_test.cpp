// Complete runs with every schedule: bit-identical if sums have the same order, and after a kill.
#include <signal.h>

#include <cmath>

#include "tests/e2e/fingerprint.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

Fingerprint trained(const TemporaryDirectory& directory, const std::string& run, const Arguments& arguments) {
  must(directory, kTrain + arguments + in(run));
  return fingerprint_of(directory / run, 6);
}

TEST_CASE("schedules: bit-identical runs if the order of sums is the same, else equal within rounding") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments four = layout(1, 2, 2, 3);
  const Fingerprint plain = trained(directory, "plain", four);
  CHECK(trained(directory, "zb_h1", four + sets({"parallel.schedule=zb_h1"})) == plain);
  CHECK(trained(directory, "zb_h2", four + sets({"parallel.schedule=zb_h2", "training.recompute=full"})) == plain);
  CHECK(trained(directory, "recompute", four + sets({"training.recompute=selective", "training.recompute_every=2"})) == plain);

  const std::vector<double> expected = losses(directory / "plain", 6);
  for (const std::string schedule : {"interleaved_1f1b", "zb_v"}) {
    CAPTURE(schedule);
    const Arguments arguments = four + sets({"parallel.schedule=" + schedule});
    const Fingerprint kept = trained(directory, schedule, arguments);
    CHECK(trained(directory, schedule + "-full", arguments + sets({"training.recompute=full"})) == kept);
    const std::vector<double> actual = losses(directory / schedule, 6);
    for (size_t i = 0; i < actual.size(); ++i)
      CHECK(std::abs(actual[i] - expected[i]) <= 1e-4 * expected[i]);  // fp32: the norm is summed in a different order
  }
}

TEST_CASE("schedules: eight ranks with two stages each in a V, one of them killed, end like an undisturbed run") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments arguments = layout(2, 2, 2, 3) + sets({"parallel.schedule=zb_v", "parallel.sequence_parallel=true", "training.recompute=full",
                                                         "training.steps=20", "checkpoint.every=4"});
  must(directory, kTrain + arguments + in("undisturbed"));
  {
    LiveJob job(directory, "killed", arguments);
    REQUIRE(job.wait_for_step(5));
    ::kill(job.ranks(8).at(3), SIGKILL);
    CHECK(job.wait().code != 0);
    CHECK(job.last_step() < 20);
  }
  must(directory, kTrain + arguments + in("killed"));
  CHECK(fingerprint_of(directory / "killed", 20) == fingerprint_of(directory / "undisturbed", 20));
}

}  // namespace
}  // namespace trireme::test
