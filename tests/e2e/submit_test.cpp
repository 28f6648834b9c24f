// `trireme submit` with stand-ins for the commands of Slurm. tests/slurm/jobs.py runs the same on a real Slurm.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

void check_part(const std::string& part) {
  const TemporaryDirectory directory;
  must(Process({"python3", TRIREME_SOURCE_DIR "/tests/slurm_script_test.py", kBinary, part}, directory.path(), std::chrono::seconds(300)).wait());
}

}  // namespace

TEST_CASE("submit: the batch script requeues only what another try can mend, and not without end") { check_part("ends"); }
TEST_CASE("submit: the batch script passes every word on as it was typed") { check_part("command_lines"); }
TEST_CASE("submit: the batch script excludes nodes that fail again, and never too many") { check_part("nodes"); }
TEST_CASE("submit: the script is kept and submitted, and nothing is written where something is wrong") { check_part("submission"); }

}  // namespace trireme::test
