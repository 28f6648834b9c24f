// Goodput, from the lines of jobs.jsonl and metrics.jsonl: answers worked out by hand.
#include <cmath>
#include <map>
#include <random>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/files/clock_text.h"
#include "trainer/report/goodput_report.h"
#include "trainer/run/metrics_sink.h"

namespace trireme::report {
namespace {

using test::Scratch;

/// Seconds after the first start, as the time of a line.
std::string at(double seconds) {
  const WallClock::time_point first = *time_of_utc("2026-11-23T09:00:00.000Z");
  return utc_text(first + std::chrono::milliseconds(std::llround(1000 * seconds)));
}
std::string time_at(double seconds) { return concat(R"(,"time":")", at(seconds), "\"}\n"); }
std::string start(int64_t step, double seconds, const std::string& more = "") {
  return concat(R"({"event":"start","step":)", step, R"(,"steps":8)", more, time_at(seconds));
}
std::string step(int64_t number, double end, double duration) {
  return concat(R"({"step":)", number, R"(,"loss":2.5,"step_seconds":)", duration, time_at(end));
}
std::string saved(int64_t number, double seconds, double stall) {
  return concat(R"({"event":"checkpoint","checkpoint":"step-0000000)", number, R"(","bytes":1,"stall_seconds":)", stall, R"(,"write_seconds":9)",
                time_at(seconds));
}
std::string evaluated(int64_t number, double seconds) { return concat(R"({"step":)", number, R"(,"validation_loss":3)", time_at(seconds)); }

RunRecord run_of_lines(const std::string& lines, const std::string& jobs = "", const std::string& config = "") {
  const Scratch scratch;
  scratch.write("metrics.jsonl", lines);
  if (!jobs.empty()) scratch.write("jobs.jsonl", jobs);
  if (!config.empty()) scratch.write("config.yaml", config);
  return read_run(scratch / "");
}
std::optional<Goodput> goodput_of_lines(const std::string& lines, const std::string& jobs = "") { return goodput_of(run_of_lines(lines, jobs)); }

/// A record of jobs.jsonl.
std::string job_line(const std::string& event, double seconds, const std::string& more = "") {
  return concat(R"({"event":")", event, '"', more, time_at(seconds));
}
/// A start record: its launcher, this job's launch, the meeting of its ranks, and the record itself.
std::string job_start(int64_t step, double launcher, double launched, double joined, double started, const std::string& more = "") {
  return job_line(
      "start", started,
      concat(R"(,"step":)", step, R"(,"launcher":")", at(launcher), R"(","launched":")", at(launched), R"(","joined":")", at(joined), '"', more));
}
std::string job_exit(double launcher, double launched, double seconds, double failed = -1) {
  return job_line("exit", seconds,
                  concat(R"(,"launcher":")", at(launcher), R"(","launched":")", at(launched), R"(","code":70)",
                         failed < 0 ? "" : concat(R"(,"failed":")", at(failed), '"')));
}
std::string job_ready(double seconds, double load) { return job_line("ready", seconds, concat(R"(,"load_seconds":)", load)); }
std::string job_save(double end, double seconds) { return job_line("save", end, concat(R"(,"seconds":)", seconds)); }
std::string discarding(int64_t steps, double until) { return concat(R"(,"discarded":{"steps":)", steps, R"(,"until":")", at(until), "\"}"); }

std::map<std::string, double> lost_in(const Goodput& goodput) {
  std::map<std::string, double> lost;
  for (size_t i = 0; i < kTimeCauses.size(); ++i) lost[kTimeCauses[i]] = goodput.seconds[i];
  return lost;
}

/// The sum over all causes, none of which may be negative.
double sum_of(const Goodput& goodput) {
  double sum = 0;
  for (size_t i = 0; i < kTimeCauses.size(); ++i) {
    INFO(kTimeCauses[i]);
    CHECK(goodput.seconds[i] >= 0);
    sum += goodput.seconds[i];
  }
  return sum;
}

TEST_CASE("goodput: a job with a save and an evaluation", "[report]") {
  // Set-up 3 s; steps of 2, 2, 2 and 4 s; after the second, 1 s of stall and 5 s of evaluation; after the third 0.5 s of something else; 1.5 s at the end.
  const std::optional<Goodput> found = goodput_of_lines(start(0, 0) + step(1, 5, 2) + step(2, 7, 2) + evaluated(2, 13) + step(3, 15, 2) +
                                                        saved(2, 16, 1) + step(4, 19.5, 4) + concat(R"({"event":"memory","step":4)", time_at(21)));
  REQUIRE(found);
  CHECK(found->steps == 4);
  CHECK(found->median_step_seconds == Approx(2));
  CHECK(found->wall_seconds == Approx(21));
  CHECK(found->share() == Approx(8.0 / 21));
  const auto lost = lost_in(*found);
  CHECK(lost.at("start-up") == Approx(3));
  CHECK(lost.at("saves") == Approx(1));
  CHECK(lost.at("evaluation") == Approx(5));
  CHECK(lost.at("replayed steps") == 0);
  CHECK(lost.at("not running") == 0);
  CHECK(lost.at("slow steps") == Approx(2));
  CHECK(lost.at("other") == Approx(2));
  CHECK(sum_of(*found) == Approx(21));
  CHECK(goodput_text(*found) == "38.1 % of 21 s; lost: evaluation 23.8 %, start-up 14.3 %, slow steps 9.5 %, other 9.5 %, saves 4.8 %");
}

TEST_CASE("goodput: an evaluation is written up to a moment after the next step has begun, and counts as one", "[report]") {
  // After the first step 6 s of evaluation, after the third 4 s. Their lines are written a millisecond behind the begin of the next step.
  const std::optional<Goodput> found =
      goodput_of_lines(start(0, 0) + step(1, 3, 2) + evaluated(1, 9.001) + step(2, 11, 2) + step(3, 13, 2) + evaluated(3, 17.001) + step(4, 19, 2));
  REQUIRE(found);
  const auto lost = lost_in(*found);
  CHECK(lost.at("evaluation") == Approx(10).margin(0.003));
  CHECK(lost.at("other") == Approx(0).margin(0.003));
  CHECK(lost.at("start-up") == Approx(1));
  CHECK(sum_of(*found) == Approx(19));
}

TEST_CASE("goodput: steps that are made again, and the time between a death and the next start", "[report]") {
  const std::string first = start(0, 0) + step(1, 3, 1) + step(2, 4, 1);
  // The first job had made steps 3 and 4 by 6.5 s. The second sets up for 2 s. The third follows a planned stop: nothing is made again.
  const std::string second = first + start(2, 30, concat(R"(,"discarded":{"steps":2,"until":")", at(6.5), "\"}")) + step(3, 33, 1) + step(4, 34, 1);
  const std::optional<Goodput> found = goodput_of_lines(second + start(4, 44) + step(5, 46, 1) + step(6, 47, 1));
  REQUIRE(found);
  CHECK(found->steps == 6);
  CHECK(found->replayed_steps == 2);
  CHECK(found->wall_seconds == Approx(47));
  CHECK(found->share() == Approx(6.0 / 47));
  const auto lost = lost_in(*found);
  CHECK(lost.at("start-up") == Approx(2 + 2 + 1));
  CHECK(lost.at("replayed steps") == Approx(2.5));
  CHECK(lost.at("not running") == Approx(23.5 + 10));
  CHECK(lost.at("other") == Approx(0).margin(1e-9));
  CHECK(sum_of(*found) == Approx(47));
  // A version that did not record what it removed: all of it is down.
  const std::optional<Goodput> older = goodput_of_lines(first + start(2, 30) + step(3, 33, 1));
  REQUIRE(older);
  CHECK(older->replayed_steps == 0);
  CHECK(lost_in(*older).at("not running") == Approx(26));
  // A job that dies before its first step.
  const std::optional<Goodput> early =
      goodput_of_lines(start(0, 0) + concat(R"({"event":"note","step":0)", time_at(4)) + start(0, 10) + step(1, 12, 1));
  REQUIRE(early);
  CHECK(lost_in(*early).at("start-up") == Approx(4 + 1));
  CHECK(lost_in(*early).at("not running") == Approx(6));
}

TEST_CASE("goodput: every cause of a run with a launcher, a kill, a hang, a requeue and a start by hand", "[report]") {
  // Job 1: the launcher at 0, ranks at 2, start record at 3, first step from 4 on, 0.5 s of that for the load. Steps of 1 s. A save of 0.75 s after step 2.
  // Step 3 ends at 8.25 and is lost: a rank dies at 9, all have ended at 10.
  const std::string lines = start(0, 3) + step(1, 5, 1) + step(2, 6, 1) +
                            // Job 2: restarted at 11 s, ranks at 13, ready at 14 after a load of 0.25 s; hangs at 17.5, ended at 20.5.
                            start(2, 13.5) + step(3, 15, 1) + step(4, 16, 1) + saved(4, 16.75, 0.5) +
                            // Job 3: requeued by Slurm, begins at 30; ranks at 31, ready at 32; evaluation of step 5 until 35; stopped.
                            start(4, 31.5) + step(5, 33, 1) + evaluated(5, 35) +
                            // Job 4: by hand at 50; ranks at 51, ready at 52; waits 0.5 s for its last save.
                            start(5, 51.5) + step(6, 53, 1) + step(7, 54, 1);
  const std::string slurm = R"(,"slurm_job":"7","slurm_restarts":)";
  const std::string jobs = job_start(0, 0, 0, 2, 3) + job_ready(4, 0.5) + job_save(6.75, 0.75) + job_exit(0, 0, 10, 9) +
                           job_start(2, 0, 11, 13, 13.5, discarding(1, 8.25) + slurm + "0") + job_ready(14, 0.25) + job_save(16.5, 0.5) +
                           job_exit(0, 11, 20.5, 17.5) + job_start(4, 30, 30, 31, 31.5, slurm + "1") + job_ready(32, 0) +
                           job_line("end", 35.5, R"(,"status":"stopped")") + job_exit(30, 30, 36) + job_start(5, 50, 50, 51, 51.5) +
                           job_ready(52, 1) + job_line("save_wait", 54.5, R"(,"seconds":0.5)") + job_line("end", 55, R"(,"status":"done")") +
                           job_exit(50, 50, 55.25);
  const std::optional<Goodput> found = goodput_of_lines(lines, jobs);
  REQUIRE(found);
  const auto lost = lost_in(*found);
  CHECK(found->wall_seconds == Approx(55.25));
  CHECK(sum_of(*found) == Approx(55.25));
  CHECK(found->useful_seconds() == Approx(7));
  CHECK(lost.at("compute") == Approx(7));
  CHECK_FALSE(found->is_divided);
  CHECK(lost.at("start-up") == Approx(3.5 + 0.75 + 2 + 1));
  CHECK(lost.at("load") == Approx(0.5 + 0.25 + 1));
  CHECK(lost.at("saves") == Approx(0.75 + 0.5 + 0.5));
  CHECK(lost.at("evaluation") == Approx(2));
  CHECK(lost.at("replayed steps") == Approx(3 - 0.75 + 1.5 - 0.5));
  CHECK(lost.at("detection") == Approx(1 + 3));
  CHECK(lost.at("restart") == Approx(3));
  CHECK(lost.at("waiting for nodes") == Approx(9.5));
  CHECK(lost.at("not running") == Approx(14));
  CHECK(lost.at("other") == Approx(1 + 0.5 + 0.25));
  CHECK(lost.at("slow steps") == Approx(0).margin(1e-9));
  CHECK(found->jobs == 4);
  CHECK(found->failures.failures == 2);
  CHECK(found->failures.seconds == Approx(5 + 3.5 + 3.5 + 3));  // each job from ready to its failure or end
  CHECK(found->saves == 2);
  CHECK(found->replayed_steps == 1);
  CHECK(found->down_seconds == Approx(1 + 3 + 1 + 3 + 2));  // detections, restart, start-up with load of jobs 2 and 3
}

TEST_CASE("goodput: jobs that never started, that were rolled back, and spans of waiting", "[report]") {
  // The first job dies before its ranks meet (exit record alone). The second makes steps 1 to 4 and ends as planned. The third is resumed by hand from step
  // 2, so that steps 3 and 4 are lost; its launcher waited 2 s for hosts.
  const std::string lines = start(0, 7) + step(1, 9, 1) + step(2, 10, 1) + start(2, 22) + step(3, 24, 1);
  const std::string jobs = job_exit(0, 0, 3, 2.5) + job_start(0, 0, 4, 6, 7) + job_ready(8, 0) + job_line("end", 12.5, R"(,"status":"done")") +
                           job_exit(0, 4, 13) + job_start(2, 15, 15, 21, 22, discarding(2, 12)) + job_line("wait", 20, R"(,"seconds":2)") +
                           job_ready(23, 0);
  const std::optional<Goodput> found = goodput_of_lines(lines, jobs);
  REQUIRE(found);
  const auto lost = lost_in(*found);
  CHECK(sum_of(*found) == Approx(24));
  CHECK(lost.at("start-up") == Approx(2.5 + 2 + 8 - 2));
  CHECK(lost.at("detection") == Approx(0.5));
  CHECK(lost.at("restart") == Approx(3));
  CHECK(lost.at("replayed steps") == Approx(2.5));
  CHECK(lost.at("other") == Approx(0.5));
  CHECK(lost.at("not running") == Approx(2));
  CHECK(lost.at("waiting for nodes") == Approx(2));
  CHECK(found->failures.failures == 0);  // the first job never trained
}

TEST_CASE("goodput: steps that a later job than the next one discards are replayed ones", "[report]") {
  // The first job makes steps 1 to 4 and ends as planned at 12.5, the second makes step 5 and ends at 20, the third is resumed by hand from step 2.
  const std::string lines = start(0, 7) + step(1, 9, 1) + step(2, 10, 1) + start(2, 32) + step(3, 34, 1);
  const std::string done = R"(,"status":"done")";
  const std::string jobs = job_start(0, 4, 4, 6, 7) + job_ready(8, 0) + job_line("end", 12.5, done) + job_exit(4, 4, 12.5) +
                           job_start(4, 15, 15, 16, 17) + job_ready(18, 0) + job_line("end", 20, done) + job_exit(15, 15, 20) +
                           job_start(2, 25, 25, 30, 32, discarding(3, 20)) + job_ready(33, 0);
  const std::optional<Goodput> found = goodput_of_lines(lines, jobs);
  REQUIRE(found);
  const auto lost = lost_in(*found);
  CHECK(sum_of(*found) == Approx(34 - 4));
  CHECK(lost.at("replayed steps") == Approx(2.5 + 2));
  CHECK(lost.at("other") == Approx(0));
}

TEST_CASE("goodput: every one of several saves in a stretch of time counts as a save", "[report]") {
  // Between the first and the second step 10 s with saves of 2 and 3 s; the third step is made again, and during its first time were saves of 1 and 0.5 s.
  const std::string lines = start(0, 0) + step(1, 3, 2) + step(2, 15, 2) + step(3, 18, 3) + start(2, 20) + step(3, 24, 4);
  const std::string jobs = job_start(0, 0, 0, 0, 0) + job_save(6, 2) + job_save(11, 3) + job_save(16.5, 1) + job_save(17.5, 0.5) +
                           job_start(2, 0, 18, 20, 20, discarding(1, 18)) + job_line("end", 24, R"(,"status":"done")");
  const std::optional<Goodput> found = goodput_of_lines(lines, jobs);
  REQUIRE(found);
  CHECK(found->saves == 4);
  CHECK(lost_in(*found).at("saves") == Approx(6.5));
  CHECK(lost_in(*found).at("other") == Approx(5));
  CHECK(lost_in(*found).at("replayed steps") == Approx(1.5));
}

TEST_CASE("goodput: what the ranks waited and read divides the steps", "[report]") {
  const auto ranks = [](int64_t last, double end, int64_t steps, const std::string& figures) {
    return concat(R"({"event":"ranks","step":)", last, R"(,"steps":)", steps, ',', figures, time_at(end));
  };
  const std::string lines = start(0, 0) + step(1, 2, 1) + step(2, 3, 1) + step(3, 4, 1) +
                            ranks(3, 4, 3, R"("step_seconds":[1,1],"busy_seconds":[0.5,0.9],"data_seconds":[0.1,0.3])") + step(4, 5, 1);
  const std::optional<Goodput> found = goodput_of_lines(lines);
  REQUIRE(found);
  CHECK(found->is_divided);
  const auto lost = lost_in(*found);
  CHECK(lost.at("exposed communication") == Approx(4 * 0.3));
  CHECK(lost.at("data") == Approx(4 * 0.2));
  CHECK(lost.at("compute") == Approx(4 * 0.5));
  CHECK(sum_of(*found) == Approx(5));
  // On a GPU the traced steps divide all.
  const std::string traced =
      R"({"event":"exposed","step":2,"step_seconds":2,"compute":1,"tensor":0.25,"pipeline_bubble":0.25,"data_wait":0.2,"other":0.3)";
  const std::optional<Goodput> gpu = goodput_of_lines(start(0, 0) + step(1, 2, 1) + step(2, 3, 1) + traced + time_at(3));
  REQUIRE(gpu);
  CHECK(gpu->is_divided);
  CHECK(lost_in(*gpu).at("exposed communication") == Approx(2 * 0.25));
  CHECK(lost_in(*gpu).at("data") == Approx(2 * 0.1));
}

TEST_CASE("goodput: accounted time is the wall time, and nothing is negative, whatever the records say", "[report]") {
  std::mt19937_64 random(20261127);
  const auto seconds = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
  const auto one_of = [&](int number) { return static_cast<int>(random() % static_cast<uint64_t>(number)); };
  for (int trial = 0; trial < 300; ++trial) {
    std::string lines, jobs;
    double now = 0, launcher = 0;
    int64_t done = 0;
    for (int job = 0, count = 1 + one_of(4); job < count; ++job) {
      const double launched = now + seconds(2) - 0.3, joined = launched + seconds(1),
                   started = joined + seconds(1);  // clocks of two hosts may differ
      now = started;
      if (one_of(2) == 0) launcher = launched;
      const int64_t lost = done > 0 ? one_of(2) : 0;
      jobs += job_start(done, launcher, launched, joined, started, lost > 0 ? discarding(lost, now - seconds(3)) : "");
      lines += start(done, started);
      now += seconds(1);
      if (one_of(4) > 0) jobs += job_ready(now, seconds(2));
      for (int steps = one_of(5); steps-- > 0;) {
        const double duration = 0.01 + seconds(1);
        lines += step(++done, now += duration, duration * (0.9 + seconds(0.3)));
        if (one_of(3) == 0) lines += evaluated(done, now += seconds(1));
        const double saving = seconds(0.5);
        if (one_of(3) == 0) jobs += job_save(now += saving, saving + seconds(0.5));
      }
      if (one_of(2) == 0) jobs += job_line("end", now + seconds(1), one_of(2) == 0 ? R"(,"status":"done")" : R"(,"status":"failed")");
      const double died = now, exited = now += seconds(2);
      if (one_of(2) == 0) jobs += job_exit(launcher, launched, exited, died + seconds(2) - 1);
    }
    lines += step(++done, now += 2, 1);
    CAPTURE(trial, lines, jobs);
    const std::optional<Goodput> found = goodput_of_lines(lines, jobs);
    REQUIRE(found);
    CHECK(sum_of(*found) == Approx(found->wall_seconds).epsilon(1e-9));
    CHECK(found->wall_seconds >= now - 4);
  }
}

TEST_CASE("goodput: the share that is expected of failures and saves", "[report]") {
  // 100 steps of 1 s, a save of 2 s after each tenth; a failure 5 steps after the sixth save: 10 s of downtime.
  std::string lines = start(0, 5), jobs = job_start(0, 0, 0, 4, 5) + job_ready(10, 1);
  double now = 10;
  for (int64_t number = 1; number <= 100; ++number) {
    lines += step(number, now += 1, 1);
    if (number % 10 == 0) jobs += job_save(now += 2, 2);
    if (number != 60) continue;
    jobs += job_exit(0, 0, now + 8, now + 5);
    jobs += job_start(60, 0, now + 9, now + 12, now + 13, discarding(5, now + 5));
    jobs += job_ready(now += 15, 1);
    lines += start(60, now - 2);
  }
  jobs += job_line("end", now, R"(,"status":"done")");
  const RunRecord run = run_of_lines(lines, jobs);
  const std::optional<Goodput> found = goodput_of(run);
  REQUIRE(found);
  CHECK(lost_in(*found).at("saves") == Approx(20));
  CHECK(lost_in(*found).at("replayed steps") == Approx(5));
  const std::optional<GoodputForecast> forecast = forecast_of(run, *found);
  REQUIRE(forecast);
  CHECK(forecast->failures.mtbf == Approx(125));  // one failure in 72 + 5 + 48 s
  CHECK(forecast->failures.stall == Approx(2));
  CHECK(forecast->failures.downtime == Approx(10));
  CHECK(forecast->interval == Approx(10.5));
  CHECK(forecast->measured == Approx(100.0 / 135));
  CHECK(forecast->expected == Approx(effective_share_exponential({125, 2, 10}, 10.5)));
  CHECK(forecast->best_interval == Approx(daly_interval(2, 125)));
  CHECK(std::string(forecast->mtbf_from) == "measured");
  // Where training continues during a save, what is lost of it too, on average 3 s.
  for (const char* const seconds : {"1", "6", "2"}) lines += concat(R"({"event":"checkpoint","bytes":1,"write_seconds":)", seconds, time_at(now));
  for (const auto& [asynchronous, downtime] : {std::pair("true", 13.0), std::pair("false", 10.0)}) {
    const RunRecord saving = run_of_lines(lines, jobs, concat("checkpoint: {asynchronous: ", asynchronous, "}\n"));
    CHECK(forecast_of(saving, *goodput_of(saving))->failures.downtime == Approx(downtime));
  }
  const std::string text = goodput_report_text(run, *found);
  CHECK_THAT(text, Catch::Matchers::Contains("1 failure, 10 saves, 5 steps made again"));
  CHECK_THAT(text, Catch::Matchers::Contains("compute includes communication and data, which were not measured"));
  const nlohmann::ordered_json json = goodput_report_json(run, *found);
  CHECK(json["seconds"]["data"].is_null());
  CHECK(json["seconds"]["saves"].get<double>() == Approx(20));
  CHECK(json["forecast"]["mean_time_between_failures"].get<double>() == Approx(125));
  CHECK(json["checkpoint_interval"].is_null());
}

TEST_CASE("goodput: an interval between saves is shown as at least one step", "[report]") {
  std::string lines = start(0, 5), jobs = job_start(0, 0, 0, 4, 5) + job_ready(10, 1);
  double now = 10;
  for (int64_t number = 1; number <= 20; ++number) {
    lines += step(number, now += 60, 60);
    if (number % 10 == 0) jobs += job_save(now += 0.002, 0.002);
  }
  jobs += job_line("end", now, R"(,"status":"done")");
  const RunRecord run = run_of_lines(lines, jobs);
  const std::optional<Goodput> found = goodput_of(run);
  REQUIRE(found);
  REQUIRE(forecast_of(run, *found)->best_interval < 30);
  CHECK_THAT(goodput_report_text(run, *found), Catch::Matchers::Contains(" (1 step), "));
}

TEST_CASE("goodput: is not known without steps or without times", "[report]") {
  CHECK(!goodput_of_lines(start(0, 0)));
  CHECK(!goodput_of_lines(step(1, 1, 1)));
  CHECK(!goodput_of_lines(start(0, 0) + R"({"step":1,"loss":2.5,"step_seconds":1})"
                                        "\n"));
  CHECK(!goodput_of_lines(start(0, 0) + concat(R"({"step":1,"loss":2.5)", time_at(1))));
  CHECK(!goodput_of_lines(R"({"event":"start","step":0})"
                          "\n" +
                          step(1, 1, 1)));
}

TEST_CASE("goodput: what a resume removes from metrics.jsonl is counted first", "[metrics]") {
  const Scratch scratch;
  scratch.write("metrics.jsonl", start(0, 0) + step(1, 3, 1) + step(2, 4, 1) + evaluated(2, 5) + step(3, 6, 1) + saved(2, 6.25, 1) + step(4, 7, 1) +
                                     concat(R"({"event":"ranks","step":4,"busy_seconds":[1])", time_at(7.5)) + R"({"step":5,"lo)");
  const auto after = [&](int64_t number) { return MetricsSink::lines_after(scratch / "metrics.jsonl", number); };
  CHECK(after(2).steps == 2);
  CHECK(after(2).until == at(7.5));
  CHECK(after(0).steps == 4);
  CHECK(after(4).steps == 0);
  CHECK(after(4).until.empty());
  CHECK(MetricsSink::lines_after(scratch / "missing", 2).until.empty());
  MetricsSink::truncate_after(scratch / "metrics.jsonl", 2);
  CHECK(after(2).until.empty());
}

}  // namespace
}  // namespace trireme::report
