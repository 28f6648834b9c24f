// jobs.jsonl: what is appended is read again, whatever else is in the file.
#include <cmath>
#include <fstream>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/files/clock_text.h"
#include "trainer/job/launch_environment.h"
#include "trainer/resilience/job_record.h"

namespace trireme {
namespace {

using test::Scratch;

double clock_now() { return seconds_since_1970(WallClock::now()); }

TEST_CASE("job record: what is appended is read again") {
  const Scratch scratch;
  scratch.write("x", "");
  const std::string run = scratch / "";
  CHECK(read_job_records(run).empty());
  append_job_record(run, "start",
                    {{"step", 40},
                     {"launcher", "2026-11-27T10:00:00.000Z"},
                     {"launched", "2026-11-27T10:01:00.500Z"},
                     {"joined", "2026-11-27T10:01:02.000Z"},
                     {"slurm_job", "17"},
                     {"slurm_restarts", 2},
                     {"discarded", {{"steps", 7}, {"until", "2026-11-27T09:59:00.000Z"}}}});
  append_job_record(run, "ready", {{"load_seconds", 0.5}});
  append_job_record(run, "save", {{"step", 50}, {"seconds", 0.25}});
  append_job_record(run, "interval", {{"steps", 12}, {"save_seconds", 0.25}, {"mean_time_between_failures", 90.0}});
  append_job_record(run, "save_wait", {{"seconds", 0.125}});
  append_job_record(run, "end", {{"status", "stopped"}});
  append_job_record(run, "exit", {{"launched", "2026-11-27T10:01:00.500Z"}, {"code", 75}});
  const std::vector<JobRecord> jobs = read_job_records(run);
  REQUIRE(jobs.size() == 1);
  const JobRecord& job = jobs.front();
  CHECK(job.step == 40);
  CHECK(job.launched - job.launcher == Approx(60.5));
  CHECK(job.joined - job.launched == Approx(1.5));
  CHECK(std::abs(job.started - clock_now()) < 60);
  CHECK(job.ready >= job.started);
  CHECK(job.load_seconds == 0.5);
  CHECK(job.save_count == 1);
  REQUIRE(job.saves.size() == 2);
  CHECK(job.saves[0].end - job.saves[0].begin == Approx(0.25));
  CHECK(job.interval->steps == 12);
  CHECK(job.interval->mtbf == 90);
  CHECK(job.ended_as_planned());
  CHECK(job.exited >= job.ended);
  CHECK(std::isnan(job.failed));
  CHECK(job.slurm_job == "17");
  CHECK(job.slurm_restarts == 2);
  CHECK(job.discarded_steps == 7);
  CHECK(job.launcher - job.discarded_until == Approx(60));
}

TEST_CASE("job record: cut, damaged and foreign lines are skipped, and a record never joins a cut one") {
  const Scratch scratch;
  scratch.write("jobs.jsonl",
                "{\"event\":\"save\",\"seconds\":1,\"time\":\"2026-11-27T10:00:00.000Z\"}\n"  // of no job
                "[1]\nnot json\n{\"event\":\"start\",\"step\":1e99,\"time\":\"2026-11-27T10:00:00.000Z\"}\n"
                "{\"event\":\"start\",\"step\":3}\n"                                               // without a time
                "{\"event\":\"save\",\"seconds\":-1e308,\"time\":\"2026-11-27T10:00:01.000Z\"}\n"  // never negative
                "{\"event\":5,\"time\":\"2026-11-27T10:00:01.000Z\"}\n{\"event\":\"ready\",\"ti");
  append_job_record(scratch / "", "ready", {{"load_seconds", 2}});
  const std::vector<JobRecord> jobs = read_job_records(scratch / "");
  REQUIRE(jobs.size() == 1);
  CHECK(jobs.front().step == int64_t{1'000'000'000'000'000});
  CHECK(jobs.front().load_seconds == 2);
  REQUIRE(jobs.front().saves.size() == 1);
  CHECK(jobs.front().saves.front().begin == jobs.front().saves.front().end);
}

TEST_CASE("job record: a job that only its launcher has seen is a job of its own") {
  const Scratch scratch;
  const std::string start = "{\"event\":\"start\",\"launched\":\"2026-11-27T10:00:00.000Z\",\"time\":\"2026-11-27T10:00:02.000Z\"}\n";
  const std::string exit =
      "{\"event\":\"exit\",\"launched\":\"2026-11-27T10:0M:00.000Z\",\"failed\":\"2026-11-27T10:0M:01.000Z\",\"time\":"
      "\"2026-11-27T10:0M:03.000Z\"}\n";
  const auto of_minute = [&](char minute) {
    std::string text = exit;
    for (char& each : text)
      if (each == 'M') each = minute;
    return text;
  };
  scratch.write("jobs.jsonl", start + of_minute('0') + of_minute('1'));
  const std::vector<JobRecord> jobs = read_job_records(scratch / "");
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].exited - jobs[0].started == Approx(1));
  CHECK(std::isnan(jobs[1].started));
  CHECK(jobs[1].exited - jobs[1].launched == Approx(3));
  CHECK(jobs[1].failed - jobs[1].launched == Approx(1));
}

TEST_CASE("job record: two jobs, each with its own hosts, saves, waits and intervals") {
  const Scratch scratch;
  const auto line = [](const std::string& time, nlohmann::ordered_json fields) {
    fields["time"] = "2026-11-27T10:" + time + "Z";
    return fields.dump() + "\n";
  };
  const std::string first = "2026-11-27T10:00:00.000Z", second = "2026-11-27T10:10:00.000Z";
  scratch.write(
      "jobs.jsonl",
      line("00:02.000", {{"event", "start"},
                         {"launched", first},
                         {"world_size", 8},
                         {"hosts", {"n1", "n2"}},
                         {"keys", {{"parallel.data", 4}, {"run.seed", "x"}}}}) +
          line("00:02.500", {{"event", "slurm"}, {"partition", "gpu"}, {"nodes", "n[1-2]"}, {"cpus", 64}, {"gpus", 8}, {"started", first}}) +
          line("00:03.000", {{"event", "ready"}, {"load_seconds", 0.5}}) + line("01:00.000", {{"event", "save"}, {"seconds", 1.5}}) +
          line("01:10.000", {{"event", "interval"}, {"steps", 10}, {"save_seconds", 1.5}, {"step_seconds", 2}}) +
          line("02:00.000", {{"event", "save"}, {"seconds", 2.5}}) + line("02:10.000", {{"event", "interval"}, {"steps", 20}, {"step_seconds", 3}}) +
          line("03:05.000", {{"event", "exit"}, {"launched", first}, {"failed", "2026-11-27T10:03:03.000Z"}}) +
          line("04:00.000", {{"event", "wait"}, {"seconds", 30}}) + line("09:59.000", {{"event", "wait"}, {"seconds", 300}}) +
          line("10:01.000", {{"event", "start"},
                             {"launched", second},
                             {"step", 20},
                             {"world_size", 4},
                             {"hosts", {"n2"}},
                             {"slurm_restarts", 1},
                             {"discarded", {{"steps", 7}, {"until", "2026-11-27T10:03:02.000Z"}}}}) +
          line("10:03.000", {{"event", "ready"}, {"load_seconds", 1.5}}) + line("10:10.000", {{"event", "peer_copy"}, {"seconds", 0.25}}) +
          line("10:20.000", {{"event", "save"}, {"seconds", 4}}) + line("10:25.000", {{"event", "save_wait"}, {"seconds", 2}}) +
          line("11:00.000", {{"event", "end"}, {"status", "done"}}) + line("11:01.000", {{"event", "exit"}, {"launched", second}, {"code", 0}}));
  const std::vector<JobRecord> jobs = read_job_records(scratch / "");
  REQUIRE(jobs.size() == 2);
  const auto lengths = [](const std::vector<TimeSpan>& spans) {
    std::vector<double> all;
    for (const TimeSpan& span : spans) all.push_back(std::round(1000 * (span.end - span.begin)) / 1000);
    return all;
  };
  using Facts = std::map<std::string, std::string>;
  CHECK(jobs[0].facts == Facts{{"hosts", "n1, n2"}, {"parallel.data", "4"}, {"run.seed", "x"}, {"world_size", "8"}});
  CHECK(jobs[1].facts == Facts{{"hosts", "n2"}, {"world_size", "4"}});
  CHECK((jobs[0].has_keys && !jobs[1].has_keys));
  CHECK((jobs[0].save_count == 2 && jobs[1].save_count == 1));
  CHECK(lengths(jobs[0].saves) == std::vector<double>{1.5, 2.5});
  CHECK(lengths(jobs[1].saves) == std::vector<double>{0.25, 4, 2});
  CHECK(lengths(jobs[0].waits) == std::vector<double>{30, 300});
  CHECK(jobs[1].waits.empty());
  CHECK((jobs[0].interval->steps == 20 && jobs[0].interval->step_seconds == 3 && jobs[0].interval->save_seconds == 0 && !jobs[1].interval));
  CHECK((jobs[0].slurm.cpus == 64 && jobs[0].slurm.gpus == 8 && jobs[0].slurm.partition == "gpu" && jobs[1].slurm.partition.empty()));
  CHECK((jobs[0].load_seconds == 0.5 && jobs[1].load_seconds == 1.5));
  CHECK((jobs[0].discarded_steps == 0 && jobs[1].discarded_steps == 7 && jobs[1].step == 20 && jobs[1].slurm_restarts == 1));
  CHECK(jobs[1].ready - jobs[0].ready == Approx(600));
  CHECK(jobs[1].exited - jobs[0].exited == Approx(476));
  CHECK((jobs[0].status.empty() && jobs[1].status == "done"));
  // The first job trained from 00:03 to its failure at 03:03, the second from 10:03 to 11:00.
  CHECK(failures_of(jobs).failures == 1);
  CHECK(failures_of(jobs).seconds == Approx(180 + 57));
  CHECK(failures_of(std::span(jobs).first(1)).failures == 1);  // it has exited
}

TEST_CASE("job record: failures and the time in which they occurred") {
  const JobRecord killed{.ready = 10, .failed = 20, .exited = 25}, stopped{.ready = 30, .ended = 40, .exited = 45, .status = "stopped"};
  const JobRecord refused{.ready = 50, .ended = 55, .status = "failed"}, early{.launched = 60, .exited = 70};
  JobRecord unseen{.ready = 80};  // killed with its launcher
  unseen.saves = {{84, 85}};
  const JobRecord running{.started = 99, .ready = 100, .discarded_until = 90};
  const std::vector<JobRecord> all{killed, stopped, refused, early, unseen, running};
  CHECK(failures_of(all).failures == 3);
  CHECK(failures_of(all).seconds == Approx(10 + 10 + 5 + 10));
  CHECK(failures_of(std::span(all).first(5)).failures == 2);  // the last one may be running
  CHECK(failures_of(std::span(all).first(5)).seconds == Approx(10 + 10 + 5 + 5));
  CHECK(failures_of({}).failures == 0);
  // Two jobs that were killed with their launchers: what the next job has discarded tells how long each has trained.
  const std::vector<JobRecord> unrecorded{
      {.ready = 10}, {.ready = 100, .discarded_until = 30}, {.ready = 1000, .ended = 1010, .status = "done", .discarded_until = 900}};
  CHECK(failures_of(unrecorded).failures == 2);
  CHECK(failures_of(unrecorded).seconds == Approx(20 + 800 + 10));
}

TEST_CASE("job record: a new history sets the old file aside") {
  const Scratch scratch;
  scratch.write("jobs-1.jsonl", "older");
  set_job_records_aside(scratch / "");
  CHECK(scratch.names() == std::vector<std::string>{"jobs-1.jsonl"});
  append_job_record(scratch / "", "start", {{"step", 0}});
  set_job_records_aside(scratch / "");
  CHECK(scratch.names() == std::vector<std::string>{"jobs-1.jsonl", "jobs-2.jsonl"});
  REQUIRE_THROWS_AS(append_job_record(scratch / "missing", "start", {}), IoError);
}

TEST_CASE("job record: the times of a launcher reach its ranks") {
  using std::chrono::milliseconds;
  const LaunchTimes times{WallClock::time_point(milliseconds(1'700'000'000'123)), WallClock::time_point(milliseconds(1'700'000'100'456))};
  CHECK(text_of(times) == "1700000000123 1700000100456");
}

}  // namespace
}  // namespace trireme
