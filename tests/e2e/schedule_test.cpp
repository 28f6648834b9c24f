// Schedules as files: a schedule printed by `config actions` and read back trains with bit-identical results, and an invalid file is refused before
// anything starts.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

const Arguments kShort =
    layout(1, 2, 1, 2) + sets({"training.steps=3", "training.micro_batch_size=2", "training.evaluate.every=3", "training.evaluate.batches=1"});
Arguments schedule(const std::string& name) { return kShort + sets({"parallel.schedule=" + name}); }
const Arguments kFile = schedule("file") + sets({"parallel.schedule_file=plan.txt"});

TEST_CASE("schedule: printed, edited and read back, a schedule gives bit-identical results") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments train = {"train", "run.yaml"}, actions = {"config", "actions", "run.yaml"};
  must(directory, train + schedule("gpipe"));
  const std::vector<double> expected = losses(directory / "run", 3);

  const std::string text = must(directory, actions + schedule("gpipe")).out;
  CHECK(text ==
        "# gpipe: 2 ranks, 2 stages, 4 micro-batches; with --set parallel.virtual_stages=1\n0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n1F0 1F1 1F2 1F3 1B0 1B1 "
        "1B2 1B3\n");
  write_file(directory / "plan.txt", text);
  must(directory, train + kFile + in("again"));
  CHECK(losses(directory / "again", 3) == expected);
  CHECK(validation_loss(directory / "again") == validation_loss(directory / "run"));

  // Edited: rank 0 as before, rank 1 with delayed weight gradients, in order within each stage.
  write_file(directory / "plan.txt", "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n1F0 1I0 1F1 1I1 1W0 1W1 1F2 1B2 1F3 1I3 1W3  # two at a time\n");
  must(directory, train + kFile + in("edited"));
  CHECK(losses(directory / "edited", 3) == expected);
  CHECK(must(directory, actions + kFile).out ==
        "# file: 2 ranks, 2 stages, 4 micro-batches; with --set parallel.virtual_stages=1\n0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n1F0 1I0 1F1 1I1 1W0 1W1 "
        "1F2 1B2 1F3 1I3 1W3\n");

  // A V schedule from a file: the first and the last stage are on rank 0.
  const std::string vee = must(directory, actions + schedule("zb_v")).out;
  write_file(directory / "plan.txt", vee);
  must(directory, train + schedule("zb_v") + in("vee"));
  must(directory, train + kFile + sets({"parallel.virtual_stages=2"}) + in("vee-again"));
  CHECK(losses(directory / "vee-again", 3) == losses(directory / "vee", 3));

  check(run(directory, actions + schedule("1f1b") + Arguments{"--lowered"}), 0, "# pipeline rank 1\n1RECV_F0 1RECV_F1 1UNSHARD0");
}

TEST_CASE("schedule: an invalid schedule file is refused, and nothing is started") {
  const std::string first = "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n", second = "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3\n";
  const std::string asked = "not a valid schedule of 2 ranks, 2 stages and 4 micro-batches: ";
  struct Case {
    std::string text, words;
  };
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const auto& [text, words] : {
           Case{first, asked + "1 lines with actions, but parallel.pipeline is 2"},
           Case{first + second + "2F0 2B0\n", asked + "3 lines with actions"},
           Case{first + "1F0 1B0 1F1 1B1 1F2 1B2 1F3\n", asked + "1I3 is missing, or B for both I and W"},
           Case{first + "1B0 1F1 1B1 1F2 1B2 1F3 1B3\n", asked + "1F0 is missing"},
           Case{first + "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1F4 1B4\n", asked + "1F4: a step has 4 micro-batches"},
           Case{first + second + "\n# more\n2X0\n", "line 5, word 1, 2X0: invalid action"},
           Case{first + "1F0 1B0 0F1\n", "line 2, word 3, 0F1: stage 0 is already on line 1"},
           Case{first + "1F0 1B0 1F0\n", "line 2, word 3, 1F0: duplicate action"},
           Case{first + "1F0 1B0 1F1 1B1 1F2 1B2 1B3 1F3\n", "runs before the forward"},
           Case{"0F0 0B0 0B1 0F1 0F2 0F3 0B2 0B3\n" + second, "deadlock: rank 0 is stuck at 0B1"},
           Case{"0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3 2F0 2F1 2F2 2F3\n" + second, "2F0: parallel.pipeline x parallel.virtual_stages is 2 stages"},
       }) {
    CAPTURE(text);
    write_file(directory / "plan.txt", text);
    const std::vector<std::string> before = directory.listing();
    const Outcome outcome = run(directory, Arguments{"config", "actions", "run.yaml"} + kFile);
    check(outcome, 64, "parallel.schedule_file=plan.txt: ");
    check(outcome, 64, words);
    CHECK(directory.changes_since(before) == "");
  }
  const std::vector<std::string> before = directory.listing();
  check(run(directory, Arguments{"train", "run.yaml"} + kFile), 64, "2F0: parallel.pipeline x parallel.virtual_stages is 2 stages");
  check(run(directory, Arguments{"train", "run.yaml"} + schedule("file") + sets({"parallel.schedule_file=none.txt"})), 66, "none.txt");
  CHECK(directory.changes_since(before) == "");
}

}  // namespace
}  // namespace trireme::test
