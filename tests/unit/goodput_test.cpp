// Goodput, from the lines of metrics.jsonl alone: answers worked out by hand.
#include <map>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/files/clock_text.h"
#include "trainer/report/goodput.h"
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

std::optional<Goodput> goodput_of_lines(const std::string& lines) {
  const Scratch scratch;
  scratch.write("metrics.jsonl", lines);
  return goodput_of(read_run(scratch / ""));
}

std::map<std::string, double> lost_in(const Goodput& goodput) { return {goodput.lost.begin(), goodput.lost.end()}; }

double sum_of(const Goodput& goodput) {
  double sum = goodput.useful_seconds();
  for (const auto& [cause, seconds] : goodput.lost) sum += seconds;
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
  CHECK(lost.at("set-up") == Approx(3));
  CHECK(lost.at("saves") == Approx(1));
  CHECK(lost.at("evaluation") == Approx(5));
  CHECK(lost.at("replayed") == 0);
  CHECK(lost.at("down") == 0);
  CHECK(lost.at("slow steps") == Approx(2));
  CHECK(lost.at("other") == Approx(2));
  CHECK(sum_of(*found) == Approx(21));
  CHECK(goodput_text(*found) == "38.1 % of 21 s; lost: evaluation 23.8 %, set-up 14.3 %, slow steps 9.5 %, other 9.5 %, saves 4.8 %");
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
  CHECK(lost.at("set-up") == Approx(2 + 2 + 1));
  CHECK(lost.at("replayed") == Approx(2.5));
  CHECK(lost.at("down") == Approx(23.5 + 10));
  CHECK(lost.at("other") == Approx(0).margin(1e-9));
  CHECK(sum_of(*found) == Approx(47));
  // A version that did not record what it removed: all of it is down.
  const std::optional<Goodput> older = goodput_of_lines(first + start(2, 30) + step(3, 33, 1));
  REQUIRE(older);
  CHECK(older->replayed_steps == 0);
  CHECK(lost_in(*older).at("down") == Approx(26));
  // A job that dies before its first step.
  const std::optional<Goodput> early =
      goodput_of_lines(start(0, 0) + concat(R"({"event":"note","step":0)", time_at(4)) + start(0, 10) + step(1, 12, 1));
  REQUIRE(early);
  CHECK(lost_in(*early).at("set-up") == Approx(4 + 1));
  CHECK(lost_in(*early).at("down") == Approx(6));
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
