// Saves that are killed or fail at any of their I/O calls. The binary is unmodified: a preloaded library (tests/shim/io.cpp) counts calls, kills,
// injects errors and damages data.
#include "tests/e2e/save_trials.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// Kills the save of step 4 at call `call`: the older or the new checkpoint must be valid, and the resumed run must be undisturbed. `may_have_one_less`:
/// the save may have one call less than was counted. Of two ranks the first to come creates the directory, so their numbers of calls differ by one.
void check_crash(const Trials& trials, int rank, int call, bool may_have_one_less = false) {
  CAPTURE(rank, call, may_have_one_less);
  trials.copy();
  const Outcome killed = trials.disturbed({"RANK=" + std::to_string(rank), "KILL_AT=" + std::to_string(call)}, {"--max-steps", "4"});
  INFO(killed.err);
  REQUIRE((killed.code != 0 || may_have_one_less));
  const int64_t step = trials.require_whole();
  CHECK((step == 2 || step == 4));
  must(trials.run("trial", {}));
  trials.require_as_undisturbed({"2", "4", "6"});
}

/// Fails call `call` of the save of step 4: training must continue, and the save of step 6 succeed. `may_have_one_less`:
/// as above; then the first call of the save of step 6 fails, after which there is no save.
void check_failure(const Trials& trials, int rank, int call, const std::string& error, bool may_have_one_less = false) {
  CAPTURE(rank, call, error, may_have_one_less);
  trials.copy();
  const Outcome outcome = trials.disturbed({"RANK=" + std::to_string(rank), "FAIL_AT=" + std::to_string(call), "ERRNO=" + error}, {});
  INFO(outcome.out << outcome.err);
  if (may_have_one_less && count(outcome.err, "step 6 was not saved") == 1) {
    CHECK(outcome.code == 74);
    CHECK(count(outcome.err, "step 4 was not saved") == 0);
    CHECK(trials.require_whole() == 4);
    return;
  }
  CHECK(outcome.code == 0);
  const bool stands = fs::exists(trials.path("trial") / "checkpoints/step-00000004");
  const size_t told = count(outcome.err, "step 4 was not saved");
  CHECK((told == 1 || (told == 0 && stands)));
  trials.require_as_undisturbed(stands ? std::set<std::string>{"2", "4", "6"} : std::set<std::string>{"2", "6"});
}

/// Fails all calls from `call` on of the save of step 4: training must continue to the end, and then report that its state is lost.
void check_failure_to_the_end(const Trials& trials, int rank, int call, const std::string& error) {
  CAPTURE(rank, call, error);
  trials.copy();
  const Outcome outcome = trials.disturbed({"RANK=" + std::to_string(rank), "FAIL_AT=" + std::to_string(call), "FAIL_FROM=1", "ERRNO=" + error}, {});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 74);
  CHECK(outcome.out.find("step 6/6") != std::string::npos);
  CHECK(count(outcome.err, "step 4 was not saved") <= 1);
  CHECK(count(outcome.err, "step 6 was not saved") == 1);
  trials.require_whole();
  must(trials.run("trial", {}));
  const bool stands = fs::exists(trials.path("trial") / "checkpoints/step-00000004");
  trials.require_as_undisturbed(stands ? std::set<std::string>{"2", "4", "6"} : std::set<std::string>{"2", "6"});
}

/// A selection of the calls of a save: the first, one in the middle of the tensors, and several of the last ones, which publish it.
std::set<int> sample(int calls) { return {1, calls / 2, calls - 22, calls - 18, calls - 14, calls - 10, calls - 6, calls - 3, calls}; }

}  // namespace

TEST_CASE("save: killed at a call, the older or the new checkpoint is valid and the resumed run bit-identical") {
  const Trials trials(layout(1, 1, 1, 0));
  for (const int call : sample(trials.calls_of_a_save(0))) check_crash(trials, 0, call);
}

TEST_CASE("save: a disk that is full or broken at a call costs one checkpoint and one message") {
  const Trials trials(layout(1, 1, 1, 0));
  const int calls = trials.calls_of_a_save(0);
  const std::vector<std::string> errors{"ENOSPC", "EIO", "EDQUOT", "EMFILE", "EROFS", "EINVAL"};
  size_t next = 0;
  for (const int call : sample(calls)) check_failure(trials, 0, call, errors[next++ % errors.size()]);
  for (const int call : {1, 3, calls - 10}) check_failure_to_the_end(trials, 0, call, errors[next++ % errors.size()]);
}

TEST_CASE("save: one of two ranks dies or cannot write") {
  const Trials trials(layout(1, 1, 2, 3));
  const int calls = trials.calls_of_a_save(1);
  check_crash(trials, 1, calls / 2);
  check_failure(trials, 1, 1, "ENOSPC");
  check_failure(trials, 1, calls - 3, "EIO");
  check_failure(trials, 0, 2, "EMFILE");
  check_failure_to_the_end(trials, 1, 1, "EROFS");  // it cannot record the failure on disk either
}

TEST_CASE("save: data that read back differently are not published") {
  const Trials trials(layout(1, 1, 1, 0));
  trials.copy();
  const Outcome outcome = trials.disturbed({"DAMAGE=1"}, {});
  INFO(outcome.err);
  CHECK(outcome.code == 74);
  CHECK(count(outcome.err, "differs from what was written") == 2);
  CHECK(trials.require_whole() == 2);
  CHECK(names_in(trials.path("trial") / "checkpoints") == std::set<std::string>{"latest", "step-00000002"});
}

TEST_CASE("save: every call as a crash point and as a failure, of one rank and of each of two", "[slow]") {
  const auto [ranks, rank] = GENERATE(table<int, int>({{1, 0}, {2, 0}, {2, 1}}));
  const Trials trials(layout(1, 1, ranks, ranks == 1 ? 0 : 3));
  const int calls = trials.calls_of_a_save(rank);
  WARN(calls << " calls of rank " << rank << " of " << ranks);
  for (int call = 1; call <= calls; ++call) {
    const bool may_have_one_less = ranks > 1 && call == calls;
    check_crash(trials, rank, call, may_have_one_less);
    check_failure(trials, rank, call, call % 2 == 0 ? "ENOSPC" : "EIO", may_have_one_less);
  }
  for (int call = 1; call <= calls; call += 7) check_failure_to_the_end(trials, rank, call, "ENOSPC");
}

}  // namespace trireme::test
