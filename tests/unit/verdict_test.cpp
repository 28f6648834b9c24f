#include "trainer/resilience/verdict.h"

#include <numeric>

#include "tests/support/catch.h"
#include "trainer/resilience/wire.h"

using namespace trireme;

namespace {

/// Four ranks in two hosts, each in two groups: all of them, and "tensor" {0, 1}, {2, 3}. Everyone patient for ten seconds, heard of and moved now.
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

/// A verdict without its sentence.
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

TEST_CASE("verdict: nothing to say of a job that moves") {
  Job job;
  CHECK(job.text().empty());
  job.wait(0, 0);
  job.pass(9.9);
  CHECK(job.text().empty());
}

TEST_CASE("verdict: a dead rank is named with its step, its last action and who waits for it") {
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

TEST_CASE("verdict: the first to die is named, not what dies of it") {
  Job job(true);
  job.end(1, Life::kDead);
  job.pass(0.03);
  job.end(0, Life::kDead);
  job.end(3, Life::kDead);
  job.pass(0.1);
  CHECK(job.text().find("rank 1 (host n1, process 1001) has died") ==
        std::string::npos);  // both ranks of n1 are gone by now: the host is what they share
  CHECK(job.text().find("host n1 (ranks 0, 1) has died") == 0);

  Job one_host;
  one_host.end(1, Life::kDead);
  one_host.pass(0.03);
  for (const size_t r : {0, 2, 3}) one_host.end(r, Life::kDead);
  one_host.pass(0.1);
  CHECK(one_host.text() == "rank 1 (host n1, process 1001) has died in step 12");

  Job late;  // noticed in one moment, but the kernel knows the order
  for (const size_t r : {0, 1, 2, 3}) late.end(r, Life::kDead);
  late.ranks[2].died_after -= 0.013;
  late.ranks[2].died_by -= 0.008;
  late.ranks[3].died_after -= 0.2;  // of this one it does not
  late.pass(0.2);
  CHECK(late.text().find("rank 2 (host n1, process 1002), rank 3 (host n1, process 1003) have died") == 0);
  const auto deaths = judge(late.ranks, late.now, {})->deaths;  // mpirun may know which of the two it was
  CHECK(deaths.at(2).text == "rank 2 (host n1, process 1002) has died in step 12");
  CHECK(deaths.at(3).text == "rank 3 (host n1, process 1003) has died in step 12");

  Job waiting;  // the others are killed while they wait for it
  waiting.end(1, Life::kDead);
  waiting.pass(0.03);
  for (const size_t r : {0, 2, 3}) {
    waiting.wait(r, 0);
    waiting.end(r, Life::kDead);
  }
  waiting.pass(0.1);
  CHECK(waiting.text() ==
        "rank 1 (host n1, process 1001) has died in step 12; ranks 0, 2, 3 wait for it in all_reduce 41 of group world, which it never finished");

  Job failing;  // its peer dies, so MPI fails in it: no cause
  failing.end(1, Life::kDead);
  failing.pass(0.03);
  failing.end(0, Life::kFailed);
  failing.pass(0.1);
  CHECK(failing.text().find("rank 1 ") == 0);
}

TEST_CASE("verdict: ranks that die in the same moment are all named, a whole host by its name") {
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
        "host n2 (ranks 2, 3) has died; rank 2 was in step 12; ranks 0, 1 wait for it in all_reduce 41 of group world, which it never finished");
  CHECK(judge(lost.ranks, lost.now, {})->deaths.empty());  // no single rank is the cause
}

TEST_CASE("verdict: a rank that has reported its own error makes the end of the others no news") {
  Job job;
  job.end(2, Life::kFailed);
  job.pass(0.02);
  for (const size_t r : {0, 1}) job.end(r, Life::kDead);
  job.pass(1);
  CHECK(job.text().empty());
  job.pass(50);  // mpirun has time to end them with that rank's exit code
  CHECK(job.text().empty());
  job.pass(10);  // but rank 3 does not go
  CHECK(job.text() == "rank 2 (host n1, process 1002) has failed; it was in step 12; rank 3 has not ended with it");
  job.end(3, Life::kDead);
  CHECK(job.text().empty());
}

TEST_CASE("verdict: ranks that have left in order are missed by nobody") {
  Job job;
  for (const size_t r : {0, 1, 2, 3}) job.end(r, Life::kLeft);
  job.pass(1000);
  CHECK(job.text().empty());
}

TEST_CASE("verdict: a rank that never joins is missed in the end") {
  Job job;
  job.ranks[2].life = Life::kAbsent;
  job.now = 599;
  job.pass(0);
  CHECK(job.text().empty());
  job.pass(1);
  CHECK(job.text() == "rank 2 never joined: not started, or held up before it could be watched, for 600 s; ranks 0, 1, 3 wait");
  for (RankState& rank : job.ranks) rank.life = Life::kAbsent;
  CHECK(job.text() == "no rank ever joined: not started, or held up before it could be watched, for 600 s");
  job.ranks[1].life = Life::kFailed;  // its own error is the news
  job.ranks[1].ended = job.now;
  CHECK(job.text().empty());
}

TEST_CASE("verdict: a silent rank is named after the limit, with its host if all of it is silent") {
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
        "rank 2 (host n2, process 1002) does not answer since 10 s: stopped, or host or link is lost; it was in step 12, after: gathering head; "
        "ranks 0, 1, "
        "3 wait for it in all_reduce 41 of group world, which it never finished");

  Job lost(true);
  pass_without(lost, {2, 3}, 0.2);
  lost.ranks[3].heard = lost.now;  // a last word a moment later than its neighbour's
  pass_without(lost, {2, 3}, 9.85);
  CHECK(lost.text().find("host n2 (ranks 2, 3) does not answer since 10 s") == 0);
}

TEST_CASE("verdict: a hung rank is the one that is in no wait") {
  Job job;
  job.ranks[1].last.action = "forward of micro-batch 0, blocks.1";
  job.wait(0, 1);  // tensor, with rank 1
  job.ranks[0].last.action = "forward of micro-batch 0, blocks.2";
  for (const size_t r : {2, 3}) job.wait(r, 0);
  job.pass(10.1);
  CHECK(
      job.text() ==
      "rank 1 (host n1, process 1001) has done nothing for 10 s; it was in step 12, after: forward of micro-batch 0, blocks.1; rank 0 waits for it "
      "in "
      "all_reduce 118 of group tensor (forward of micro-batch 0, blocks.2), which it never entered; ranks 2, 3 wait for it in all_reduce 41 of group "
      "world, which it never entered");
}

TEST_CASE("verdict: of several ranks in no wait, those that others miss") {
  Job job;
  job.ranks[0].last.groups[0].started = 41;  // in no wait, but ahead
  for (const size_t r : {1, 2}) job.wait(r, 0);
  job.pass(11);
  CHECK(job.text().find("rank 3 (host n1, process 1003) has done nothing for 11 s") == 0);
}

TEST_CASE("verdict: where everybody waits, the rank that is missed and misses nobody") {
  Job job;
  for (const size_t r : {0, 1, 3}) job.wait(r, 0);
  job.ranks[2].last.wait = {"the device", {}, 0, {}};
  job.pass(11);
  CHECK(job.text() ==
        "rank 2 (host n1, process 1002) has done nothing for 11 s, waiting in the device; it was in step 12; ranks 0, 1, 3 wait for it in all_reduce "
        "41 of "
        "group world, which it never entered");
  job.ranks[2].last.wait = {};
  job.end(2, Life::kLeft);
  CHECK(job.text().find("rank 2 (host n1, process 1002) has left in order; it was in step 12; ranks 0, 1, 3 wait for it") == 0);
}

TEST_CASE("verdict: ranks that wait for each other are a deadlock") {
  Job job;
  job.wait(0, 1);                                   // for rank 1 in tensor
  for (const size_t r : {1, 2, 3}) job.wait(r, 0);  // for rank 0 in world
  job.pass(11);
  const std::string text = job.text();
  CHECK(text.find(
            "deadlock: no rank has done anything for 11 s; rank 0 (host n1, process 1000) in step 12, waits in all_reduce 118 of group tensor, which "
            "rank 1 never entered; rank 1 (host n1, process 1001) in step 12, waits in all_reduce 41 of group world, which rank 0 never entered") ==
        0);
}

TEST_CASE("verdict: messages are missed from their sender") {
  Job job;
  for (RankState& rank : job.ranks) rank.last.groups.push_back({"pipeline", {0, 1, 2, 3}, 0, {0, 0, 0, 0}, {0, 0, 0, 0}});
  const auto receive = [&](size_t rank, size_t from) {
    job.ranks[rank].last.wait = {"exchange", 2, 0, {{from, false, ++job.ranks[rank].last.groups[2].received[from]}}};
  };
  receive(1, 0), receive(2, 1), receive(3, 2);
  job.ranks[0].last.wait = {"the device", {}, 0, {}};
  job.pass(11);
  CHECK(job.text().find(
            "rank 0 (host n1, process 1000) has done nothing for 11 s, waiting in the device; it was in step 12; rank 1 waits for it in exchange "
            "in group pipeline (message 1 from rank 0), which it never entered") == 0);
  job.ranks[0].last.groups[2].sent[1] = 1;  // it was sent after all, so nobody is missed but rank 1, by rank 2
  CHECK(job.text().find("rank 1 (host n1, process 1001) has done nothing for 11 s, waiting in exchange") == 0);
}

TEST_CASE("verdict: groups alike in name and members are told apart by the order of their making") {
  Job job;
  for (RankState& rank : job.ranks) rank.last.groups.push_back({"world", {0, 1, 2, 3}, 7, {}, {}});
  for (const size_t r : {1, 2, 3}) job.wait(r, 2);
  job.ranks[0].last.wait = {"the device", {}, 0, {}};
  job.pass(11);
  CHECK(job.text().find("ranks 1, 2, 3 wait for it in all_reduce 8 of group world, which it never entered") != std::string::npos);
  job.ranks[0].last.groups[0].started = 9;
  job.ranks[0].last.groups[2].started = 8;
  CHECK(job.text().find("deadlock") == 0);  // all are there: nobody to blame
}

TEST_CASE("verdict: two operations in one place are a disagreement, and the fewer are named") {
  Job job;
  for (const size_t r : {0, 2, 3}) job.wait(r, 0);
  job.wait(1, 0, "barrier");
  job.pass(11);
  CHECK(
      job.text() ==
      "rank 1 (host n1, process 1001) is at odds; it was in step 12; operation 41 of group world is barrier on rank 1, all_reduce on ranks 0, 2, 3; "
      "nothing has moved for 11 s");
}

TEST_CASE("verdict: timeout of one rank excuses all, and a rank without any is not judged") {
  Job job;
  for (const size_t r : {1, 2}) job.wait(r, 0);  // and rank 0 stands still in no wait
  job.ranks[3].last.timeout = 120;
  job.ranks[3].last.action = "saving";
  job.pass(100);
  CHECK(job.text().empty());
  // The save is over: the others stood still for its sake, and have their ten seconds again.
  Progress::Snapshot back = job.ranks[3].last;
  back.timeout = 10;
  ++back.count;
  note_report(job.ranks, 3, back, job.now);
  CHECK(job.text().empty());
  job.pass(9);
  CHECK(job.text().empty());
  job.pass(2);
  CHECK(job.text().find("rank 0 (host n1, process 1000), rank 3 (host n1, process 1003) have done nothing for 11 s") == 0);
  job.ranks[1].last.timeout = 0;
  CHECK(job.text().empty());
  job.ranks[1].last.timeout = 10;
  job.ranks[0].life = Life::kAbsent;
  CHECK(job.text().empty());
}

TEST_CASE("verdict: one that hangs inside an operation all have entered cannot be told from the others in it, so all are named") {
  Job job;
  job.wait(0, 0);
  for (const size_t r : {2, 3}) job.wait(r, 1);  // and there it stays: one of the two is stuck
  job.wait(1, 0);
  job.pass(11);
  CHECK(
      job.text().find("rank 2 (host n1, process 1002), rank 3 (host n1, process 1003) have done nothing for 11 s, waiting in all_reduce 118 of group "
                      "tensor, which all have entered; rank 2 was in step 12") == 0);
  CHECK(job.text().find("ranks 0, 1 wait for it in all_reduce 41 of group world, which it never entered") != std::string::npos);

  Job wanted;  // only one of the two is waited for by others
  wanted.wait(0, 1);
  for (const size_t r : {2, 3}) wanted.wait(r, 0);
  wanted.ranks[1].last.groups[0].started = 41;
  wanted.wait(1, 1);
  wanted.pass(11);
  CHECK(wanted.text().find("rank 0 (host n1, process 1000), rank 1 (host n1, process 1001) have done nothing") == 0);

  Job elsewhere;  // rank 2's collective has been entered by rank 0, which is stuck waiting in another
  for (RankState& rank : elsewhere.ranks) rank.last.groups.push_back({"shard", std::vector{0, 2}, 7, {}, {}});
  elsewhere.wait(2, 2);
  elsewhere.ranks[0].last.groups[2].started = 8;
  elsewhere.wait(3, 1);
  elsewhere.ranks[2].last.groups[1].started = 117;
  elsewhere.wait(0, 1);
  elsewhere.wait(1, 1);
  elsewhere.pass(11);
  CHECK(elsewhere.text().find("rank 0 (host n1, process 1000), rank 1 (host n1, process 1001), rank 2 (host n1, process 1002) have done nothing") ==
        0);
}

TEST_CASE("verdict: nobody is hung while the rank that is waited for moves") {
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

TEST_CASE("verdict: a stopped process is called so before the limit of silence if it is what holds up the others") {
  Job job;
  for (const size_t r : {0, 1, 2}) job.wait(r, 0);
  for (RankState& rank : job.ranks) rank.last.timeout = 3;
  job.pass(3.1);
  job.ranks[1].heard = job.now - 3;
  CHECK(job.text().find("rank 1 (host n1, process 1001) does not answer since 3 s: stopped") == 0);
}

TEST_CASE("a report comes over the wire as it was, and a malformed one changes nothing") {
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

TEST_CASE("a wait in a group nobody knows, or a peer out of place, is judged without a crash") {
  Job job;
  job.ranks[0].last.wait = {"all_reduce", 77, 5, {}};
  job.ranks[1].last.wait = {"exchange", 0, 0, {{99, true, 4}}};
  job.ranks[2].last.wait = {"all_reduce", 1, 118, {}};
  job.ranks[3].last.groups.clear();
  job.ranks[3].last.wait = {"all_reduce", 0, 1, {}};
  job.pass(11);
  CHECK_FALSE(job.text().empty());
}

TEST_CASE("verdict: of many ranks that die together eight are named and the others are counted") {
  std::vector<RankState> ranks(13);  // two hosts, of each of which one rank lives
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
  CHECK(verdict->text.find(", rank 7 (host n2, process 1007) and 3 more have died; rank 0 was in step 12") != std::string::npos);
  CHECK(verdict->text.find("rank 8 ") == std::string::npos);
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

TEST_CASE("verdict: of ranks that die together all hosts are reported once, and each death by itself") {
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

TEST_CASE("verdict: a hung rank is reported with the operation that others wait in, or with its own") {
  Job job(true);
  job.ranks[1].last.action = "forward of micro-batch 0, blocks.1";
  job.wait(0, 1);
  job.ranks[0].last.action = "forward of micro-batch 0, blocks.2";
  for (const size_t r : {2, 3}) job.wait(r, 0);
  job.pass(10.1);
  check_fields(job.verdict(), Kind::kHung, {1}, {"n1"});
  CHECK(job.verdict()->action == "forward of micro-batch 0, blocks.1");
  check_operation(job.verdict(), "all_reduce", "tensor", 118, "forward of micro-batch 0, blocks.2", {0});

  Job alone(true);  // nobody waits for it
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

TEST_CASE("verdict: ranks in another operation than the others are reported with their own") {
  Job job(true);
  for (const size_t r : {0, 1, 3}) job.wait(r, 0);
  job.wait(2, 0, "barrier");
  job.pass(11);
  check_fields(job.verdict(), Kind::kDisagreement, {2}, {"n2"});
  check_operation(job.verdict(), "barrier", "world", 41, "", {2});
}

TEST_CASE("verdict: ranks that left, failed, never came or do not answer are reported as such") {
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
  absent.ranks[2] = {};  // it has not said where it is
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

TEST_CASE("verdict: a message that never came is reported with the group of its exchange") {
  Job job(true);
  for (RankState& rank : job.ranks) rank.last.groups.push_back({"pipeline", {0, 1, 2, 3}, 0, {0, 0, 0, 0}, {0, 0, 0, 0}});
  job.ranks[3].last.wait = {"exchange", 2, 0, {{2, false, 1}}};
  job.ranks[3].last.groups[2].received[2] = 1;
  job.pass(11);
  check_fields(job.verdict(), Kind::kHung, {2}, {"n2"});
  check_operation(job.verdict(), "exchange", "pipeline", 0, "", {3});
}
