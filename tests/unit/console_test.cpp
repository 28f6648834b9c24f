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

TEST_CASE("console: what a narrow terminal loses first, field after field, and what it shows at the width where all fit") {
  const test::TimeZone zone(kEasternTime);
  Event event = step_at(3, kEvening);
  event.fields["loss_scale"] = 65536;
  event.fields["mfu"] = 0.42;
  std::vector<std::string> kept{"23:59:30", "step 3/9", "loss", "grad_norm", "lr", "tokens/s", "scale", "mfu", "left", "["}, lost;
  const auto lose = [&](size_t columns) {
    const std::string line = printed(9, {}, {event}, [=] { return columns; });
    std::erase_if(kept, [&](const std::string& word) {
      const bool is_lost = line.find(word) == line.npos;
      if (is_lost) lost.push_back(word);
      return is_lost;
    });
  };
  // Time, step, loss, norm, rate, tokens, scale, MFU, rest and the shortest bar, with two spaces between two; the last column stays free.
  constexpr size_t kAll = 8 + 8 + 11 + 15 + 8 + 11 + 11 + 9 + 7 + 10 + 9 * 2;
  lose(kAll + 1);
  CHECK(lost.empty());
  lose(kAll);
  CHECK(lost == std::vector<std::string>{"scale"});
  for (size_t columns = kAll - 1; columns > 8; --columns) lose(columns);
  CHECK(lost == std::vector<std::string>{"scale", "lr", "23:59:30", "mfu", "grad_norm", "tokens/s", "[", "left", "loss"});
}

TEST_CASE("console: rates and durations on both sides of each unit") {
  const auto rate = [](double tokens) {
    Event event = step_at(1, {});
    event.fields["tokens_per_second"] = tokens;
    const std::string line = printed(9, 1, {event});
    const size_t begin = line.find("lr 0.001  ") + 10;
    return line.substr(begin, line.find(" tokens/s") - begin);
  };
  const std::vector<std::pair<double, std::string>> rates{{0, "0"},       {9999, "9999"},     {10'000, "10.0k"}, {999'949, "999.9k"},
                                                          {1e6, "1.00M"}, {2.5e9, "2500.00M"}};
  for (const auto& [tokens, text] : rates) CHECK(rate(tokens) == text);
  const std::vector<std::pair<double, std::string>> durations{{-1, "0s"},      {59.4, "59s"},      {60, "1m00s"},     {3599, "59m59s"},
                                                              {3600, "1h00m"}, {86'399, "23h59m"}, {86'400, "1d00h"}, {172'799, "1d23h"}};
  for (const auto& [length, text] : durations) CHECK(format_duration(length) == text);
}

TEST_CASE("console: pauses between drawings and between lines, just below their limits and at them") {
  const auto marks = [](char mark, const std::vector<milliseconds>& times) {
    std::vector<Event> events;
    for (const milliseconds time : times) events.push_back(step_at(std::ssize(events) + 1, kEvening + time));
    const std::string text = printed(600'000, {}, events, [] { return size_t{120}; });
    return std::count(text.begin(), text.end(), mark);
  };
  using Times = std::vector<milliseconds>;
  CHECK(marks('\r', Times{milliseconds(0), milliseconds(99), milliseconds(198)}) == 2);  // the third 198 ms after the first
  CHECK(marks('\r', Times{milliseconds(0), milliseconds(100), milliseconds(200)}) == 3);
  CHECK(marks('\n', Times{seconds(0), milliseconds(9999)}) == 1);  // a line at the end
  CHECK(marks('\n', Times{seconds(0), seconds(10)}) == 2);
  CHECK(marks('\n', Times{seconds(0), seconds(10), milliseconds(19'999)}) == 2);  // counted from the line that was kept
  CHECK(marks('\n', Times{seconds(0), seconds(10), seconds(20)}) == 3);

  const auto lines = [](const std::vector<Event>& events) {  // of a log of every thousandth step, or one a minute
    const std::string text = printed(600'000, {}, events);
    return std::count(text.begin(), text.end(), '\n');
  };
  const Event first = step_at(1, kEvening), minute_later = step_at(2, kEvening + minutes(1));
  const Event evaluation{.kind = "evaluation", .step = 1, .fields = {{"validation_loss", 2.5}}, .time = kEvening + seconds(30)};
  CHECK(lines({first, step_at(2, kEvening + milliseconds(59'999))}) == 1);
  CHECK(lines({first, minute_later}) == 2);
  CHECK(lines({first, evaluation, minute_later}) == 2);  // half a minute after the line of the evaluation
  CHECK(lines({first, evaluation, step_at(2, kEvening + seconds(90))}) == 3);
}

TEST_CASE("console: an evaluation is shown from ten seconds on in a log, and each 0.2 seconds on a terminal") {
  const auto shown = [](const TerminalWidth& width, const std::vector<std::pair<int64_t, double>>& batches) {
    char* text = nullptr;
    size_t size = 0;
    std::FILE* const out = ::open_memstream(&text, &size);
    {
      ConsoleSink console(100, {}, width, out, out);
      for (const auto& [done, passed] : batches) console.evaluating(7, done, 50, passed);
    }
    std::fclose(out);
    std::string result(text, size);
    std::free(text);
    return result;
  };
  const auto count = [](const std::string& text, const std::string& part) {
    int64_t found = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  CHECK(shown({}, {{0, 0}, {1, 9.99}}).empty());
  CHECK(shown({}, {{0, 0}, {1, 10}, {2, 20}}).ends_with("step 7/100    evaluation batch 1 of 50  in 10s  left 8m10s\n"));  // 49 of 10 s
  const std::string two = shown({}, {{0, 0}, {2, 12}, {0, 0}, {1, 5}, {2, 11}});
  CHECK(count(two, "evaluation batch 2 of 50") == 2);
  CHECK(count(two, "in 12s  left 4m48s") == 1);  // 24 times as long
  CHECK(count(two, "in 11s  left 4m24s") == 1);
  const std::string terminal = shown([] { return size_t{120}; }, {{0, 0}, {1, 0.19}, {2, 0.2}, {3, 0.39}, {4, 0.4}});
  CHECK(count(terminal, "\r") == 2);
  CHECK(count(terminal, "evaluation batch 2 of 50  in 0s  left 5s") == 1);
  CHECK(count(terminal, "evaluation batch 4 of 50  in 0s  left 5s") == 1);
}

TEST_CASE("console: the curve at the end fills a terminal but for its last column, up to 100 columns, and needs 40") {
  const auto longest_line = [](const TerminalWidth& width) {
    char* text = nullptr;
    size_t size = 0;
    std::FILE* const out = ::open_memstream(&text, &size);
    {
      ConsoleSink console(40, 100, width, out, out);
      for (int64_t step = 1; step <= 40; ++step) console.write(step_at(step, {}));
      console.finish();
    }
    std::fclose(out);
    const std::string all(text, size);
    std::free(text);
    std::istringstream lines(all.substr(std::min(all.find("loss of steps 1 to 40 (*)\n"), all.size())));
    size_t longest = 0;
    for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
    return longest;
  };
  for (const auto& [columns, expected] : {std::pair<size_t, size_t>{40, 0}, {41, 40}, {60, 59}, {101, 100}, {102, 100}, {250, 100}}) {
    CAPTURE(columns);
    CHECK(longest_line([width = columns] { return width; }) == expected);
  }
  CHECK(longest_line({}) == 0);  // a log
}

TEST_CASE("console: a curve begins with ten steps, ends with the last, and leaves out what is no number or comes before the first") {
  LossCurve curve;
  for (int64_t step = 11; step <= 19; ++step) curve.add(step, 2);
  curve.add(5, 99);
  curve.add(20, std::numeric_limits<double>::infinity());
  CHECK(curve.text(40).empty());
  curve.add(20, 1);
  for (const double loss : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) curve.add_validation(15, loss);
  const auto drawing = [](const std::string& title, const std::vector<std::string>& rows, const std::string& margin, const std::string& ends) {
    std::string text = title + "\n";
    for (const std::string& row : rows) text += row + "\n";
    return text + margin + "+" + std::string(39 - margin.size(), '-') + "\n" + margin + " " + ends + "\n";
  };
  std::vector<std::string> rows(10, "  |");
  rows[0] = "2 |*" + std::string("   *   *   *   *   *   *   *   *");  // a step is 36 / 9 columns
  rows[9] = "1 |" + std::string(36, ' ') + "*";
  CHECK(curve.text(40) == drawing("loss of steps 11 to 20 (*)", rows, "  ", "11" + std::string(37 - 4, ' ') + "20"));

  LossCurve constant;  // in the middle, with one label
  for (int64_t step = 5; step < 15; ++step) constant.add(step, 1.5);
  constant.add_validation(14, 1.5);
  rows.assign(10, "    |");
  rows[0] = "1.5 |";
  rows[5] += std::string(35, ' ');
  for (size_t step = 0; step < 10; ++step) rows[5][5 + step * 34 / 9] = step < 9 ? '*' : 'o';
  CHECK(constant.text(40) == drawing("loss of steps 5 to 14 (*), of validation (o)", rows, "    ", "5" + std::string(35 - 3, ' ') + "14"));
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
