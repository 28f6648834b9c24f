#include "trainer/resilience/verdict.h"

#include <numeric>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/resilience/wire.h"

using namespace trireme;

namespace {

/// Four ranks on one or two hosts, each in two groups: "world" with all ranks, and "tensor" {0, 1}, {2, 3}. All have a timeout of ten seconds and
/// have reported and made progress now.
struct Job {
  std::vector<RankState> ranks{4};
  double now = 100;
  Limits limits;

  explicit Job(bool two_hosts = false) {
    for (size_t r = 0; r < 4; ++r) {
      RankState& rank = ranks[r];
      rank.life = RankState::Life::kAlive;
      rank.host = two_hosts && r >= 2 ? "n2" : "n1";
      rank.pid = 1000 + static_cast<int>(r);
      rank.heard = rank.moved = now;
      rank.last.count = 1;
      rank.last.step = 12;
      rank.last.timeout = 10;
      rank.last.groups = {{"world", {0, 1, 2, 3}, 40, {}, {}}, {"tensor", r < 2 ? std::vector{0, 1} : std::vector{2, 3}, 117, {}, {}}};
    }
  }
  /// The rank enters the next collective of a group and waits in it.
  void wait(size_t rank, size_t group, const char* verb = "all_reduce") {
    ranks[rank].last.wait = {verb, group, ++ranks[rank].last.groups[group].started, {}};
  }
  void pass(double seconds) {
    now += seconds;
    for (RankState& rank : ranks) rank.heard = now;
  }
  void end(size_t rank, RankState::Life life) {
    ranks[rank].life = life;
    ranks[rank].ended = ranks[rank].died_after = ranks[rank].died_by = now;
  }
  std::optional<Verdict> verdict() const { return judge(ranks, now, limits); }
  std::string text() const {
    const auto found = verdict();
    return found ? found->text : "";
  }
};

using Kind = Verdict::Kind;
using Life = RankState::Life;
using Hosts = std::vector<std::string>;
using Ranks = std::vector<int>;

/// Checks a verdict except its text and operation.
void check_fields(const std::optional<Verdict>& verdict, Kind kind, const Ranks& ranks, const Hosts& hosts) {
  REQUIRE(verdict);
  INFO(verdict->text);
  CHECK(verdict->kind == kind);
  CHECK(verdict->ranks == ranks);
  CHECK(verdict->hosts == hosts);
}

void check_operation(const std::optional<Verdict>& verdict, const std::string& verb, const std::string& group, uint64_t number,
                     const std::string& action, const Ranks& waiting) {
  REQUIRE(verdict);
  INFO(verdict->text);
  REQUIRE(verdict->operation);
  CHECK(verdict->operation->verb == verb);
  CHECK(verdict->operation->group == group);
  CHECK(verdict->operation->number == number);
  CHECK(verdict->operation->action == action);
  CHECK(verdict->operation->waiting == waiting);
}

}  // namespace

TEST_CASE("verdict: none for a job that makes progress") {
  Job job;
  CHECK(job.text().empty());
  job.wait(0, 0);
  job.pass(9.9);
  CHECK(job.text().empty());
}

TEST_CASE("verdict: a dead rank is named with its step, its last action and the ranks that wait for it") {
  Job job;
  job.ranks[3].last.action = "backward of micro-batch 2, blocks.3";
  for (const size_t r : {0, 1, 2}) job.wait(r, 0);
  job.ranks[2].last.action = "forward of micro-batch 1, blocks.0";
  job.end(3, Life::kDead);
  CHECK(job.text().empty());  // others may have died with it
  job.pass(0.2);
  CHECK(job.text() ==
        "rank 3 (host n1, process 1003) has died in step 12, after: backward of micro-batch 2, blocks.3; ranks 0, 1 wait for it in all_reduce 41 of "
        "group "
        "world, which it never finished; rank 2 waits for it in all_reduce 41 of group world (forward of micro-batch 1, blocks.0), which it never "
        "finished");
  CHECK(judge(job.ranks, job.now, {})->step == 12);
}

TEST_CASE("verdict: the first rank to die is named, not those that die as a consequence") {
  Job job(true);
  job.end(1, Life::kDead);
  job.pass(0.03);
  job.end(0, Life::kDead);
  job.end(3, Life::kDead);
  job.pass(0.1);
  CHECK(job.text().find("rank 1 (host n1, process 1001) has died") == std::string::npos);  // both ranks of n1 are dead by now, so the host is named
  CHECK(job.text().find("host n1 (ranks 0, 1) has died") == 0);

  Job one_host;
  one_host.end(1, Life::kDead);
  one_host.pass(0.03);
  for (const size_t r : {0, 2, 3}) one_host.end(r, Life::kDead);
  one_host.pass(0.1);
  CHECK(one_host.text() == "rank 1 (host n1, process 1001) has died in step 12");

  Job late;  // detected at the same time, but the kernel knows the order
  for (const size_t r : {0, 1, 2, 3}) late.end(r, Life::kDead);
  late.ranks[2].died_after -= 0.013;
  late.ranks[2].died_by -= 0.008;
  late.ranks[3].died_after -= 0.2;  // for this rank it does not
  late.pass(0.2);
  CHECK(late.text().find("rank 2 (host n1, process 1002), rank 3 (host n1, process 1003) have died") == 0);
  const auto deaths = judge(late.ranks, late.now, {})->deaths;  // mpirun may know which of the two died first
  CHECK(deaths.at(2).text == "rank 2 (host n1, process 1002) has died in step 12");
  CHECK(deaths.at(3).text == "rank 3 (host n1, process 1003) has died in step 12");

  Job waiting;  // the others are killed while they wait for rank 1
  waiting.end(1, Life::kDead);
  waiting.pass(0.03);
  for (const size_t r : {0, 2, 3}) {
    waiting.wait(r, 0);
    waiting.end(r, Life::kDead);
  }
  waiting.pass(0.1);
  CHECK(waiting.text() ==
        "rank 1 (host n1, process 1001) has died in step 12; ranks 0, 2, 3 wait for it in all_reduce 41 of group world, which it never finished");

  Job failing;  // rank 0 gets an MPI error because its peer died: not the cause
  failing.end(1, Life::kDead);
  failing.pass(0.03);
  failing.end(0, Life::kFailed);
  failing.pass(0.1);
  CHECK(failing.text().find("rank 1 ") == 0);
}

TEST_CASE("verdict: ranks that die simultaneously are all named, a complete host by its name") {
  Job job(true);
  job.end(0, Life::kDead);
  job.end(2, Life::kDead);
  job.pass(0.2);
  CHECK(job.text() == "rank 0 (host n1, process 1000), rank 2 (host n2, process 1002) have died; rank 0 was in step 12");
  CHECK(judge(job.ranks, job.now, {})->deaths.size() == 2);
  Job lost(true);
  lost.end(2, Life::kDead);
  lost.end(3, Life::kDead);
  for (const size_t r : {0, 1}) lost.wait(r, 0);
  lost.pass(0.2);
  CHECK(lost.text() ==
        "host n2 (ranks 2, 3) has died; rank 2 was in step 12; ranks 0, 1 wait for rank 2 in all_reduce 41 of group world, which it never finished");
  CHECK(judge(lost.ranks, lost.now, {})->deaths.empty());  // no single rank is the cause
}

TEST_CASE("verdict: after a rank has reported an error the death of others is ignored") {
  Job job;
  job.end(2, Life::kFailed);
  job.pass(0.02);
  for (const size_t r : {0, 1}) job.end(r, Life::kDead);
  job.pass(1);
  CHECK(job.text().empty());
  job.pass(50);  // grace period in which mpirun ends the others with that rank's exit code
  CHECK(job.text().empty());
  job.pass(10);  // but rank 3 keeps running
  CHECK(job.text() == "rank 2 (host n1, process 1002) has failed; it was in step 12; rank 3 is still running");
  job.end(3, Life::kDead);
  CHECK(job.text().empty());
}

TEST_CASE("verdict: none if all ranks have exited normally") {
  Job job;
  for (const size_t r : {0, 1, 2, 3}) job.end(r, Life::kLeft);
  job.pass(1000);
  CHECK(job.text().empty());
}

TEST_CASE("verdict: a rank that never joins is reported after a timeout") {
  Job job;
  job.ranks[2].life = Life::kAbsent;
  job.now = 599;
  job.pass(0);
  CHECK(job.text().empty());
  job.pass(1);
  CHECK(job.text() == "rank 2 never joined: not started, or blocked before monitoring began, for 600 s; ranks 0, 1, 3 wait");
  for (RankState& rank : job.ranks) rank.life = Life::kAbsent;
  CHECK(job.text() == "no rank ever joined: not started, or blocked before monitoring began, for 600 s");
  job.ranks[1].life = Life::kFailed;  // its error takes precedence
  job.ranks[1].ended = job.now;
  CHECK(job.text().empty());
}

TEST_CASE("verdict: a silent rank is named after the limit, or its host if all ranks of the host are silent") {
  Job job(true);
  job.ranks[2].last.action = "gathering head";
  for (const size_t r : {0, 1, 3}) job.wait(r, 0);
  for (RankState& rank : job.ranks) rank.last.timeout = 1000;
  const auto pass_without = [](Job& jobs, std::vector<size_t> silent, double seconds) {
    std::vector<double> heard;
    for (const size_t r : silent) heard.push_back(jobs.ranks[r].heard);
    jobs.pass(seconds);
    for (size_t i = 0; i < silent.size(); ++i) jobs.ranks[silent[i]].heard = heard[i];
  };
  pass_without(job, {2}, 9.9);
  CHECK(job.text().empty());
  pass_without(job, {2}, 0.2);
  CHECK(job.text() ==
        "rank 2 (host n2, process 1002) has not responded for 10 s: stopped, or host or link is lost; it was in step 12, after: gathering head; "
        "ranks 0, 1, "
        "3 wait for it in all_reduce 41 of group world, which it never finished");

  Job lost(true);
  pass_without(lost, {2, 3}, 0.2);
  lost.ranks[3].heard = lost.now;  // its last report came a moment after its neighbour's
  lost.ranks[3].last.step = 11;
  pass_without(lost, {2, 3}, 9.85);
  CHECK(lost.text().find("host n2 (ranks 2, 3) has not responded for 10 s") == 0);
  CHECK(lost.verdict()->step == 12);  // of the rank that was farthest
}

TEST_CASE("verdict: the hung rank is the one that does not wait") {
  Job job;
  job.ranks[1].last.action = "forward of micro-batch 0, blocks.1";
  job.wait(0, 1);  // in tensor, for rank 1
  job.ranks[0].last.action = "forward of micro-batch 0, blocks.2";
  for (const size_t r : {2, 3}) job.wait(r, 0);
  job.pass(10.1);
  CHECK(
      job.text() ==
      "rank 1 (host n1, process 1001) has made no progress for 10 s; it was in step 12, after: forward of micro-batch 0, blocks.1; rank 0 waits for "
      "it "
      "in "
      "all_reduce 118 of group tensor (forward of micro-batch 0, blocks.2), which it never entered; ranks 2, 3 wait for it in all_reduce 41 of group "
      "world, which it never entered");
}

TEST_CASE("verdict: of several ranks that do not wait, those that others wait for are named") {
  Job job;
  job.ranks[0].last.groups[0].started = 41;  // not waiting, but ahead of the others
  for (const size_t r : {1, 2}) job.wait(r, 0);
  job.pass(11);
  CHECK(job.text().find("rank 3 (host n1, process 1003) has made no progress for 11 s") == 0);
}

TEST_CASE("verdict: if all ranks wait, the one is named that others wait for and that waits for no rank") {
  Job job;
  for (const size_t r : {0, 1, 3}) job.wait(r, 0);
  job.ranks[2].last.wait = {"the device", {}, 0, {}};
  job.pass(11);
  CHECK(job.text() ==
        "rank 2 (host n1, process 1002) has made no progress for 11 s, waiting in the device; it was in step 12; ranks 0, 1, 3 wait for it in "
        "all_reduce "
        "41 of "
        "group world, which it never entered");
  job.ranks[2].last.wait = {};
  job.end(2, Life::kLeft);
  CHECK(job.text().find("rank 2 (host n1, process 1002) has exited normally; it was in step 12; ranks 0, 1, 3 wait for it") == 0);
}

TEST_CASE("verdict: ranks that wait for each other are a deadlock") {
  Job job;
  job.wait(0, 1);                                   // waits for rank 1 in tensor
  for (const size_t r : {1, 2, 3}) job.wait(r, 0);  // wait for rank 0 in world
  job.pass(11);
  const std::string text = job.text();
  CHECK(text.find(
            "deadlock: no rank has made progress for 11 s; rank 0 (host n1, process 1000) in step 12, waits in all_reduce 118 of group tensor, which "
            "rank 1 never entered; rank 1 (host n1, process 1001) in step 12, waits in all_reduce 41 of group world, which rank 0 never entered") ==
        0);
}

TEST_CASE("verdict: the sender of a missing message is named") {
  Job job;
  for (RankState& rank : job.ranks) rank.last.groups.push_back({"pipeline", {0, 1, 2, 3}, 0, {0, 0, 0, 0}, {0, 0, 0, 0}});
  const auto receive = [&](size_t rank, size_t from) {
    job.ranks[rank].last.wait = {"exchange", 2, 0, {{from, false, ++job.ranks[rank].last.groups[2].received[from]}}};
  };
  receive(1, 0), receive(2, 1), receive(3, 2);
  job.ranks[0].last.wait = {"the device", {}, 0, {}};
  job.pass(11);
  CHECK(job.text().find(
            "rank 0 (host n1, process 1000) has made no progress for 11 s, waiting in the device; it was in step 12; rank 1 waits for it in exchange "
            "in group pipeline (message 1 from rank 0), which it never entered") == 0);
  job.ranks[0].last.groups[2].sent[1] = 1;  // it was sent after all, so only rank 1 is waited for, by rank 2
  CHECK(job.text().find("rank 1 (host n1, process 1001) has made no progress for 11 s, waiting in exchange") == 0);
}

TEST_CASE("verdict: groups with the same name and members are distinguished by their order of creation") {
  Job job;
  for (RankState& rank : job.ranks) rank.last.groups.push_back({"world", {0, 1, 2, 3}, 7, {}, {}});
  for (const size_t r : {1, 2, 3}) job.wait(r, 2);
  job.ranks[0].last.wait = {"the device", {}, 0, {}};
  job.pass(11);
  CHECK(job.text().find("ranks 1, 2, 3 wait for it in all_reduce 8 of group world, which it never entered") != std::string::npos);
  job.ranks[0].last.groups[0].started = 9;
  job.ranks[0].last.groups[2].started = 8;
  CHECK(job.text().find("deadlock") == 0);  // all have entered: no rank is the cause
}

TEST_CASE("verdict: different operations at one place are a disagreement, and the minority is named") {
  Job job;
  for (const size_t r : {0, 2, 3}) job.wait(r, 0);
  job.wait(1, 0, "barrier");
  job.pass(11);
  CHECK(job.text() ==
        "rank 1 (host n1, process 1001) has called a mismatched operation; it was in step 12; operation 41 of group world is barrier on rank 1, "
        "all_reduce on ranks 0, 2, 3; "
        "no progress for 11 s");
}

TEST_CASE("verdict: the longest timeout applies to all ranks, and without a timeout no rank counts as hung") {
  Job job;
  for (const size_t r : {1, 2}) job.wait(r, 0);  // and rank 0 makes no progress without waiting
  job.ranks[3].last.timeout = 120;
  job.ranks[3].last.action = "saving";
  job.pass(100);
  CHECK(job.text().empty());
  job.ranks[3].last.timeout = 10;
  job.ranks[1].last.timeout = 120;  // not that of the last rank
  CHECK(job.text().empty());
  job.ranks[1].last.timeout = 10;
  job.ranks[3].last.timeout = 120;
  // The save is over: the others were waiting for it, and their ten seconds start again.
  Progress::Snapshot back = job.ranks[3].last;
  back.timeout = 10;
  ++back.count;
  note_report(job.ranks, 3, back, job.now);
  CHECK(job.text().empty());
  job.pass(9);
  CHECK(job.text().empty());
  job.pass(2);
  CHECK(job.text().find("rank 0 (host n1, process 1000), rank 3 (host n1, process 1003) have made no progress for 11 s") == 0);
  job.ranks[1].last.timeout = 0;
  CHECK(job.text().empty());
  job.ranks[1].last.timeout = 10;
  job.ranks[0].life = Life::kAbsent;
  CHECK(job.text().empty());
}

TEST_CASE("verdict: if a rank hangs inside an operation that all have entered, all ranks in it are named") {
  Job job;
  job.wait(0, 0);
  for (const size_t r : {2, 3}) job.wait(r, 1);  // all have entered it, so one of the two is stuck
  job.wait(1, 0);
  job.pass(11);
  CHECK(job.text().find(
            "rank 2 (host n1, process 1002), rank 3 (host n1, process 1003) have made no progress for 11 s, waiting in all_reduce 118 of group "
            "tensor (entered by ranks 2, 3); rank 2 was in step 12") == 0);
  CHECK(job.text().find("ranks 0, 1 wait for rank 2 in all_reduce 41 of group world, which it never entered") != std::string::npos);

  Job wanted;  // other ranks wait for only one of the two
  wanted.wait(0, 1);
  for (const size_t r : {2, 3}) wanted.wait(r, 0);
  wanted.ranks[1].last.groups[0].started = 41;
  wanted.wait(1, 1);
  wanted.pass(11);
  CHECK(wanted.text().find("rank 0 (host n1, process 1000), rank 1 (host n1, process 1001) have made no progress") == 0);

  Job elsewhere;  // rank 0 has entered rank 2's collective, but is stuck in another one
  for (RankState& rank : elsewhere.ranks) rank.last.groups.push_back({"shard", std::vector{0, 2}, 7, {}, {}});
  elsewhere.wait(2, 2);
  elsewhere.ranks[0].last.groups[2].started = 8;
  elsewhere.wait(3, 1);
  elsewhere.ranks[2].last.groups[1].started = 117;
  elsewhere.wait(0, 1);
  elsewhere.wait(1, 1);
  elsewhere.pass(11);
  CHECK(elsewhere.text().find(
            "rank 0 (host n1, process 1000), rank 1 (host n1, process 1001), rank 2 (host n1, process 1002) have made no progress") == 0);
}

TEST_CASE("verdict: none while the rank that others wait for makes progress") {
  Job job;
  for (const size_t r : {0, 1, 2}) job.wait(r, 0);
  for (int i = 0; i < 20; ++i) {
    job.pass(1);
    Progress::Snapshot next = job.ranks[3].last;
    ++next.count;
    note_report(job.ranks, 3, next, job.now);
  }
  CHECK(job.text().empty());
}

TEST_CASE("verdict: a stopped process that blocks the others is reported as silent before the limit") {
  Job job;
  for (const size_t r : {0, 1, 2}) job.wait(r, 0);
  for (RankState& rank : job.ranks) rank.last.timeout = 3;
  job.pass(3.1);
  job.ranks[1].heard = job.now - 3;
  CHECK(job.text().find("rank 1 (host n1, process 1001) has not responded for 3 s: stopped") == 0);
}

TEST_CASE("a report round-trips through the wire format, and a malformed one changes nothing") {
  Progress progress;
  const size_t world = progress.add_group("world", {0, 1, 2});
  progress.begin_step(7);
  progress.act("saving \xff\n\"x\"");
  progress.set_timeout(2.5);
  progress.enter(world);
  Progress::Snapshot known;
  const auto pass = [&](size_t groups_known) {
    return decode_report(parse_line(encode_report(progress.snapshot(), groups_known).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)),
                         3, known);
  };
  REQUIRE(pass(0));
  CHECK(known.step == 7);
  CHECK(known.timeout == 2.5);
  CHECK(known.groups.size() == 1);
  CHECK(known.groups[0].started == 1);
  CHECK_FALSE(known.wait);
  const size_t pair = progress.add_group("pair", {0, 2});
  progress.begin_wait({"exchange", pair, 0, {progress.enter_message(pair, 1, true), progress.enter_message(pair, 1, false)}});
  REQUIRE(pass(1));
  CHECK(known.count == progress.snapshot().count);
  CHECK(known.groups[1].ranks == std::vector{0, 2});
  CHECK(known.groups[1].sent == std::vector<uint64_t>{0, 1});
  CHECK(known.wait->group == pair);
  CHECK(known.wait->messages.size() == 2);
  CHECK(known.wait->messages[0].send);

  const uint64_t count = known.count;
  const nlohmann::json good = encode_report(progress.snapshot(), 2);
  const auto refused = [&](const char* patch) {
    nlohmann::json bad = good;
    bad.merge_patch(nlohmann::json::parse(patch));
    bad["count"] = bad.value("count", nlohmann::json(99));
    return !decode_report(bad, 3, known);
  };
  CHECK(refused(R"({"count": "many"})"));
  CHECK(refused(R"({"step": [1]})"));
  CHECK(refused(R"({"started": [1]})"));
  CHECK(refused(R"({"started": null})"));
  CHECK(refused(R"({"groups": [{"name": "x", "ranks": [3]}], "started": [1, 2, 3]})"));
  CHECK(refused(R"({"groups": [{"name": "x", "ranks": [-1]}], "started": [1, 2, 3]})"));
  CHECK(refused(R"({"messages": [[9, [1], [1]]]})"));
  CHECK(refused(R"({"messages": 3})"));
  CHECK(refused(R"({"wait": {"what": 3}})"));
  CHECK_FALSE(decode_report(nlohmann::json(), 3, known));
  CHECK(known.count == count);
  CHECK(parse_line("[1]").is_null());
  CHECK(parse_line("{\"a\":").is_null());
  CHECK(parse_line("").is_null());
}

TEST_CASE("verdict: waits in unknown groups or for invalid peers do not crash the judge") {
  Job job;
  job.ranks[0].last.wait = {"all_reduce", 77, 5, {}};
  job.ranks[1].last.wait = {"exchange", 0, 0, {{99, true, 4}}};
  job.ranks[2].last.wait = {"all_reduce", 1, 118, {}};
  job.ranks[3].last.groups.clear();
  job.ranks[3].last.wait = {"all_reduce", 0, 1, {}};
  job.pass(11);
  CHECK_FALSE(job.text().empty());
}

TEST_CASE("verdict: at most eight of many dead ranks are named, the others are counted") {
  std::vector<RankState> ranks(13);  // two hosts with one living rank each
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].life = r < 11 ? Life::kDead : Life::kAlive;
    ranks[r].host = r % 2 == 0 ? "n1" : "n2";
    ranks[r].pid = 1000 + static_cast<int>(r);
    ranks[r].ended = ranks[r].died_after = ranks[r].died_by = ranks[r].heard = ranks[r].moved = 100;
    ranks[r].last.step = 12;
  }
  const auto verdict = judge(ranks, 100.2, {});
  REQUIRE(verdict);
  INFO(verdict->text);
  CHECK(verdict->text.find("rank 0 (host n1, process 1000), rank 1 (host n2, process 1001), ") == 0);
  CHECK(verdict->text.find(", rank 7 (host n2, process 1007) and 3 more ranks have died; rank 0 was in step 12") != std::string::npos);
  CHECK(verdict->text.find("rank 8 ") == std::string::npos);
}

TEST_CASE("verdict: of more than eight hosts that die the ranks of the others are counted") {
  std::vector<RankState> ranks(24);  // twelve hosts, of which eleven are lost; the eleventh has one rank
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].life = r < 21 ? Life::kDead : Life::kAlive;
    ranks[r].host = concat("n", r < 20 ? r / 2 : r == 20 ? 10 : 11);
    ranks[r].ended = ranks[r].died_after = ranks[r].died_by = ranks[r].heard = ranks[r].moved = 100;
  }
  const auto verdict = judge(ranks, 100.2, {});
  REQUIRE(verdict);
  INFO(verdict->text);
  CHECK(verdict->text.find("host n0 (ranks 0, 1), host n1 (ranks 2, 3), ") == 0);
  CHECK(verdict->text.find(", host n7 (ranks 14, 15) and 5 more ranks have died") != std::string::npos);
}

TEST_CASE("verdict: a dead rank is reported with its host, its action and the operation that it never finished") {
  Job job(true);
  job.ranks[3].last.action = "backward of micro-batch 2, blocks.3";
  for (const size_t r : {0, 1}) job.wait(r, 0);
  job.end(3, Life::kDead);
  job.pass(0.2);
  const auto verdict = job.verdict();
  check_fields(verdict, Kind::kDead, {3}, {"n2"});
  CHECK(verdict->action == "backward of micro-batch 2, blocks.3");
  CHECK(verdict->step == 12);
  check_operation(verdict, "all_reduce", "world", 41, "", {0, 1});
  CHECK(verdict->operation->text == "all_reduce 41 of group world");
}

TEST_CASE("verdict: for ranks that die together each host is reported once, and each death separately") {
  Job job(true);
  for (const size_t r : {0, 2}) job.end(r, Life::kDead);
  for (const size_t r : {1, 3}) job.wait(r, 0);
  job.pass(0.2);
  const auto verdict = job.verdict();
  check_fields(verdict, Kind::kDead, {0, 2}, {"n1", "n2"});
  check_operation(verdict, "all_reduce", "world", 41, "", {1, 3});
  REQUIRE(verdict->deaths.size() == 2);
  check_fields(verdict->deaths[1], Kind::kDead, {2}, {"n2"});
  CHECK(verdict->deaths[1].text.starts_with("rank 2 (host n2, process 1002) has died"));

  Job lost(true);
  for (const size_t r : {2, 3}) lost.end(r, Life::kDead);
  lost.pass(0.2);
  check_fields(lost.verdict(), Kind::kDead, {2, 3}, {"n2"});
}

TEST_CASE("verdict: a hung rank is reported with the operation in which others wait, or its own") {
  Job job(true);
  job.ranks[1].last.action = "forward of micro-batch 0, blocks.1";
  job.wait(0, 1);
  job.ranks[0].last.action = "forward of micro-batch 0, blocks.2";
  for (const size_t r : {2, 3}) job.wait(r, 0);
  job.pass(10.1);
  check_fields(job.verdict(), Kind::kHung, {1}, {"n1"});
  CHECK(job.verdict()->action == "forward of micro-batch 0, blocks.1");
  check_operation(job.verdict(), "all_reduce", "tensor", 118, "forward of micro-batch 0, blocks.2", {0});

  Job alone(true);  // no rank waits for a particular other one
  for (RankState& rank : alone.ranks) rank.last.wait = {"the device", {}, 0, {}};
  alone.pass(11);
  check_fields(alone.verdict(), Kind::kDeadlock, {0, 1, 2, 3}, {"n1", "n2"});
  check_operation(alone.verdict(), "the device", "", 0, "", {0});

  Job idle;
  idle.ranks[2].heard = idle.now;
  idle.pass(11);
  check_fields(idle.verdict(), Kind::kHung, {0, 1, 2, 3}, {"n1"});
  CHECK_FALSE(idle.verdict()->operation);
}

TEST_CASE("verdict: ranks in a mismatched operation are reported with that operation") {
  Job job(true);
  for (const size_t r : {0, 1, 3}) job.wait(r, 0);
  job.wait(2, 0, "barrier");
  job.pass(11);
  check_fields(job.verdict(), Kind::kDisagreement, {2}, {"n2"});
  check_operation(job.verdict(), "barrier", "world", 41, "", {2});
}

TEST_CASE("verdict: ranks that exited, failed, never joined or do not respond are reported as such") {
  Job left(true);
  for (const size_t r : {0, 1, 3}) left.wait(r, 0);
  left.end(2, Life::kLeft);
  left.pass(11);
  check_fields(left.verdict(), Kind::kLeft, {2}, {"n2"});
  check_operation(left.verdict(), "all_reduce", "world", 41, "", {0, 1, 3});

  Job failed(true);
  failed.end(2, Life::kFailed);
  failed.pass(61);
  check_fields(failed.verdict(), Kind::kFailed, {2}, {"n2"});

  Job absent(true);
  absent.ranks[2] = {};  // its host is unknown
  absent.now = 601;
  for (const size_t r : {0, 1, 3}) absent.ranks[r].heard = absent.now;
  check_fields(absent.verdict(), Kind::kAbsent, {2}, {});
  CHECK_FALSE(absent.verdict()->operation);

  Job silent(true);
  for (const size_t r : {0, 1}) silent.wait(r, 0);
  silent.now += 11;
  for (const size_t r : {0, 1}) silent.ranks[r].heard = silent.now;
  check_fields(silent.verdict(), Kind::kSilent, {2, 3}, {"n2"});
  check_operation(silent.verdict(), "all_reduce", "world", 41, "", {0, 1});
}

TEST_CASE("verdict: a missing message is reported with the group of its exchange") {
  Job job(true);
  for (RankState& rank : job.ranks) rank.last.groups.push_back({"pipeline", {0, 1, 2, 3}, 0, {0, 0, 0, 0}, {0, 0, 0, 0}});
  job.ranks[3].last.wait = {"exchange", 2, 0, {{2, false, 1}}};
  job.ranks[3].last.groups[2].received[2] = 1;
  job.pass(11);
  check_fields(job.verdict(), Kind::kHung, {2}, {"n2"});
  check_operation(job.verdict(), "exchange", "pipeline", 0, "", {3});
}

TEST_CASE("verdict: says since when the ranks have failed") {
  {
    Job job;  // rank 2 dies 0.2 s before it is judged
    job.end(2, Life::kDead);
    const double death = job.now;
    job.pass(0.2);
    CHECK(job.verdict()->since == death);
  }
  {
    Job job;  // rank 1 is stopped: it was heard last at 100
    job.pass(11);
    job.ranks[1].heard = 100;
    REQUIRE(job.verdict()->kind == Kind::kSilent);
    CHECK(job.verdict()->since == 100);
  }
  {
    Job job;  // rank 3 moved last at 103, the others later
    job.pass(3);
    job.ranks[3].moved = job.now;
    for (const size_t rank : {0, 1, 2}) {
      job.ranks[rank].moved = job.now + 1;
      job.wait(rank, 0);
    }
    job.pass(12);
    REQUIRE(job.verdict()->kind == Kind::kHung);
    CHECK(job.verdict()->ranks == Ranks{3});
    CHECK(job.verdict()->since == 103);
  }
}

TEST_CASE("verdict: each of several deaths has the time of its own failure on the wall clock") {
  using std::chrono::milliseconds;
  Job job(true);
  job.end(0, Life::kDead);
  job.pass(0.25);
  job.end(2, Life::kDead);
  job.pass(0.5);
  std::optional<Verdict> verdict = job.verdict();
  REQUIRE(verdict);
  REQUIRE(verdict->deaths.size() == 2);
  const std::chrono::system_clock::time_point now(milliseconds(1'700'000'000'000));
  set_wall_times(*verdict, job.now, now);
  CHECK(verdict->since_time == now - milliseconds(750));
  CHECK(verdict->deaths[0].since_time == now - milliseconds(750));
  CHECK(verdict->deaths[1].since_time == now - milliseconds(500));
}

TEST_CASE("verdict: the stacks of accused ranks are where those that have answered have written them") {
  std::vector<RankState> ranks(5);
  CHECK(place_of_stacks(ranks, {1, 2, 4}).empty());
  ranks[0].stacks = "logs/rank-0000.log";  // not accused
  ranks[1].stacks = "";                    // could not read them
  CHECK(place_of_stacks(ranks, {1, 2, 4}).empty());
  ranks[2].stacks = "logs/rank-0002.log";
  CHECK(place_of_stacks(ranks, {2}) == "; stacks of its threads: logs/rank-0002.log");
  CHECK(place_of_stacks(ranks, {1, 2, 4}) == "; stacks of their threads: logs/rank-0002.log");
  ranks[4].stacks = "logs/rank-0004.log";
  CHECK(place_of_stacks(ranks, {1, 2, 4}) == "; stacks of their threads: logs/rank-0002.log and the logs of 1 more rank");
}
