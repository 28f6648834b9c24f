// What `trireme inspect` and a launcher print about the ranks of a job, whole, for given black boxes and reports.
#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/snapshot.h"
#include "trainer/resilience/inspect.h"

namespace trireme::test {
namespace {

using Life = RankState::Life;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStart = 1'795'471'170 * kSecond;  // 2026-11-23T21:59:30Z

/// Rank `r` of `world` in the groups "world", "tensor" {0, 1}, {2, 3}, ... and "pipeline" {0, 2}, {1, 3}, {4, 6}, ..., with the state of a
/// process that runs.
InspectedRank inspected_rank(int r, int world) {
  InspectedRank rank;
  rank.process = "alive";
  rank.still = 0.25 * r;
  RankState& state = rank.state;
  state.life = Life::kAlive;
  state.host = concat("node", r / 4 + 1);
  state.pid = 998 + r;
  std::vector<int> all;
  for (int each = 0; each < world; ++each) all.push_back(each);
  state.last.step = 12;
  state.last.microbatch = r;
  state.last.action = concat("forward of micro-batch ", r, ", blocks.2");
  state.last.memory_peak = (int64_t{3} << 30) + r;
  state.last.resident_peak = (int64_t{5} << 30) + r;
  const int pair = r / 2 * 2, of_pipeline = r / 4 * 4 + r % 2;
  state.last.groups = {
      {"world", all, 40, {}, {}}, {"tensor", {pair, pair + 1}, 117, {}, {}}, {"pipeline", {of_pipeline, of_pipeline + 2}, 0, {5, 5}, {5, 5}}};
  BlackBoxContents box;
  box.owner = {r, world, "session 17", "cpu, 2 threads", concat("pipeline ", r % 4 / 2, ", shard ", r / 4, ", tensor ", r % 2)};
  box.begun = kStart + r * kSecond / 8;
  box.moved = kStart + (600 + 7 * r) * kSecond;
  rank.box = box;
  return rank;
}

struct InspectedJob {
  Inspection inspection;

  explicit InspectedJob(int world) {
    for (int r = 0; r < world; ++r) inspection.ranks.push_back(inspected_rank(r, world));
  }
  InspectedRank& rank(int number) { return inspection.ranks[static_cast<size_t>(number)]; }
  Progress::Snapshot& last(int number) { return rank(number).state.last; }
  void wait(int number, size_t group, const char* verb = "all_reduce") {
    last(number).wait = {verb, group, ++last(number).groups[group].started, {}};
  }
  void exchange(int number, const std::vector<std::pair<size_t, bool>>& messages) {
    last(number).wait = {"exchange", 2, 0, {}};
    for (const auto& [peer, send] : messages)
      last(number).wait->messages.push_back({peer, send, ++(send ? last(number).groups[2].sent : last(number).groups[2].received)[peer]});
  }
  void become(int number, const std::string& process, Life life) {
    rank(number).process = process;
    rank(number).state.life = life;
  }
  void end(int number, const std::string& how) {
    become(number, "ended", how == "done" ? Life::kLeft : Life::kFailed);
    rank(number).box->ended = kStart + 700 * kSecond;
    rank(number).box->end = how;
  }
  void lose(int number, const std::string& problem) {
    rank(number) = {};
    rank(number).process = "no black box";
    rank(number).problem = problem;
  }
};

/// Ranks of three hosts in every state, two or more of each, and one in set-up.
Inspection varied_job() {
  InspectedJob job(12);
  job.inspection.run = "runs/a";
  job.inspection.session = "session 17";
  job.inspection.verdict = RecordedVerdict{{5, 10}, "rank 5 (host node2, process 1003), rank 10 (host node3, process 1008) have died"};
  job.wait(0, 0, "barrier");
  job.become(1, "stopped", Life::kAlive);
  job.exchange(2, {{0, false}, {0, true}});
  job.wait(3, 1);
  job.become(4, "unknown", Life::kAlive);
  job.wait(4, 1, "all_gather");
  job.last(4).step = 0;
  job.last(4).action = "";
  job.last(4).microbatch = -1;
  job.become(5, "dead", Life::kDead);
  job.rank(5).still = 75;
  job.end(6, "done");
  job.end(7, "done");
  job.end(8, "no space on runs/a");
  job.lose(9, "no file runs/a/logs/rank-0009.blackbox");
  job.become(10, "dead", Life::kDead);
  job.rank(10).still = 4000;
  job.lose(11, "runs/a/logs/rank-0011.blackbox: not a black box: 7 bytes");
  return job.inspection;
}

}  // namespace

TEST_CASE("snapshot: inspect: a job with ranks in every state, as text and JSON") {
  const Inspection inspection = varied_job();
  check_snapshot("resilience/inspect.txt", inspection_text(inspection));
  check_snapshot("resilience/inspect.json", lines_of(inspection_json(inspection)) + "\n");
}

TEST_CASE("snapshot: inspect: more ranks, operations, deaths and missing black boxes than a text lists") {
  InspectedJob job(90);
  job.inspection.run = "runs/large";
  job.inspection.age = 40'000;
  job.inspection.verdict = RecordedVerdict{{}, "ten ranks have died"};
  for (int r = 0; r < 40; ++r) job.become(r, "dead", Life::kDead);
  for (int r = 0; r < 34; r += 2) job.wait(r, 1);  // each for its neighbour, which is dead
  for (int r = 34; r < 44; ++r) {
    job.become(r, "dead", Life::kDead);
    for (const size_t group : {0, 1, 2}) job.last(r).groups[group].started = 0;  // died before any operation
    job.inspection.verdict->ranks.push_back(r);
  }
  for (int r = 44; r < 56; ++r) job.become(r, "alive", Life::kAlive);
  job.wait(44, 1, "all_gather");
  job.wait(45, 1, "all_gather");
  for (int r = 56; r < 90; ++r) job.lose(r, concat("no file runs/large/logs/rank-00", r, ".blackbox"));
  check_snapshot("resilience/inspect_large.txt", inspection_text(job.inspection));
}

TEST_CASE("snapshot: inspect: ranks that died before others waited for them, and their next operations") {
  InspectedJob job(8);
  job.inspection.verdict = RecordedVerdict{{2, 5}, "rank 2 (host node1, process 1000), rank 5 (host node2, process 1003) have died"};
  for (const int r : {2, 5}) job.become(r, "dead", Life::kDead);
  for (const int r : {0, 1, 4, 7}) ++job.last(r).groups[0].started;
  ++job.last(3).groups[1].started;
  job.last(5).action = "";
  job.last(5).groups[1].started = 0;  // a group without a collective so far
  check_snapshot("resilience/inspect_deaths.txt",
                 inspection_text(job.inspection) + lines_of(inspection_json(job.inspection)["ranks"][2]["never_entered"]) + "\n");
}

TEST_CASE("snapshot: inspect: what a launcher prints of a live job") {
  std::vector<RankState> ranks(10);
  for (int r = 0; r < 10; ++r) {
    RankState& state = ranks[static_cast<size_t>(r)];
    state = inspected_rank(r, 10).state;
    state.heard = 99;
    state.moved = 99 - 3.0 * r;
  }
  for (const size_t r : {1, 2}) ranks[r].heard = 97;  // for three seconds
  for (const size_t r : {3, 4}) ranks[r] = {};
  ranks[5].life = Life::kDead;
  ranks[6].life = Life::kLeft;
  ranks[7].life = Life::kFailed;
  for (const size_t r : {0, 1, 8}) ranks[r].last.wait = {"all_reduce", 0, ++ranks[r].last.groups[0].started, {}};
  ranks[9].last.wait = {"the device", {}, 0, {}};
  check_snapshot("resilience/inspect_live.txt", inspection_text(inspected(ranks, 100)));
}

TEST_CASE("snapshot: inspect: durations in each unit, rounded at its edges") {
  InspectedJob job(9);
  const std::array seconds{0.04, 9.94, 9.96, 599.0, 601.0, 35'000.0, 37'000.0, 800'000.0, 950'000.0};
  for (int r = 0; r < 9; ++r) job.rank(r).still = seconds[static_cast<size_t>(r)];
  std::istringstream lines(inspection_text(job.inspection));
  std::vector<std::string> shown;
  for (std::string line; std::getline(lines, line);)
    if (line.find(" alive ") != line.npos && line.starts_with("   ")) shown.push_back(line.substr(line.rfind("  ") + 2));
  CHECK(shown == std::vector<std::string>{"0 s", "9.9 s", "10 s", "599 s", "10 min", "583 min", "10 h", "222 h", "11 d"});
}

TEST_CASE("snapshot: inspect: the history of a rank with two groups, both directions and each unit") {
  BlackBoxContents box = *inspected_rank(2, 4).box;
  box.last.groups = inspected_rank(2, 4).state.last.groups;
  const auto add = [&](uint64_t kind, const std::string& words, uint64_t group, int64_t number, int64_t peer, uint64_t payload) {
    BlackBoxContents::Record record;
    record.sequence = box.records.size() + 1;
    record.time = kStart + static_cast<int64_t>(record.sequence) * kSecond / 4;
    record.kind = kind;
    record.group = group;
    record.number = number;
    record.peer = peer;
    record.payload = payload;
    record.words = words;
    box.records.push_back(record);
  };
  add(BlackBoxRecord::kStep, "", 0, 11, 0, 0);
  add(BlackBoxRecord::kAction, "forward of micro-batch 0, blocks.2", 0, 0, 0, 0);
  add(BlackBoxRecord::kBegun, "all_gather", 0, 41, -1, 1023);
  add(BlackBoxRecord::kBegun, "all_reduce", 1, 118, -1, 3 << 20);
  add(BlackBoxRecord::kFinished, "all_reduce", 1, 118, -1, 3 << 20);
  add(BlackBoxRecord::kFinished, "all_gather", 0, 41, -1, 1023);
  add(BlackBoxRecord::kBegun, "send", 2, 6, 0, uint64_t{5} << 30);
  add(BlackBoxRecord::kBegun, "receive", 2, 7, 3, 1536);
  add(BlackBoxRecord::kFinished, "receive", 2, 7, 3, 1536);
  add(BlackBoxRecord::kFinished, "send", 2, 6, 0, uint64_t{5} << 30);
  add(BlackBoxRecord::kStep, "", 0, 12, 0, 0);
  add(BlackBoxRecord::kBegun, "barrier", 9, 3, -1, 0);  // of a group that the table had no room for
  add(17, "", 0, 0, 0, 0);                              // of a newer program
  check_snapshot("resilience/history.txt", history_text(box));
}

}  // namespace trireme::test
