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

TEST_CASE("goodput: each of several requeues is a wait for nodes, and a start by hand is not one", "[report]") {
  // Requeued after 10 and after 20 s; then started by hand in the same allocation after 5 s, and as another job of Slurm after 7 s.
  std::string lines, jobs;
  int64_t number = 0;
  double now = 0;
  for (const auto& [pause, slurm] : std::initializer_list<std::pair<double, const char*>>{{0, R"("7","slurm_restarts":0)"},
                                                                                          {10, R"("7","slurm_restarts":1)"},
                                                                                          {20, R"("7","slurm_restarts":2)"},
                                                                                          {5, R"("7","slurm_restarts":2)"},
                                                                                          {7, R"("8","slurm_restarts":3)"}}) {
    const double begin = now += pause;
    jobs += job_start(number, begin, begin, begin + 1, begin + 2, concat(R"(,"slurm_job":)", slurm)) + job_ready(begin + 3, 0);
    lines += start(number, begin + 2) + step(number + 1, begin + 5, 2);
    jobs += job_line("end", begin + 5, R"(,"status":"stopped")") + job_exit(begin, begin, now = begin + 6);
    ++number;
  }
  const std::optional<Goodput> found = goodput_of_lines(lines, jobs);
  REQUIRE(found);
  CHECK(lost_in(*found).at("waiting for nodes") == Approx(10 + 20));
  CHECK(lost_in(*found).at("not running") == Approx(5 + 7));
  CHECK(sum_of(*found) == Approx(5 * 6 + 42));
}

TEST_CASE("goodput: of an older run every save, every stretch of lost steps and every step that was made again counts", "[report]") {
  // Steps of 2 s. Step 2 has two saves, step 4 has one; the first job is known until 19, the second until 35.
  const std::string first =
      start(0, 0) + step(1, 4, 2) + step(2, 6, 2) + saved(2, 8, 0.5) + saved(2, 8.5, 1) + step(3, 12, 2) + step(4, 14, 2) + saved(4, 17, 2);
  const std::optional<Goodput> found =
      goodput_of_lines(first + start(4, 30, discarding(1, 19)) + step(5, 33, 2) + start(5, 40, discarding(2, 35)) + step(6, 44, 2));
  REQUIRE(found);
  CHECK(found->jobs == 3);
  CHECK(found->saves == 2);  // steps that were saved
  CHECK(found->replayed_steps == 1 + 2);
  const auto lost = lost_in(*found);
  CHECK(lost.at("start-up") == Approx(2 + 1 + 2));
  CHECK(lost.at("saves") == Approx(0.5 + 1 + 2));
  CHECK(lost.at("replayed steps") == Approx(19 - 14 - 2 + 35 - 33));
  CHECK(lost.at("not running") == Approx(11 + 5));
  CHECK(lost.at("other") == Approx(4 - 1.5));
  CHECK(lost.at("compute") == Approx(6 * 2));
  CHECK(sum_of(*found) == Approx(44));
}

TEST_CASE("goodput: jobs with and without a record belong to one run, whatever clock their launcher has", "[report]") {
  // The first job is older than jobs.jsonl and saves for 0.5 s; the save of the second one is in both files, and counts once.
  const std::string lines = start(0, 0) + step(1, 3, 1) + step(2, 4, 1) + saved(2, 5, 0.5) + step(3, 6, 1) + start(3, 22) + step(4, 25, 1) +
                            saved(4, 26, 0.75) + step(5, 27, 1);
  const std::optional<Goodput> found = goodput_of_lines(lines, job_start(3, 18, 20, 21, 22) + job_ready(24, 0.5) + job_save(25.75, 0.75));
  REQUIRE(found);
  CHECK(found->jobs == 2);
  CHECK(found->saves == 1 + 1);
  const auto lost = lost_in(*found);
  CHECK(lost.at("saves") == Approx(0.5 + 0.75));
  CHECK(lost.at("start-up") == Approx(2 + 3.5));
  CHECK(lost.at("load") == Approx(0.5));
  CHECK(lost.at("not running") == Approx(14));
  CHECK(lost.at("other") == Approx(0.5 + 0.25));
  CHECK(sum_of(*found) == Approx(27));
  // The clock of the launcher is 5 s ahead of that of rank 0, whose start event is that of the same job.
  const std::optional<Goodput> ahead = goodput_of_lines(start(0, 4) + step(1, 10, 1) + step(2, 11, 1), job_start(0, 8, 8, 3, 4) + job_ready(9, 0));
  REQUIRE(ahead);
  CHECK(ahead->jobs == 1);
  CHECK(ahead->wall_seconds == Approx(11 - 8));
  // A launcher that begins its first job after 3 s, as it has waited.
  const std::optional<Goodput> late = goodput_of_lines(start(0, 5) + step(1, 7, 1), job_start(0, 0, 3, 4, 5) + job_ready(6, 0));
  REQUIRE(late);
  CHECK(late->wall_seconds == Approx(7));
  CHECK(lost_in(*late).at("start-up") == Approx(6));
}

TEST_CASE("goodput: jobs whose end nobody saw end with their last evaluation, event or save, and the last one may still be starting", "[report]") {
  const auto begun = [](int64_t after, double started, double joined) {
    return job_line("start", started, concat(R"(,"step":)", after, joined < 0 ? "" : concat(R"(,"joined":")", at(joined), '"')));
  };
  const auto note = [](int64_t after, double seconds) { return concat(R"({"event":"note","step":)", after, time_at(seconds)); };
  const std::string lines = step(1, 4, 1) + evaluated(1, 6) + step(2, 13, 1) + note(2, 15) + step(3, 23, 1) + note(3, 37);
  const std::string jobs = begun(0, 2, 1) + job_ready(3, 0) + begun(1, 11, 10) + job_ready(12, 0) + begun(2, 21, -1) + job_ready(22, 0) +
                           job_save(26, 0.5) + begun(3, 31, 30);
  const std::optional<Goodput> found = goodput_of_lines(lines, jobs);
  REQUIRE(found);
  const auto lost = lost_in(*found);
  CHECK(lost.at("start-up") == Approx(2 + 2 + 1 + 7));
  CHECK(lost.at("evaluation") == Approx(2));
  CHECK(lost.at("replayed steps") == Approx(2 + 2.5));
  CHECK(lost.at("saves") == Approx(0.5));
  CHECK(lost.at("not running") == Approx((10 - 6) + (21 - 15) + (30 - 26)));
  CHECK(lost.at("compute") == Approx(3));
  CHECK(found->failures.failures == 3);
  CHECK(sum_of(*found) == Approx(37 - 1));
}

TEST_CASE("goodput: failures that were seen, that a job told itself, and before its first step", "[report]") {
  // Job 1 loads for its whole start; a save from 6 to 9, a failure at 8, the end of all ranks at 10. Job 2 evaluates step 2 again, until 17, and
  // fails with a message at 20. Job 3 dies in its start. Job 4 ends as planned.
  const std::string lines =
      start(0, 2) + step(1, 4, 1) + step(2, 5, 1) + start(2, 13) + evaluated(2, 17) + step(3, 18, 1) + start(3, 27) + step(4, 29, 1);
  const std::string jobs = job_start(0, 0, 0, 1, 2) + job_ready(3, 99) + job_save(9, 3) + job_exit(0, 0, 10, 8) + job_start(2, 0, 11, 12, 13) +
                           job_ready(14, 0.5) + job_line("end", 20, R"(,"status":"failed")") + job_exit(0, 11, 20.5) + job_exit(0, 22, 24) +
                           job_start(3, 0, 25, 26, 27) + job_ready(28, 0) + job_line("end", 29.5, R"(,"status":"done")") + job_exit(0, 25, 30);
  const std::optional<Goodput> found = goodput_of_lines(lines, jobs);
  REQUIRE(found);
  const auto lost = lost_in(*found);
  CHECK(lost.at("load") == Approx(3 + 0.5));
  CHECK(lost.at("start-up") == Approx(1.5 + 2 + 2));
  CHECK(lost.at("saves") == Approx(3));
  CHECK(lost.at("replayed steps") == Approx((6 - 5) + (20 - 18)));
  CHECK(lost.at("detection") == Approx((10 - 9) + 0.5));
  CHECK(lost.at("restart") == Approx(2 + (22 - 20.5) + 2));
  CHECK(lost.at("evaluation") == Approx(17 - 14));
  CHECK(lost.at("other") == Approx(1));
  CHECK(sum_of(*found) == Approx(30));
  CHECK(found->jobs == 4);
  CHECK(found->failures.failures == 2);
  CHECK(found->failures.seconds == Approx((8 - 3) + (20 - 14) + (29.5 - 28)));
  CHECK(found->down_seconds == Approx((10 - 8) + (14 - 10) + 0.5 + (22 - 20.5) + (24 - 22) + (28 - 24)));
}

TEST_CASE("goodput: a restart is one of the same launcher, and each of its waits is a wait for nodes", "[report]") {
  for (const auto& [launcher, cause, seconds, start_up] : {std::tuple(0.005, "restart", 7 - 3, 2 - 0.5), {0.02, "not running", 6 - 3, 3 - 0.5}}) {
    const std::string jobs = job_start(0, 0, 0, 1, 1) + job_ready(2, 0) + job_exit(0, 0, 4, 3.5) + job_line("wait", 6, R"(,"seconds":1)") +
                             job_line("wait", 9, R"(,"seconds":2)") + job_start(1, launcher, 10, 11, 12) +
                             job_line("wait", 12.5, R"(,"seconds":0.5)") + job_ready(13, 0);
    const std::optional<Goodput> found = goodput_of_lines(start(0, 1) + step(1, 3, 1) + start(1, 12) + step(2, 14, 1), jobs);
    CAPTURE(launcher);
    REQUIRE(found);
    const auto lost = lost_in(*found);
    CHECK(lost.at(cause) == Approx(seconds));
    CHECK(lost.at("restart") + lost.at("not running") == Approx(seconds));
    CHECK(lost.at("waiting for nodes") == Approx(1 + 2 + 0.5));
    CHECK(lost.at("start-up") == Approx(2 + start_up));
    CHECK(lost.at("replayed steps") == Approx(0.5));
    CHECK(lost.at("detection") == Approx(0.5));
    CHECK(sum_of(*found) == Approx(14));
  }
}

TEST_CASE("goodput: causes of a percent are named, the largest first, and bars join those of one color", "[report]") {
  Goodput goodput;
  goodput.wall_seconds = 100;
  goodput.seconds = {50, 10, 5, 1, 0.99, 0, 0, 0, 0, 0, 0, 15, 15, 3.01};
  CHECK(goodput_text(goodput) == "65.0 % of 100 s; lost: waiting for nodes 15.0 %, not running 15.0 %, other 3.0 %, slow steps 1.0 %");
  for (size_t i = 0; i < goodput.seconds.size(); ++i) goodput.seconds[i] = static_cast<double>(i + 1);
  const std::vector<std::pair<std::string, double>> groups{
      {"useful", 1 + 2 + 3}, {"slow steps", 4},     {"start-up and load", 5 + 6},       {"saves", 7},
      {"evaluation", 8},     {"replayed steps", 9}, {"detection and restart", 10 + 11}, {"not running", 12 + 13},
      {"other", 14}};
  for (const bool has_slow : {true, false}) {
    if (!has_slow) goodput.seconds[static_cast<size_t>(TimeCause::kSlowSteps)] = 0;
    const Bars bars = goodput_bars(goodput);
    REQUIRE(bars.rows.size() == 1);
    const std::vector<Segment>& segments = bars.rows[0].bars.at(0).segments;
    REQUIRE(bars.key.size() == (has_slow ? 9 : 8));
    REQUIRE(segments.size() == bars.key.size());
    for (size_t i = 0; i < segments.size(); ++i) {
      const size_t group = !has_slow && i > 0 ? i + 1 : i;  // each keeps its color
      CHECK(bars.key[i] == std::pair(group, groups[group].first));
      CHECK(segments[i].color == group);
      CHECK(segments[i].value == Approx(groups[group].second));
    }
  }
}

TEST_CASE("goodput: slow steps are training too, and a mean time between failures that is given counts until there is one", "[report]") {
  // Eight steps of 1 s, of which the fourth takes 5 s; saves of 1 and 3 s.
  std::string lines = start(0, 0), jobs = job_start(0, 0, 0, 0, 0) + job_ready(2, 0);
  double now = 2;
  for (int64_t number = 1; number <= 8; ++number) {
    const double duration = number == 4 ? 5 : 1, save = number == 4 ? 1 : 3;
    lines += step(number, now += duration, duration);
    if (number % 4 == 0) jobs += job_save(now += save, save);
  }
  jobs += job_line("end", now, R"(,"status":"done")");
  const RunRecord run = run_of_lines(lines, jobs, "resilience: {mean_time_between_failures: 5000}\n");
  const std::optional<Goodput> found = goodput_of(run);
  REQUIRE(found);
  const std::optional<GoodputForecast> forecast = forecast_of(run, *found);
  REQUIRE(forecast);
  CHECK(std::string(forecast->mtbf_from) == "given");
  CHECK(forecast->failures.mtbf == 5000);
  CHECK(forecast->failures.stall == Approx((1 + 3) / 2.0));
  CHECK(forecast->interval == Approx((8 + 4) / 2.0));
  CHECK(forecast->measured == Approx(12.0 / (12 + 4)));
  const std::string text = goodput_report_text(run, *found);
  CHECK_THAT(text, Catch::Matchers::Contains(": 44.4 % goodput: 8 steps x 1 s (median) of 18 s; 1 job, 0 failures, 2 saves, 0 steps made again\n"));
  CHECK_THAT(text, Catch::Matchers::Contains("measured 75.0 %, expected ") &&
                       Catch::Matchers::Contains("a save of 2 s after every 6 s (4 steps) of training, a failure every 83.3 min (given)"));
  for (const std::string cause : {"exposed communication", "data"})
    CHECK_THAT(text, Catch::Matchers::Contains(concat("\n", cause, std::string(24 - cause.size() + 11, ' '), "-", std::string(11, ' '), "-\n")));
  CHECK_THAT(text, Catch::Matchers::Contains(concat("\ncompute", std::string(17 + 7, ' '), "8.000", std::string(5, ' '), "44.44 %\n")));
  CHECK_THAT(text, Catch::Matchers::Contains(concat("\nslow steps", std::string(14 + 7, ' '), "4.000", std::string(5, ' '), "22.22 %\n")));
  const nlohmann::ordered_json json = goodput_report_json(run, *found);
  for (const char* part : {"seconds", "shares"})
    for (const char* cause : {"exposed communication", "data"}) CHECK(json[part][cause].is_null());
  CHECK(json["shares"]["slow steps"].get<double>() == Approx(4.0 / 18));
  CHECK(json["forecast"]["mean_time_between_failures_from"] == "given");
  // Without one it is a day and the 16 s of training.
  for (const char* config : {"", "resilience: {mean_time_between_failures: auto}\n"}) {
    const RunRecord open = run_of_lines(lines, jobs, config);
    CHECK(std::string(forecast_of(open, *found)->mtbf_from) == "assumed");
    CHECK(forecast_of(open, *found)->failures.mtbf == Approx(86400 + 16));
  }
  // Nothing is expected of saves without one.
  const RunRecord single = run_of_lines(start(0, 0) + step(1, 3, 1));
  const std::optional<Goodput> without = goodput_of(single);
  REQUIRE(without);
  CHECK(!forecast_of(single, *without));
  const std::string short_text = goodput_report_text(single, *without);
  CHECK_THAT(short_text, Catch::Matchers::Contains("1 step x 1 s (median) of 3 s; 1 job, 0 failures, 0 saves, 0 steps made again"));
  CHECK_THAT(short_text, !Catch::Matchers::Contains("training, of training"));
  CHECK(goodput_report_json(single, *without)["forecast"].is_null());
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
  // Several traced steps count together, and parts that overlap are no more than the whole: 3 s of communication and 3.5 s of reading in 5 s.
  const std::string more = R"({"event":"exposed","step":2,"step_seconds":3,"zero_gather":1.5,"data_wait":3)";
  const std::optional<Goodput> both =
      goodput_of_lines(start(0, 0) + step(1, 2, 1) + step(2, 3, 1) + R"({"event":"exposed","step":1,"step_seconds":2,"tensor":1.5,"data_wait":0.5)" +
                       time_at(3) + more + time_at(3));
  REQUIRE(both);
  CHECK(lost_in(*both).at("exposed communication") == Approx(2 * 3.0 / 5));
  CHECK(lost_in(*both).at("data") == Approx(2 * (1 - 3.0 / 5)));
  CHECK(lost_in(*both).at("compute") == Approx(0).margin(1e-9));
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
  const RunRecord given = run_of_lines(lines, jobs, "resilience: {mean_time_between_failures: 7}\n");
  CHECK(forecast_of(given, *goodput_of(given))->failures.mtbf == Approx(125));
  CHECK(std::string(forecast_of(given, *goodput_of(given))->mtbf_from) == "measured");
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

TEST_CASE("goodput: before any failure its down time is assumed to be that of an average start, with the load of the state", "[report]") {
  // Two planned jobs of 10 s. Each loads, for 1.5 and 2.5 s, within the 7 and 5 s before its first step begins.
  std::string lines, jobs;
  for (const auto& [begin, ready, load] : {std::tuple(0.0, 7.0, 1.5), {100.0, 105.0, 2.5}}) {
    const int64_t number = begin > 0 ? 1 : 0;
    jobs += job_start(number, begin, begin, begin + 1, begin + 2) + job_ready(ready, load);
    lines += start(number, begin + 2) + step(number + 1, ready + 1, 1);
    jobs += job_save(ready + 2, 1) + job_line("end", begin + 9, R"(,"status":"stopped")") + job_exit(begin, begin, begin + 10);
  }
  const RunRecord run = run_of_lines(lines, jobs);
  const std::optional<Goodput> found = goodput_of(run);
  REQUIRE(found);
  CHECK(lost_in(*found).at("start-up") == Approx(5.5 + 2.5));
  CHECK(lost_in(*found).at("load") == Approx(1.5 + 2.5));
  const std::optional<GoodputForecast> forecast = forecast_of(run, *found);
  REQUIRE(forecast);
  CHECK(std::string(forecast->mtbf_from) == "assumed");
  CHECK(forecast->failures.downtime == Approx((7 + 5) / 2.0));
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
  // Nor if only the second of two has none.
  const std::string first = start(0, 0) + step(1, 1, 1);
  CHECK(goodput_of_lines(first + start(1, 2) + step(2, 4, 1)));
  CHECK(!goodput_of_lines(first + R"({"step":2,"loss":2.5,"step_seconds":1})" + "\n"));
  CHECK(!goodput_of_lines(first + concat(R"({"step":2,"loss":2.5)", time_at(2))));
  CHECK(!goodput_of_lines(first + R"({"event":"start","step":1})" + "\n" + step(2, 4, 1)));
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
