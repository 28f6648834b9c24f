// When and how wide a run prints: the clock, the interval of a log, the width of a terminal.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/time_zone.h"
#include "trainer/run/console_sink.h"
#include "trainer/run/metrics_sink.h"

using namespace trireme;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

namespace {

constexpr const char* kEasternTime = "XXX-2";  // two hours ahead of UTC

const WallClock::time_point kEvening{seconds(1795471170) + milliseconds(42)};  // 2026-11-23T21:59:30.042Z

Event step_at(int64_t step, std::optional<WallClock::time_point> time) {
  return {
      .kind = "step",
      .step = step,
      .fields = {{"loss", 2.5}, {"grad_norm", 0.5}, {"learning_rate", 1e-3}, {"step_seconds", 1.0}, {"tokens_per_second", 64.0}, {"mfu", nullptr}},
      .time = time};
}

/// Standard output of a sink that gets `events`.
std::string printed(int64_t steps, std::optional<int64_t> every, const std::vector<Event>& events, const TerminalWidth& width = {}) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const out = ::open_memstream(&text, &size);
  {
    ConsoleSink console(steps, every, width, out, out);
    for (const Event& event : events) console.write(event);
  }
  std::fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

/// The numbers of the steps that a log of a run of `steps` steps contains, if each takes `length`.
std::vector<int64_t> steps_in_log(int64_t steps, std::optional<int64_t> every, WallClock::duration length, int64_t from = 1) {
  std::vector<Event> events;
  for (int64_t step = from; step <= steps; ++step) events.push_back(step_at(step, kEvening + step * length));
  std::istringstream log(printed(steps, every, events));
  std::vector<int64_t> numbers;
  for (std::string line; std::getline(log, line);) numbers.push_back(std::stoll(line.substr(line.find("step ") + 5)));
  return numbers;
}

}  // namespace

TEST_CASE("console: log lines have the local time, and the first one of a day has the date") {
  const test::TimeZone zone(kEasternTime);
  CHECK(utc_text(kEvening) == "2026-11-23T21:59:30.042Z");
  const Event start{.kind = "start", .fields = {}, .text = "a run", .time = kEvening};
  const Event message{.kind = "", .fields = {}, .text = "a message", .time = kEvening};
  const Event evaluation{.kind = "evaluation", .step = 2, .fields = {{"validation_loss", 2.5}}, .time = kEvening + seconds(31)};
  const std::string text = printed(9, 1, {start, step_at(1, kEvening), message, step_at(2, kEvening + seconds(30)), evaluation});
  CHECK(text ==
        "2026-11-23 23:59:30  a run\n"
        "2026-11-23 23:59:30  step 1/9  loss 2.5000  grad_norm 0.500  lr 0.001  64 tokens/s  left 8s\n"
        "a message\n"
        "2026-11-24 00:00:00  step 2/9  loss 2.5000  grad_norm 0.500  lr 0.001  64 tokens/s  left 7s\n"
        "00:00:01  step 2/9  validation loss 2.5000\n");
}

TEST_CASE("console: a log has every N-th step, the first and the last") {
  using Steps = std::vector<int64_t>;
  CHECK(steps_in_log(10, 4, seconds(1)) == Steps{1, 4, 8, 10});
  CHECK(steps_in_log(10, 4, seconds(1), 6) == Steps{6, 8, 10});
  CHECK(steps_in_log(4, 1, seconds(1)) == Steps{1, 2, 3, 4});
  CHECK(steps_in_log(6, 100, minutes(9)) == Steps{1, 6});
}

TEST_CASE("console: by default a log of a long run has 1,000 lines, or one a minute") {
  for (const auto& [steps, every] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1000, 1}, {1001, 2}, {2000, 2}, {2001, 5}, {5001, 10}, {600000, 1000}, {500000, 500}}) {
    CAPTURE(steps);
    CHECK(automatic_print_every(steps) == every);
  }
  CHECK(steps_in_log(1000, {}, milliseconds(1)).size() == 1000);
  CHECK(steps_in_log(5001, {}, milliseconds(1)).size() == 502);
  CHECK(steps_in_log(5001, {}, seconds(20)).size() == 2001);  // of ten steps the third, sixth, ninth and tenth
  CHECK(steps_in_log(5001, {}, minutes(2)).size() == 5001);
}

TEST_CASE("console: a terminal shows the date once, at the start") {
  const test::TimeZone zone(kEasternTime);
  const Event start{.kind = "start", .fields = {}, .text = "a run", .time = kEvening};
  const Event evaluation{.kind = "evaluation", .step = 2, .fields = {{"validation_loss", 2.5}}, .time = kEvening};
  CHECK(printed(9, {}, {start, evaluation}, [] { return size_t{80}; }) == "2026-11-23 23:59:30  a run\n23:59:30  step 2/9  validation loss 2.5000\n");
}

TEST_CASE("console: the progress line leaves out what does not fit the terminal") {
  const test::TimeZone zone(kEasternTime);
  Event event = step_at(123456, kEvening);
  event.fields["loss_scale"] = 65536;
  event.fields["mfu"] = 0.42;
  const auto line = [&](size_t columns) { return printed(600000, {}, {event}, [=] { return columns; }); };
  CHECK(line(200) ==
        "\r23:59:30  step 123456/600000  loss 2.5000  grad_norm 0.500  lr 0.001  64 tokens/s  scale 65536  mfu 42.0%  left 5d12h"
        "  [=======>                              ]\n");
  CHECK(line(80) == "\rstep 123456/600000  loss 2.5000  64 tokens/s  left 5d12h  [===>               ]\n");
  CHECK(line(40) == "\rstep 123456/600000  loss 2.5000\n");
  CHECK(line(10) == "\rstep 1234\n");
  for (size_t columns = 1; columns < 130; ++columns) {
    CAPTURE(columns);
    CHECK(line(columns).size() <= columns + 1);  // \r, at most columns - 1 characters, \n
  }
}

TEST_CASE("console: the progress line follows the width of the terminal") {
  size_t columns = 200;
  std::vector<Event> events{step_at(1, {}), step_at(2, {}), step_at(3, {})};
  const TerminalWidth shrinking = [&] { return columns -= 80; };  // 120, 40, and -40 is never asked for
  const std::string text = printed(99, 50, {events[0], events[1]}, shrinking);
  CHECK(text ==
        "\rstep 1/99   loss 2.5000  grad_norm 0.500  lr 0.001  64 tokens/s  left 1m38s  [>                                     ]"
        "\rstep 2/99   loss 2.5000  left 1m37s    \n");
}

TEST_CASE("console: the fields of successive lines are aligned") {
  Event narrow = step_at(9, {}), wide = step_at(1000, {});
  wide.fields["loss"] = 11.25;
  wide.fields["grad_norm"] = 123.4;
  wide.fields["tokens_per_second"] = 12345.0;
  CHECK(printed(1000, 1, {wide, narrow}) ==
        "step 1000/1000  loss 11.2500  grad_norm 123.400  lr 0.001  12.3k tokens/s  left 0s\n"
        "step 9/1000     loss 2.5000   grad_norm 0.500    lr 0.001  64 tokens/s     left 16m31s\n");
}

TEST_CASE("console: a terminal is drawn at most ten times a second, ends with the last step, and keeps a line every ten seconds") {
  std::vector<Event> events;
  for (int64_t step = 1; step <= 200; ++step) events.push_back(step_at(step, kEvening + step * milliseconds(150)));
  const auto count = [](const std::string& text, char mark) { return std::count(text.begin(), text.end(), mark); };
  const std::string slow = printed(200, {}, events, [] { return size_t{120}; });
  CHECK(count(slow, '\n') == 3);  // two lines are kept in 30 s, and the last one
  CHECK(count(slow, '\r') == 202);
  for (Event& event : events) event.time = kEvening + *event.step * milliseconds(1);
  const std::string fast = printed(200, {}, events, [] { return size_t{120}; });
  CHECK(count(fast, '\r') == 3);
  CHECK(fast.substr(fast.rfind("step ")).starts_with("step 200/200  "));
  CHECK(fast.ends_with("=]\n"));
}

TEST_CASE("console: a progress bar") {
  CHECK(progress_bar(0, 10) == "[>       ]");
  CHECK(progress_bar(0.5, 10) == "[====>   ]");
  CHECK(progress_bar(0.99, 10) == "[=======>]");
  CHECK(progress_bar(1, 10) == "[========]");
  CHECK(progress_bar(7, 10) == "[========]");  // a run that is extended has more steps than it was started with
}

TEST_CASE("console: the curve of losses at the end of a run on a terminal") {
  LossCurve curve;
  for (int64_t step = 1; step <= 40; ++step) curve.add(step, 4.0 - 0.05 * static_cast<double>(step));
  curve.add(41, std::numeric_limits<double>::quiet_NaN());
  curve.add_validation(20, 3.5);
  CHECK(curve.text(48) ==
        "loss of steps 1 to 40 (*), of validation (o)\n"
        "3.95 |***\n"
        "     |   ****\n"
        "     |       ****        o\n"
        "     |           *****\n"
        "     |                ****\n"
        "     |                     ****\n"
        "     |                         *****\n"
        "     |                              ****\n"
        "     |                                  ****\n"
        "   2 |                                      ** *\n"
        "     +------------------------------------------\n"
        "      1                                       40\n");
  CHECK(curve.text(39).empty());
  CHECK(LossCurve().text(80).empty());
  LossCurve constant;
  for (int64_t step = 5; step < 15; ++step) constant.add(step, 1.5);
  CHECK(constant.text(80).find("1.5 |") != std::string::npos);
  LossCurve jumping;  // the mean of each column is 2, and the axis is that of what is drawn
  for (int64_t step = 0; step < 4000; ++step) jumping.add(step, step % 2 == 0 ? 3.0 : 1.0);
  CHECK(jumping.text(40).find("\n2.0") != std::string::npos);
  CHECK(jumping.text(40).find("\n3 |") == std::string::npos);
  LossCurve endless;
  for (int64_t step = 1; step <= 1'000'000; ++step) endless.add(step, step <= 500'000 ? 2.0 : 1.0);
  const std::string text = endless.text(40);
  INFO(text);
  CHECK(text.find("2 |******************") != std::string::npos);
  CHECK(text.starts_with("loss of steps 1 to 1000000 (*)\n"));
}

TEST_CASE("metrics: each line has the time in UTC") {
  const std::string path = "/tmp/trireme-clock-" + std::to_string(::getpid());
  {
    MetricsSink sink(path);
    sink.write({.kind = "evaluation", .step = 2, .fields = {{"validation_loss", 2.5}}, .time = kEvening});
  }
  std::FILE* const file = std::fopen(path.c_str(), "r");
  std::string text(200, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  std::remove(path.c_str());
  CHECK(text == "{\"step\":2,\"validation_loss\":2.5,\"time\":\"2026-11-23T21:59:30.042Z\"}\n");
}
