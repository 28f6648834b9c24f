// Which operation of a run misses whom: from states, and from the black boxes of live and dead runs.
#include "trainer/resilience/inspect.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/scratch.h"
#include "trainer/machine/environment.h"
#include "trainer/resilience/waits.h"

using namespace trireme;
using test::Scratch;

namespace {

namespace fs = std::filesystem;
using Ranks = std::vector<int>;

/// Eight ranks in "world", in "tensor" {0, 1}, {2, 3}, ... and in "pipeline" {0, 2}, {1, 3}, {4, 6}, {5, 7}.
struct Job {
  std::vector<RankState> ranks{8};

  Job() {
    for (int r = 0; r < 8; ++r) {
      RankState& rank = at(r);
      rank.life = RankState::Life::kAlive;
      rank.host = "n1";
      rank.pid = 1000 + r;
      rank.last.step = 12;
      rank.last.action = concat("forward of micro-batch ", r, ", blocks.2");
      const int tensor = r / 2 * 2, pipeline = r % 2 + r / 4 * 4;
      rank.last.groups = {{"world", {0, 1, 2, 3, 4, 5, 6, 7}, 40, {}, {}},
                          {"tensor", {tensor, tensor + 1}, 117, {}, {}},
                          {"pipeline", {pipeline, pipeline + 2}, 0, {5, 5}, {5, 5}}};
    }
  }
  RankState& at(int rank) { return ranks[static_cast<size_t>(rank)]; }
  void wait(int rank, size_t group, const char* verb = "all_reduce") {
    Progress::Snapshot& last = at(rank).last;
    last.wait = {verb, group, ++last.groups[group].started, {}};
  }
  void wait_for_message(int rank, size_t peer, bool send) {
    Progress::Snapshot& last = at(rank).last;
    last.wait = {"exchange", 2, 0, {{peer, send, ++(send ? last.groups[2].sent : last.groups[2].received)[peer]}}};
  }
  std::string text() const { return inspection_text(inspected(ranks, 0)); }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A rank in a child process that keeps its black box and waits to be killed.
pid_t start_rank(const fs::path& run, const BlackBoxOwner& owner, const std::function<void(Progress&, BlackBox&)>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    MappedBlackBox mapped(black_box_path(run, owner.rank), owner);
    Progress progress;
    progress.record(&mapped.box());
    body(progress, mapped.box());
    (void)!::write(ends[1], "x", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(ends[0], &byte, 1) == 1);
  ::close(ends[0]);
  ::close(ends[1]);
  return child;
}

void kill_rank(pid_t rank) {
  ::kill(rank, SIGKILL);
  ::waitpid(rank, nullptr, 0);
}

}  // namespace

TEST_CASE("inspect: the rank that is missing in a collective, and what it does instead") {
  Job job;
  for (const int r : {0, 1, 2, 4, 5, 6, 7}) job.wait(r, 0);
  const std::vector<Blockage> found = blockages(job.ranks);
  REQUIRE(found.size() == 1);
  CHECK(found[0].operation.text == "all_reduce 41 of group world");
  CHECK(found[0].operation.waiting == Ranks{0, 1, 2, 4, 5, 6, 7});
  CHECK(found[0].members == Ranks{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(found[0].missing == Ranks{3});
  const std::string text = job.text();
  INFO(text);
  CHECK(has(text,
            "all_reduce 41 of group world: ranks 0, 1, 2, 4, 5, 6, 7 wait\n"
            "  rank 3 (host n1, process 1003) never entered it: step 12, forward of micro-batch 3, blocks.2, for 0 s\n"));
}

TEST_CASE("inspect: operations of the same number in different groups are different operations") {
  Job job;
  job.wait(0, 1);
  job.wait(3, 1);
  job.wait(4, 1, "all_gather");
  job.wait(5, 1, "all_gather");
  const std::vector<Blockage> found = blockages(job.ranks);
  REQUIRE(found.size() == 3);
  const auto of = [&](int waiting) {
    return *std::find_if(found.begin(), found.end(), [&](const Blockage& each) { return each.operation.waiting.front() == waiting; });
  };
  CHECK((of(0).members == Ranks{0, 1} && of(0).missing == Ranks{1}));
  CHECK((of(3).members == Ranks{2, 3} && of(3).missing == Ranks{2}));
  CHECK((of(4).operation.waiting == Ranks{4, 5} && of(4).missing.empty()));
}

TEST_CASE("inspect: two groups with the same name and ranks are told apart") {
  Job job;
  for (int r = 0; r < 8; ++r) job.at(r).last.groups.push_back({"tensor", job.at(r).last.groups[1].ranks, 117, {}, {}});
  job.wait(0, 1);
  job.wait(1, 3);
  const std::vector<Blockage> found = blockages(job.ranks);
  REQUIRE(found.size() == 2);
  for (const Blockage& each : found) {
    CHECK(each.operation.text == "all_reduce 118 of group tensor");
    CHECK(each.operation.waiting.size() == 1);
    CHECK(each.missing == Ranks{1 - each.operation.waiting.front()});
  }
}

TEST_CASE("inspect: the cause comes first, then the ranks that wait for it indirectly") {
  Job job;
  job.wait(2, 1);                     // for rank 3, which waits for nobody
  job.wait_for_message(0, 1, false);  // for rank 2
  job.wait(1, 1, "all_gather");       // for rank 0
  for (const int r : {4, 5, 6, 7}) job.wait(r, 0);
  const std::vector<Blockage> found = blockages(job.ranks);
  REQUIRE(found.size() == 4);
  // Ranks 0 to 3 are missing in the world's operation, rank 3 among them, so it is a direct consequence as well.
  CHECK((found[0].missing == Ranks{3} || found[1].missing == Ranks{3}));
  for (const int indirect : {0, 1}) CHECK((found[2].operation.waiting == Ranks{indirect} || found[3].operation.waiting == Ranks{indirect}));
  const std::string text = job.text();
  INFO(text);
  CHECK(has(text,
            "exchange in group pipeline (message 6 from rank 2): rank 0 waits\n"
            "  rank 2 (host n1, process 1002) never entered it and waits in all_reduce 118 of group tensor, for rank 3: step 12, "));
}

TEST_CASE("inspect: a cycle is shown with both of its operations") {
  Job job;
  job.wait(0, 1);
  for (int r = 1; r < 8; ++r) job.wait(r, 0);
  const std::string text = job.text();
  INFO(text);
  CHECK(has(text,
            "all_reduce 118 of group tensor: rank 0 waits\n"
            "  rank 1 (host n1, process 1001) never entered it and waits in all_reduce 41 of group world, for rank 0: "));
  CHECK(has(text,
            "all_reduce 41 of group world: ranks 1, 2, 3, 4, 5, 6, 7 wait\n"
            "  rank 0 (host n1, process 1000) never entered it and waits in all_reduce 118 of group tensor, for rank 1: "));
}

TEST_CASE("inspect: of a rank that died before others waited for it, the operations that it never entered") {
  Job job;
  job.at(3).life = RankState::Life::kDead;
  ++job.at(2).last.groups[1].started;  // has begun it, and computes while it runs
  Inspection inspection = inspected(job.ranks, 0);
  CHECK_FALSE(has(inspection_text(inspection), "died before"));  // the first of several dead ranks is not known
  inspection.verdict = RecordedVerdict{{3}, "rank 3 has died"};
  const std::string text = inspection_text(inspection);
  INFO(text);
  CHECK(has(text,
            "\nrank 3 (host n1, process 1003) died before others waited for it: step 12, forward of micro-batch 3, blocks.2\n"
            "  it never entered operation 118 of group tensor, with rank 2; begun by rank 2\n"
            "  it never entered operation 41 of group world, with ranks 0, 1, 2, 4, 5, 6, 7\n"));
  const nlohmann::ordered_json never = inspection_json(inspection)["ranks"][3]["never_entered"];
  REQUIRE(never.size() == 2);
  CHECK(never[0].dump() == R"({"group":"tensor","number":118,"others":[2],"begun":[2]})");
  CHECK(never[1]["others"] == Ranks{0, 1, 2, 4, 5, 6, 7});
  CHECK_FALSE(inspection_json(inspection)["ranks"][2].contains("never_entered"));

  job.wait(1, 0);  // now an operation says who is missing
  inspection = inspected(job.ranks, 0);
  inspection.verdict = RecordedVerdict{{3}, "rank 3 has died"};
  CHECK_FALSE(has(inspection_text(inspection), "died before"));
}

TEST_CASE("inspect: a rank that is dead or silent inside an operation that all have entered is named") {
  Job job;
  for (int r = 0; r < 8; ++r) job.wait(r, 0);
  CHECK(has(job.text(), "all_reduce 41 of group world: ranks 0, 1, 2, 3, 4, 5, 6, 7 wait; all its ranks have entered it\n"));
  CHECK_FALSE(has(job.text(), "has entered it and not left it"));
  job.at(5).life = RankState::Life::kDead;
  job.at(6).heard = -10;
  const std::string text = job.text();
  INFO(text);
  CHECK(has(text, "8 ranks, 6 alive, 1 dead, 1 silent\n"));
  CHECK(has(text, "  rank 5 (host n1, process 1005), dead, has entered it and not left it: step 12, forward of micro-batch 5, blocks.2, for 0 s\n"));
  CHECK(has(text, "  rank 6 (host n1, process 1006), silent, has entered it"));
}

TEST_CASE("inspect: many operations and many missing ranks are shortened in the text only") {
  std::vector<RankState> ranks(100);
  std::vector<int> all;
  for (int r = 0; r < 100; ++r) all.push_back(r);
  for (int r = 0; r < 100; ++r) {
    RankState& rank = ranks[static_cast<size_t>(r)];
    rank.life = RankState::Life::kAlive;
    rank.last.groups = {{"world", all, 7, {}, {}}, {"pair", {r / 2 * 2, r / 2 * 2 + 1}, 3, {}, {}}};
    if (r == 0) rank.last.wait = {"all_gather", 0, ++rank.last.groups[0].started, {}};
    if (r > 1 && r % 2 == 0) rank.last.wait = {"all_reduce", 1, ++rank.last.groups[1].started, {}};
  }
  const Inspection inspection = inspected(ranks, 0);
  const std::string text = inspection_text(inspection);
  CHECK(has(text, "  and 91 more ranks\n"));
  CHECK(has(text, "and 34 more operations (--json lists them)\n"));
  CHECK(inspection_json(inspection)["operations"].size() == 50);
}

TEST_CASE("inspect: eight missing ranks and sixteen operations are listed whole, and a rank is silent after more than two seconds") {
  const auto with_missing = [](int missing) {  // rank 0 waits for the others
    std::vector<int> all;
    for (int r = 0; r <= missing; ++r) all.push_back(r);
    std::vector<RankState> ranks(all.size());
    for (RankState& rank : ranks) {
      rank.life = RankState::Life::kAlive;
      rank.last.groups = {{"world", all, 7, {}, {}}};
    }
    ranks[0].last.wait = {"all_gather", 0, ++ranks[0].last.groups[0].started, {}};
    return inspection_text(inspected(ranks, 0));
  };
  const auto lines_with = [](const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
    return count;
  };
  CHECK(lines_with(with_missing(8), " never entered it") == 8);
  CHECK_FALSE(has(with_missing(8), " more "));
  CHECK(lines_with(with_missing(9), " never entered it") == 8);
  CHECK(has(with_missing(9), "  and 1 more rank\n"));

  const auto with_pairs = [](int pairs) {  // of which the first waits for the second
    std::vector<RankState> ranks(static_cast<size_t>(2 * pairs));
    for (int r = 0; r < 2 * pairs; ++r) {
      RankState& rank = ranks[static_cast<size_t>(r)];
      rank.life = RankState::Life::kAlive;
      rank.last.groups = {{"pair", {r / 2 * 2, r / 2 * 2 + 1}, 3, {}, {}}};
      if (r % 2 == 0) rank.last.wait = {"all_reduce", 0, ++rank.last.groups[0].started, {}};
    }
    return inspection_text(inspected(ranks, 0));
  };
  CHECK(lines_with(with_pairs(16), " waits\n") == 16);
  CHECK_FALSE(has(with_pairs(16), " more "));
  CHECK(lines_with(with_pairs(17), " waits\n") == 16);
  CHECK(has(with_pairs(17), "and 1 more operation (--json lists them)\n"));

  const auto with_deaths = [](int deaths) {  // that no rank waits for
    std::vector<RankState> ranks(static_cast<size_t>(deaths + 1));
    for (RankState& rank : ranks) rank.life = RankState::Life::kDead;
    ranks.back().life = RankState::Life::kAlive;
    Inspection inspection = inspected(ranks, 0);
    inspection.verdict = RecordedVerdict{{}, "all of a host have died"};
    for (int r = 0; r < deaths; ++r) inspection.verdict->ranks.push_back(r);
    return inspection_text(inspection);
  };
  CHECK(lines_with(with_deaths(8), " died before others waited for it: ") == 8);
  CHECK_FALSE(has(with_deaths(8), " more "));
  CHECK(lines_with(with_deaths(9), " died before others waited for it: ") == 8);
  CHECK(has(with_deaths(9), "and 1 more rank (--json lists them)\n"));

  Job job;
  for (int r = 0; r < 8; ++r) job.at(r).heard = 100;
  job.at(3).heard = 98;
  job.at(5).heard = job.at(6).heard = 97.875;
  job.at(6).life = RankState::Life::kDead;
  const Inspection inspection = inspected(job.ranks, 100);
  for (size_t r = 0; r < 8; ++r) CHECK(inspection.ranks[r].process == (r == 5 ? "silent" : r == 6 ? "dead" : "alive"));
}

TEST_CASE("inspect: a live run, with a stopped rank, then dead") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "logs");
  std::vector<pid_t> ranks;
  for (int r = 0; r < 3; ++r)
    ranks.push_back(start_rank(run, {r, 3, "s", "cpu, 1 thread", concat("shard ", r)}, [&](Progress& progress, BlackBox&) {
      const size_t world = progress.add_group("world", {0, 1, 2});
      progress.begin_step(5, 100, 200);
      progress.act(concat("backward of micro-batch ", r, ", head"), r);
      if (r != 1) progress.begin_wait({"reduce_scatter", world, progress.enter(world, "reduce_scatter", 8), {}});
    }));
  ::kill(ranks[1], SIGSTOP);
  ::waitpid(ranks[1], nullptr, WUNTRACED);
  std::this_thread::sleep_for(std::chrono::milliseconds(120));
  const std::string host = host_name();
  std::string text = inspection_text(inspect_run(run, false));
  {
    INFO(text);
    CHECK(text.find(concat(run.string(), ": 3 ranks, 2 alive, 1 stopped\n")) == 0);
    CHECK(has(text, concat("reduce_scatter 1 of group world: ranks 0, 2 wait\n  rank 1 (host ", host, ", process ", ranks[1],
                           "), stopped, never entered it: step 5, backward of micro-batch 1, head, for 0.")));
  }
  nlohmann::ordered_json json = inspection_json(inspect_run(run, false));
  INFO(json.dump(1));
  CHECK(json["operations"][0]["missing"] == Ranks{1});
  CHECK(json["operations"][0]["waiting"] == Ranks{0, 2});
  CHECK(json["operations"][0]["stuck"].empty());
  CHECK(json["ranks"][1]["process"] == "stopped");
  CHECK(json["ranks"][1]["micro_batch"] == 1);
  CHECK(json["ranks"][1]["operation"].is_null());
  CHECK(json["ranks"][2]["operation"] == "reduce_scatter 1 of group world");
  CHECK(json["ranks"][2]["memory_peak_bytes"] == 100);
  CHECK(json["ranks"][2]["coordinate"] == "shard 2");
  CHECK(json["ranks"][0]["still_seconds"] > 0.1);
  CHECK(json["age_seconds"] == 0);

  for (const pid_t rank : ranks) kill_rank(rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  text = inspection_text(inspect_run(run, false));
  INFO(text);
  CHECK(has(text, ": 3 ranks, 3 dead; as of 0."));
  CHECK(has(text, "), dead, never entered it: step 5"));
  json = inspection_json(inspect_run(run, false));
  CHECK(json["ranks"][0]["still_seconds"] < 0.1);  // up to the last sign of any rank
}

TEST_CASE("inspect: the age of a dead run is that of its latest sign, whichever rank gave it") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "logs");
  for (const int r : {2, 0, 1}) {
    kill_rank(start_rank(run, {r, 3, "s", "", ""}, [](Progress& progress, BlackBox&) { progress.act("forward"); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
  }
  const auto before_last = std::chrono::steady_clock::now();
  kill_rank(start_rank(run, {0, 3, "s", "", ""}, [](Progress& progress, BlackBox&) { progress.act("forward"); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  const Inspection inspection = inspect_run(run, false);
  CHECK(inspection.age > 0.05);
  CHECK(inspection.age <= std::chrono::duration<double>(std::chrono::steady_clock::now() - before_last).count());
  CHECK(inspection.ranks[0].still == 0);
  CHECK(inspection.ranks[1].still > 0.05);
  CHECK(inspection.ranks[2].still > 0.17);
}

TEST_CASE("inspect: ranks that have said how they end") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "logs");
  for (int r = 0; r < 3; ++r)
    kill_rank(start_rank(run, {r, 3, "s", "", ""}, [&](Progress& progress, BlackBox& box) {
      progress.act("forward");
      if (r != 1) write_end(box, "ordered to exit by the job monitor: rank 1 has died");
    }));
  const std::string text = inspection_text(inspect_run(run, false));
  INFO(text);
  CHECK(has(text, ": 3 ranks, 1 dead, 2 ended; as of "));
  CHECK(has(text, "\nranks 0, 2 ended: ordered to exit by the job monitor: rank 1 has died\n"));
}

TEST_CASE("inspect: files of other starts and damaged files do not count") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "logs");
  const auto leave = [&](int rank, int world, const std::string& session) {
    kill_rank(start_rank(run, {rank, world, session, "", ""}, [&](Progress& progress, BlackBox&) { progress.act("of " + session); }));
  };
  CHECK_THROWS_AS(inspect_run(run, false), MissingFileError);
  CHECK_THROWS_AS(inspect_run(scratch / "nowhere", false), MissingFileError);
  for (int r = 0; r < 6; ++r) leave(r, 6, "first");
  for (const int r : {0, 1, 3}) leave(r, 5, "second");
  scratch.write("run/logs/rank-0004.blackbox", "damaged");
  const Inspection inspection = inspect_run(run, false);
  REQUIRE(inspection.ranks.size() == 5);  // rank 5 was one of the first start only
  CHECK(inspection.ranks[1].state.last.action == "of second");
  CHECK(inspection.ranks[2].process == "no black box");
  CHECK(has(inspection.ranks[2].problem, "is of another start"));
  CHECK(has(inspection.ranks[4].problem, "rank-0004.blackbox: not a black box"));
  const std::string text = inspection_text(inspection);
  INFO(text);
  CHECK(has(text, ": 5 ranks, 3 dead, 2 without a black box; as of "));
  CHECK(has(text, "rank 4: "));
  const Inspection before = inspect_run(run, true);
  CHECK(before.ranks.size() == 6);
  CHECK(before.ranks[1].state.last.action == "of first");
  CHECK(has(before.ranks[2].problem, "no file "));  // rank 2 has not started again, so its newest file is the one of the first start
}

TEST_CASE("inspect: when no black box can be read, the error says why") {
  const Scratch scratch;
  const auto prepare = [&](const std::string& name) {
    const fs::path run = scratch / name;
    fs::create_directories(run / "logs");
    return run;
  };
  const std::string box = "logs/rank-0000.blackbox";
  scratch.write("damaged/logs/rank-0000.blackbox", "damaged");
  test::check_throws<DataError>([&] { inspect_run(scratch / "damaged", false); }, {"rank-0000.blackbox: not a black box: 7 bytes"});
  REQUIRE(::mkfifo((prepare("pipe") / box).c_str(), 0600) == 0);
  CHECK_THROWS_AS(inspect_run(scratch / "pipe", false), DataError);
  fs::create_directories(prepare("directory") / box);
  CHECK_THROWS_AS(inspect_run(scratch / "directory", false), DataError);
  fs::create_symlink("/dev/zero", prepare("device") / box);
  CHECK_THROWS_AS(inspect_run(scratch / "device", false), DataError);
  fs::create_symlink("nowhere", prepare("dangling") / box);
  CHECK_THROWS_AS(inspect_run(scratch / "dangling", false), MissingFileError);
  fs::create_symlink(fs::path(scratch / "damaged") / box, prepare("link") / box);
  CHECK_THROWS_AS(inspect_run(scratch / "link", false), DataError);
  scratch.write("file/logs", "");
  CHECK_THROWS_AS(inspect_run(scratch / "file", false), MissingFileError);
  fs::create_directories(scratch / "loop");
  fs::create_symlink("logs", fs::path(scratch / "loop") / "logs");
  CHECK_THROWS_AS(inspect_run(scratch / "loop", false), IoError);
}

TEST_CASE("inspect: text of a black box neither imitates other lines nor controls a terminal") {
  const Scratch scratch;
  const fs::path run = fs::path(scratch / "r\x1b[2Jun\nrank 6");
  fs::create_directories(run / "logs");
  const std::string hostile = "x\nrank 7 is the cause\x1b[2J\t\xc2\x9b\r\xff";
  for (int r = 0; r < 2; ++r)
    kill_rank(start_rank(run, {r, 2, "s", hostile, hostile}, [&](Progress& progress, BlackBox& box) {
      const size_t world = progress.add_group("g" + hostile, {0, 1});
      progress.act("a" + hostile);
      if (r == 0) progress.begin_wait({"w" + hostile.substr(0, 12), world, progress.enter(world, hostile.c_str()), {}});
      if (r == 1) write_end(box, "e" + hostile);
    }));
  REQUIRE(::mkfifo((run / "logs/verdict.json").c_str(), 0600) == 0);  // is never waited for
  std::vector<std::string> texts{inspection_text(inspect_run(run, false)), history_text(read_black_box(black_box_path(run, 0)))};
  fs::remove(run / "logs/verdict.json");
  write_verdict(run, {.ranks = {1}, .text = "v" + hostile}, "");
  texts.push_back(inspection_text(inspect_run(run, false)));
  CHECK(has(texts.back(), "the job monitor found: vx\\nrank 7"));
  for (const std::string& text : texts) {
    INFO(text);
    CHECK_FALSE(has(text, "\nrank 7"));
    CHECK_FALSE(has(text, "\nrank 6"));
    CHECK_FALSE(has(text, "\xc2\x9b"));
    CHECK(std::ranges::none_of(text, [](char c) { return (c < 0x20 && c >= 0 && c != '\n') || c == 0x7f || c == '\xff'; }));
  }
}

TEST_CASE("inspect: the groups of all black boxes together are bounded") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "logs");
  for (int r = 0; r < 2; ++r)
    kill_rank(start_rank(run, {r, 2, "s", "", ""}, [](Progress& progress, BlackBox&) { progress.add_group("world", {0, 1}); }));
  CHECK(inspect_run(run, false, 4).ranks.size() == 2);
  CHECK_THROWS_AS(inspect_run(run, false, 3), DataError);
}

TEST_CASE("inspect: a black box that contradicts its name or the others is left out") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "logs");
  const auto leave = [&](int rank, int world) {
    kill_rank(start_rank(run, {rank, world, "s", "", ""}, [&](Progress& progress, BlackBox&) {
      std::vector<int> all;
      for (int r = 0; r < world; ++r) all.push_back(r);
      const size_t group = progress.add_group("world", all);
      progress.begin_wait({"barrier", group, progress.enter(group), {}});
    }));
  };
  leave(1, 1000);  // ranks that the others do not have
  leave(2, 3);
  fs::copy_file(black_box_path(run, 2), black_box_path(run, 0));
  leave(2, 3);
  const Inspection inspection = inspect_run(run, false);
  REQUIRE(inspection.ranks.size() == 3);
  CHECK(has(inspection.ranks[0].problem, "rank-0000.blackbox: that of rank 2 of 3"));
  CHECK(has(inspection.ranks[1].problem, "rank-0001.blackbox: that of rank 1 of 1000"));
  CHECK(has(inspection_text(inspection), "barrier 1 of group world: rank 2 waits\n  rank 0 is missing, and where it is cannot be known: "));
}

TEST_CASE("inspect: the verdict about the newest start, and about no other") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  write_verdict(run, {.ranks = {1}, .text = "nothing is known of this run"}, "");
  CHECK_FALSE(fs::exists(run));
  fs::create_directories(run / "logs");
  const auto leave = [&](const std::string& session) { kill_rank(start_rank(run, {0, 2, session, "", ""}, [](Progress&, BlackBox&) {})); };
  leave("first");
  CHECK_FALSE(inspect_run(run, false).verdict);
  write_verdict(run, {.ranks = {0, 1}, .text = "rank 0, rank 1 have\x1b died"}, "");
  const Inspection inspection = inspect_run(run, false);
  REQUIRE(inspection.verdict);
  CHECK(inspection.verdict->ranks == Ranks{0, 1});
  CHECK(has(inspection_text(inspection), "\nthe job monitor found: rank 0, rank 1 have\\x1b died\n"));
  CHECK(inspection_json(inspection)["verdict"]["ranks"] == Ranks{0, 1});
  leave("second");
  CHECK_FALSE(inspect_run(run, false).verdict);
  CHECK(inspect_run(run, true).verdict->ranks == Ranks{0, 1});
  const std::string before = newest_session(run);
  CHECK(before == "second");
  write_verdict(run, {.ranks = {1}, .text = "of a third, which died before it had black boxes"}, before);
  CHECK_FALSE(inspect_run(run, false).verdict);
  CHECK(inspect_run(run, true).verdict->ranks == Ranks{0, 1});
  write_verdict(run, {.ranks = {0}, .text = "of the second"}, "first");
  CHECK(inspect_run(run, false).verdict->ranks == Ranks{0});
  CHECK_FALSE(inspect_run(run, true).verdict);
  for (const char* damaged : {"", "[]", "{", R"({"session": "second"})", R"({"session": "second", "text": "x", "ranks": [-1]})",
                              R"({"session": "second", "text": 1, "ranks": []})"}) {
    scratch.write("run/logs/verdict.json", damaged);
    CHECK_FALSE(inspect_run(run, false).verdict);
  }
}

TEST_CASE("inspect: the history of a rank") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "logs");
  kill_rank(start_rank(run, {2, 4, "s", "", ""}, [](Progress& progress, BlackBox&) {
    const size_t world = progress.add_group("world", {0, 1, 2, 3});
    progress.begin_step(7);
    progress.act("forward of micro-batch 0, \x1b[2Jhead", 0);
    const Progress::Wait wait{"all_gather", world, progress.enter(world, "all_gather", 4096), {}};
    progress.finish(wait);
    progress.finish({"exchange", world, 0, {progress.enter_message(world, 3, true, 64)}});
  }));
  const std::string text = history_text(read_black_box(black_box_path(run, 2)));
  INFO(text);
  CHECK(has(text, "Z  step 7\n"));
  CHECK(has(text, "Z  forward of micro-batch 0, \\x1b[2Jhead\n"));
  CHECK(has(text, "Z  begins all_gather 1 of group world, 4 KiB\n"));
  CHECK(has(text, "Z  ends all_gather 1 of group world\n"));
  CHECK(has(text, "Z  begins send 1 of group world to rank 3, 64 B\n"));
  CHECK(has(text, "Z  ends send 1 of group world to rank 3\n"));
}
