// Every kind of verdict, whole, about jobs with several ranks, hosts and operations of a kind, and with more of them than a text lists.
#include <algorithm>
#include <array>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/snapshot.h"
#include "trainer/resilience/verdict.h"

namespace trireme::test {
namespace {

using Life = RankState::Life;

/// Twelve ranks on three hosts, each in the groups "world", "tensor" {0, 1}, {2, 3}, ..., "shard" {0, 2}, {1, 3}, {4, 6}, ... and "pipeline"
/// {0, 4, 8}, ... All are in step 12 with a timeout of 20 s. The clock starts at 100 s, and rank 3 has moved and reported 0.3 s before, so that no two
/// are alike.
class TwelveRanks {
 public:
  static constexpr size_t kWorld = 0, kTensor = 1, kShard = 2, kPipeline = 3;

  TwelveRanks() {
    std::vector<int> all(12);
    for (int r = 0; r < 12; ++r) all[static_cast<size_t>(r)] = r;
    for (int r = 0; r < 12; ++r) {
      RankState& state = rank(r);
      state.life = Life::kAlive;
      state.host = concat("node", r / 4 + 1);
      state.pid = 4200 + r;
      state.heard = state.moved = now - 0.1 * r;
      state.last.count = 1;
      state.last.step = 12;
      state.last.timeout = 20;
      const int pair = r / 2 * 2, block = r / 4 * 4;
      state.last.groups = {{"world", all, 40, {}, {}},
                           {"tensor", {pair, pair + 1}, 117, {}, {}},
                           {"shard", {block + r % 2, block + r % 2 + 2}, 7, {}, {}},
                           {"pipeline", {r % 4, r % 4 + 4, r % 4 + 8}, 0, {5, 5, 5}, {5, 5, 5}}};
    }
  }

  RankState& rank(int number) { return ranks[static_cast<size_t>(number)]; }
  void act(int number, const std::string& action) { rank(number).last.action = action; }
  /// The rank enters the next collective of a group and waits in it.
  void wait(int number, size_t group, const char* verb = "all_reduce") {
    Progress::Snapshot& last = rank(number).last;
    last.wait = {verb, group, ++last.groups[group].started, {}};
  }
  /// The rank waits for the next message of the rank at place `peer` of its pipeline.
  void receive(int number, size_t peer) {
    Progress::Snapshot& last = rank(number).last;
    if (!last.wait) last.wait = {"exchange", kPipeline, 0, {}};
    last.wait->messages.push_back({peer, false, ++last.groups[kPipeline].received[peer]});
  }
  void wait_for_device(int number) { rank(number).last.wait = {"the device", {}, 0, {}}; }
  /// Time passes, in which all ranks report without having moved, but those in `silent`.
  void pass(double seconds, const std::vector<int>& silent = {}) {
    now += seconds;
    for (int r = 0; r < 12; ++r)
      if (std::ranges::count(silent, r) == 0) rank(r).heard = now;
  }
  void end(int number, Life life) {
    rank(number).life = life;
    rank(number).ended = rank(number).died_after = rank(number).died_by = now;
  }

  std::vector<RankState> ranks{12};
  double now = 100;
};

const char* name_of(Verdict::Kind kind) {
  constexpr std::array kNames{"dead", "failed", "absent", "silent", "hung", "left", "disagreement", "deadlock", "launcher"};
  return kNames[static_cast<size_t>(kind)];
}

std::string joined_words(const auto& words) {
  std::string text;
  for (const auto& word : words) text += concat(text.empty() ? "" : " ", word);
  return text;
}

/// What a program reads of a verdict besides its text.
std::string fields_of(const Verdict& verdict) {
  std::string text = concat("  ", name_of(verdict.kind), ": ranks ", joined_words(verdict.ranks), "; hosts ", joined_words(verdict.hosts), "; step ",
                            verdict.step, "; since ", verdict.since, "; action \"", verdict.action, "\"\n");
  if (const auto& operation = verdict.operation)
    text += concat("  in ", operation->text, " (", operation->verb, ", ", operation->group, ", ", operation->number, ", \"", operation->action,
                   "\") of ranks ", joined_words(operation->waiting), "\n");
  return text;
}

/// Adds the verdict about a job, after a line that says what has happened.
class Verdicts {
 public:
  void add(const std::string& what, const TwelveRanks& job, const Limits& limits = {}) {
    INFO(what);
    const std::optional<Verdict> verdict = judge(job.ranks, job.now, limits);
    REQUIRE(verdict);
    text_ += concat("# ", what, "\n", verdict->text, "\n", fields_of(*verdict));
    for (const Verdict& death : verdict->deaths) text_ += concat("  alone: ", death.text, "\n");
    text_ += "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void wait_all(TwelveRanks& job, size_t group, const std::vector<int>& without) {
  for (int r = 0; r < 12; ++r)
    if (std::ranges::count(without, r) == 0) job.wait(r, group);
}

}  // namespace

TEST_CASE("snapshot: verdicts about ranks that have ended") {
  Verdicts all;
  {
    TwelveRanks job;
    job.act(2, "backward of micro-batch 2, blocks.3");
    job.act(9, "updating blocks.1");
    job.rank(9).last.step = 13;
    for (const int r : {8, 11}) job.wait(r, r == 8 ? TwelveRanks::kTensor : TwelveRanks::kShard);
    job.act(8, "forward of micro-batch 0, blocks.7");
    for (const int r : {2, 9}) job.end(r, Life::kDead);
    job.rank(9).died_by += 0.004;
    job.pass(0.2);
    all.add("two ranks of two hosts die, and others wait for the second one only", job);
  }
  {
    TwelveRanks job;
    for (int r = 0; r < 12; ++r) job.act(r, concat("forward of micro-batch ", r / 2, ", blocks.2"));
    wait_all(job, TwelveRanks::kWorld, {5, 6});
    job.end(5, Life::kDead);
    job.rank(5).last.step = 0;
    job.act(5, "loading step-00000040");
    job.pass(0.2);
    all.add("others wait in six different actions, of which three are listed", job);
    for (const int r : {7, 8, 9, 10, 11}) job.act(r, "forward of micro-batch 2, blocks.2");
    all.add("others wait in three different actions", job);
  }
  {
    TwelveRanks job;
    for (int r = 0; r < 12; ++r) job.rank(r).last.step = 0;
    job.act(4, "loading step-00000040");
    for (const int r : {0, 1, 2, 3, 8}) job.wait(r, TwelveRanks::kWorld, "barrier");
    for (const int r : {4, 5, 6, 7}) job.end(r, Life::kDead);
    job.pass(0.2);
    all.add("a host is lost while ranks load", job);
  }
  {
    TwelveRanks job;
    for (const int r : {0, 1, 2, 3, 4, 5, 6, 8, 9, 10}) job.end(r, Life::kDead);
    job.rank(6).died_after += 0.5;  // a consequence
    job.pass(0.2);
    all.add("ten ranks die, a whole host among them", job);
    TwelveRanks two_hosts = job;
    two_hosts.end(7, Life::kDead);
    all.add("two hosts die, and three ranks of the third one", two_hosts);
    job.rank(3).life = Life::kAlive;
    all.add("eight die at the same time, and one later", job);
    job.rank(6).died_after -= 0.5;
    all.add("nine die at the same time", job);
  }
  {
    TwelveRanks job;
    job.act(1, "reading the batch");
    wait_all(job, TwelveRanks::kWorld, {1, 7});
    for (const int r : {1, 7}) job.end(r, Life::kFailed);
    job.pass(60);
    all.add("two ranks fail, and ten continue", job);
    for (const int r : {0, 2, 3, 4, 5, 6, 8, 9, 10}) job.end(r, Life::kLeft);
    all.add("one of them alone continues", job);
  }
  {
    TwelveRanks job;
    wait_all(job, TwelveRanks::kWorld, {3, 10});
    for (const int r : {3, 10}) job.end(r, Life::kLeft);
    job.pass(25);
    all.add("two ranks exit normally while others wait for them", job);
  }
  {
    TwelveRanks job;
    for (const int r : {2, 9}) job.rank(r) = {};
    job.pass(600);
    for (const int r : {2, 9}) job.rank(r).heard = 0;
    all.add("two ranks never join, and ten wait", job);
    for (int r = 0; r < 11; ++r) job.rank(r) = {};
    all.add("one rank joins", job);
    job.rank(11) = {};
    all.add("none joins", job);
  }
  check_snapshot("resilience/verdicts_ended.txt", all.text());
}

TEST_CASE("snapshot: verdicts about ranks that are silent, hang or wait") {
  Verdicts all;
  {
    TwelveRanks job;
    job.act(2, "saving step-00000012");
    for (int r = 0; r < 12; ++r) job.rank(r).last.timeout = 900;  // of a save
    wait_all(job, TwelveRanks::kWorld, {2, 5, 9});
    for (const int r : {2, 9}) job.rank(r).heard = 100;
    job.rank(5).heard = 101.1;  // not for nine seconds yet
    job.rank(9).heard = 99.4;
    job.pass(10, {2, 5, 9});
    all.add("two ranks of two hosts are silent during a save, a third one not long enough", job);
    for (const int r : {3, 5, 6, 7}) job.rank(r).heard = job.now - 9.5;
    all.add("six are silent", job);
  }
  {
    TwelveRanks job;
    for (const int r : {8, 9, 10, 11}) job.act(r, "evaluating batch 7 of 9");
    wait_all(job, TwelveRanks::kWorld, {8, 9, 10, 11});
    job.pass(14, {8, 9, 10, 11});
    all.add("a host is silent in an evaluation", job, {.silence_seconds = 14});
  }
  {
    TwelveRanks job;
    wait_all(job, TwelveRanks::kWorld, {6, 7});
    job.pass(22);
    for (const int r : {6, 7}) job.rank(r).heard = job.now - 1.5;
    all.add("two ranks are stopped, which their timeout of 20 s shows before 30 s of silence", job, {.silence_seconds = 30});
  }
  {
    TwelveRanks job;
    job.act(1, "forward of micro-batch 0, blocks.1");
    job.act(7, "evaluating batch 3 of 9");
    job.rank(7).last.step = 11;
    for (const int r : {4, 5, 8, 9, 10, 11}) job.wait(r, TwelveRanks::kWorld);
    job.act(6, "forward of micro-batch 2, blocks.2");
    job.wait(6, TwelveRanks::kTensor);
    job.wait(2, TwelveRanks::kShard, "reduce_scatter");
    job.wait(0, TwelveRanks::kShard, "reduce_scatter");
    job.rank(3).last.groups[TwelveRanks::kWorld].started = 41;  // ahead of the others, and not waited for
    job.pass(20.5);
    all.add("two ranks hang without waiting, a third one does not wait either but nobody waits for it", job);
  }
  {
    TwelveRanks job;
    for (const int r : {3, 5}) job.wait_for_device(r);
    wait_all(job, TwelveRanks::kWorld, {3, 5, 6, 10});
    job.wait(6, TwelveRanks::kShard, "all_gather");
    job.rank(4).last.groups[TwelveRanks::kShard].started = 8;
    job.wait(10, TwelveRanks::kTensor);
    job.wait(11, TwelveRanks::kTensor);
    job.pass(25);
    all.add("all wait, two of them for their devices and three in collectives that all of their ranks have entered", job);
  }
  {
    TwelveRanks job;
    for (const int r : {1, 10}) job.wait_for_device(r);
    wait_all(job, TwelveRanks::kWorld, {1, 10});
    job.pass(25);
    all.add("the devices of two ranks on two hosts do not answer", job);
    job.end(10, Life::kLeft);
    job.rank(10).last.wait.reset();
    job.pass(25);
    all.add("one of them has exited normally, and only that is certain", job);
  }
  {
    TwelveRanks job;
    for (const int r : {0, 1, 2, 3, 6, 7, 8, 9}) job.wait(r, TwelveRanks::kTensor);
    for (const int r : {4, 5, 10, 11}) job.wait(r, TwelveRanks::kWorld);
    job.pass(25);
    all.add("eight may be stuck in collectives of the same name and number of four groups", job);
  }
  {
    TwelveRanks job;
    job.wait(0, TwelveRanks::kTensor);
    job.wait(1, TwelveRanks::kTensor);
    job.rank(0).last.groups[TwelveRanks::kShard].started = 8;
    job.wait(2, TwelveRanks::kShard, "all_gather");
    job.wait(3, TwelveRanks::kTensor);  // for rank 2
    wait_all(job, TwelveRanks::kWorld, {0, 1, 2, 3});
    for (const int r : {0, 1, 2, 3}) job.rank(r).last.groups[TwelveRanks::kWorld].started = 41;
    job.pass(25);
    all.add("three ranks may be stuck in two operations", job);
    job.end(0, Life::kLeft);
    job.rank(0).last.wait.reset();
    all.add("the rank between them has exited normally, and is not stuck", job);
  }
  {
    TwelveRanks job;
    job.receive(8, 0);
    job.receive(8, 1);
    for (const int r : {0, 4}) job.wait_for_device(r);
    wait_all(job, TwelveRanks::kWorld, {0, 4, 8});
    job.act(8, "receiving the output of micro-batch 3");
    job.pass(25);
    all.add("two messages are missing", job);
  }
  {
    TwelveRanks job;
    for (const int r : {4, 9}) job.wait(r, TwelveRanks::kWorld, "barrier");
    for (const int r : {2, 6, 7}) job.wait(r, TwelveRanks::kWorld, "all_gather");
    wait_all(job, TwelveRanks::kWorld, {2, 4, 6, 7, 9});
    job.act(4, "saving step-00000012");
    job.pass(25);
    all.add("three operations at one place", job);
  }
  {
    TwelveRanks job;
    for (int r = 0; r < 12; ++r) job.act(r, concat("backward of micro-batch ", r, ", blocks.2"));
    job.wait(0, TwelveRanks::kTensor);
    job.wait(4, TwelveRanks::kShard, "all_gather");
    job.wait(6, TwelveRanks::kTensor);
    wait_all(job, TwelveRanks::kWorld, {0, 4, 6});
    job.pass(25);
    all.add("twelve ranks wait for each other", job);
  }
  check_snapshot("resilience/verdicts_waiting.txt", all.text());
}

TEST_CASE("snapshot: where the stacks of accused ranks are") {
  std::vector<RankState> ranks(9);
  for (const size_t r : {1, 4, 5, 8}) ranks[r].stacks = concat("runs/a/logs/rank-000", r, ".log");
  CHECK(place_of_stacks(ranks, {0, 8, 5, 4, 2}) == "; stacks of their threads: runs/a/logs/rank-0008.log and the logs of 2 more ranks");
  CHECK(place_of_stacks(ranks, {1, 4, 5, 8}) == "; stacks of their threads: runs/a/logs/rank-0001.log and the logs of 3 more ranks");
}

}  // namespace trireme::test
