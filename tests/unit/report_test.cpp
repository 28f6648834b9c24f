// `trireme report`: what it reads of a run, down-sampling, axes, and the page.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/replaced.h"
#include "tests/support/scratch.h"
#include "trainer/files/clock_text.h"
#include "trainer/report/config_rows.h"
#include "trainer/report/csv.h"
#include "trainer/report/heat_map.h"
#include "trainer/report/page.h"
#include "trainer/report/run_facts.h"
#include "trainer/report/suspects.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

using nlohmann::json;
using test::replaced;
using test::Scratch;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const std::string kRunYaml = R"(run:
  name: NAME
  directory: runs/NAME
  seed: 1234
model:
  layers: 4
  hidden_size: 64
  heads: 4
  kv_heads: 4
  vocab_size: 256
training:
  steps: 6
  sequence_length: 16
  global_batch_size: 8
  precision: fp32
data:
  train: [train]
)";

std::string step_line(int64_t step, double loss, const std::string& more = "") {
  return concat(R"({"step":)", step, R"(,"loss":)", loss, R"(,"grad_norm":0.5,"learning_rate":0.001,"tokens":)", 128 * step,
                R"(,"step_seconds":0.5,"tokens_per_second":256.0,"model_tflops":0.25,"mfu":null)", more, "}\n");
}

std::string timed(int64_t minute, int64_t second) { return concat(R"(,"time":"2026-11-23T09:)", minute + 10, ":", second + 10, R"(.000Z")"); }

/// Writes the files of a run below `scratch`.
std::string write_run(const Scratch& scratch, const std::string& name, const std::string& metrics, const std::string& yaml = kRunYaml) {
  scratch.write(name + "/config.yaml", replaced(yaml, "NAME", name));
  scratch.write(name + "/environment.json", R"({"version": "0.1.0", "host": {"cpu": "a CPU", "cores": 2}, "gpu": null})");
  scratch.write(name + "/metrics.jsonl", metrics);
  return scratch / name;
}

std::vector<RunView> views_of(const std::vector<RunRecord>& runs) {
  const std::vector<std::string> labels = labels_of(runs);
  std::vector<RunView> views;
  for (size_t i = 0; i < runs.size(); ++i) views.emplace_back(runs[i], labels[i]);
  return views;
}

std::string page_of(const std::vector<RunRecord>& runs) { return page_html(views_of(runs), "0.1.0"); }

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// The numbers that the page's script reads.
json numbers_of(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="numbers">)";
  const size_t at = page.find(begin) + begin.size();
  return json::parse(page.substr(at, page.find("</script>", at) - at));
}

}  // namespace

TEST_CASE("report: damaged and cut lines of metrics.jsonl are skipped and counted, and the rest is read") {
  const Scratch scratch;
  const std::string start = R"({"event":"start","step":0,"steps":6,"parameters":1000})";
  const RunRecord run =
      read_run(write_run(scratch, "a",
                         start + "\n" + step_line(1, 5.5, timed(0, 1)) + "{\"step\": 2, \"loss\n" + "[1, 2]\n" + step_line(3, 4.5).substr(0, 20) +
                             "\xff\n" + R"({"step":3,"loss":null,"grad_norm":null})" + "\n" + R"({"step":-4,"loss":1})" + "\n" +
                             R"({"step":4.5,"loss":1})" + "\n" + R"({"step":3,"validation_loss":4.25,"validation":{"prose":4.5,"code":4.0}})" + "\n" +
                             R"({"event":"new_kind","text":["x"]})" + "\n" + step_line(4, 4.0).substr(0, 60)));
  CHECK(run.skipped_lines == 6);  // of which the last one is cut
  REQUIRE(run.steps.step == std::vector<int64_t>{1, 3});
  CHECK(run.steps[Figure::kLoss][0] == 5.5);
  CHECK(std::isnan(run.steps[Figure::kLoss][1]));
  CHECK(run.steps.elapsed_seconds == std::vector<double>{0.5, 0.5});
  CHECK(run.steps.time[0] == Approx(1795425011.0));
  CHECK(std::isnan(run.steps.time[1]));
  REQUIRE(run.evaluations.size() == 1);
  CHECK(run.evaluations[0].sets == std::vector<std::pair<std::string, double>>{{"prose", 4.5}, {"code", 4.0}});
  REQUIRE(run.events.size() == 2);
  CHECK(run.events[1].kind == "new_kind");
  CHECK(run.events[1].after_step == 3);  // where it stands in the file
  REQUIRE(run.problems.size() == 1);
  CHECK(run.problems[0] == "metrics.jsonl: 6 lines cut or damaged, skipped");
  CHECK_THAT(page_of({run}), Catch::Matchers::Contains("metrics.jsonl: 6 lines cut or damaged, skipped"));
}

TEST_CASE("report: the later lines of a step count, as after a roll-back") {
  const Scratch scratch;
  const RunRecord run = read_run(
      write_run(scratch, "a", step_line(1, 5) + step_line(2, 4) + R"({"step":2,"validation_loss":4})" + "\n" + step_line(3, 3) + step_line(2, 3.5)));
  CHECK(run.steps.step == std::vector<int64_t>{1, 2});
  CHECK(run.steps[Figure::kLoss][1] == 3.5);
  CHECK(run.steps.elapsed_seconds == std::vector<double>{0.5, 1.0});
  CHECK(run.evaluations.empty());
  const RunRecord again = read_run(write_run(
      scratch, "b", step_line(1, 5) + R"({"step":1,"validation_loss":4})" + "\n" + R"({"step":1,"validation_loss":3})" + "\n" + step_line(2, 4)));
  REQUIRE(again.evaluations.size() == 1);
  CHECK(again.evaluations[0].loss == 3);
}

TEST_CASE("report: what is wrong with a configuration that has no place in a file is said without one") {
  const Scratch scratch;
  const RunRecord run = read_run(write_run(scratch, "a", step_line(1, 5), "&a [x]\n"));
  REQUIRE(!run.problems.empty());
  CHECK(run.problems[0] == "config.yaml is damaged: anchors (&name) are not allowed");
}

TEST_CASE("report: losses at the ends of the number range and negative ones are drawn") {
  const Scratch scratch;
  const std::string page =
      page_of({read_run(write_run(scratch, "a", step_line(1, 1e308) + step_line(2, -1e308) + step_line(3, 1e-300) + step_line(4, 1)))});
  CHECK(page.find("92233720368547") == page.npos);
  CHECK(page.find("nan") == page.npos);
}

TEST_CASE("report: a missing directory and one that is not a run are refused, and missing files of a run are said") {
  const Scratch scratch;
  test::check_throws<MissingFileError>([&] { read_run(scratch / "nothing"); }, {"nothing: does not exist; expected a run directory"});
  scratch.write("text/file.txt", "x");
  test::check_throws<DataError>([&] { read_run(scratch / "text"); }, {"not a run"});
  test::check_throws<DataError>([&] { read_run(scratch / "text/file.txt"); }, {"not a run"});

  scratch.write("bare/metrics.jsonl", step_line(1, 5));
  const RunRecord bare = read_run(scratch / "bare");
  CHECK(bare.name() == "bare");
  CHECK(bare.problems == std::vector<std::string>{"config.yaml is missing", "environment.json is missing"});
  scratch.write("fresh/config.yaml", kRunYaml);
  scratch.write("fresh/environment.json", "{");
  const RunRecord fresh = read_run(scratch / "fresh");
  REQUIRE(fresh.problems.size() == 2);
  CHECK_THAT(fresh.problems[0], Catch::Matchers::Contains("environment.json: not valid JSON"));
  CHECK(fresh.problems[1] == "metrics.jsonl is missing");
  CHECK_THAT(page_of({fresh}), Catch::Matchers::Contains("No step has been recorded yet"));
  page_of({bare});
}

TEST_CASE("report: times of events are read back exactly, and other texts are refused") {
  const auto time = WallClock::time_point(std::chrono::milliseconds(1795425011123));
  CHECK(time_of_utc(utc_text(time)) == time);
  for (const char* text :
       {"", "2026-11-23", "2026-11-23T09:10:11Z", "2026-02-31T09:10:11.000Z", "2026-11-23T09:10:11.123Z ", "x", "1969-12-31T23:59:59.999Z",
        "2262-12-31T00:00:00.000Z", "9999-12-31T23:59:59.000Z", "2026-11-23T09:10:11.99999999999999999999Z"})
    CHECK(time_of_utc(text) == std::nullopt);
}

TEST_CASE("report: down-sampling keeps every minimum and maximum") {
  std::vector<double> values(100000, 1.0);
  values[777] = 50;
  values[5000] = -3;
  values[99999] = 7;
  for (size_t i = 20000; i < 21000; ++i) values[i] = kNaN;
  const std::vector<Bin> bins = bins_of(values.size(), 400);
  REQUIRE(bins.size() == 400);
  CHECK(bins.front().begin == 0);
  CHECK(bins.back().end == values.size());
  for (size_t i = 1; i < bins.size(); ++i) REQUIRE(bins[i].begin == bins[i - 1].end);
  const Envelope envelope = envelope_of(values, bins);
  CHECK(*std::ranges::max_element(envelope.high, {}, [](double v) { return std::isnan(v) ? -1e9 : v; }) == 50);
  CHECK(envelope.low[20] == -3);
  CHECK(envelope.high[399] == 7);
  CHECK(envelope.mean[3] == Approx(1 + 49.0 / 250));
  CHECK(std::isnan(envelope.mean[80]));
  CHECK(envelope.low[84] == 1);

  CHECK(bins_of(0, 400).empty());
  CHECK(bins_of(400, 400).size() == 400);
  CHECK(bins_of(401, 400).size() == 201);
  CHECK(mean_of_last(std::vector<double>{9, 1, kNaN, 3}, 2) == 2);
  CHECK(std::isnan(mean_of_last(std::vector<double>{kNaN}, 2)));
  CHECK(median_of(std::vector<double>{5, kNaN, 1, 3}) == 3);
}

TEST_CASE("report: ticks lie on the axis at round values with distinct labels") {
  const auto labels = [](const Axis& axis, int wanted) {
    std::vector<std::string> texts;
    for (const Tick& tick : ticks_of(axis, wanted)) texts.push_back(tick.label);
    return texts;
  };
  using Labels = std::vector<std::string>;
  CHECK(labels({"", Quantity::kCount, 0, 100000}, 5) == Labels{"0", "20k", "40k", "60k", "80k", "100k"});
  CHECK(labels({"", Quantity::kCount, 1, 6}, 7) == Labels{"1", "2", "3", "4", "5", "6"});
  CHECK(labels({"", Quantity::kCount, 0, 2e12}, 4) == Labels{"0", "500B", "1T", "1.5T", "2T"});
  CHECK(labels({"", Quantity::kNumber, 2.31, 2.39}, 4) == Labels{"2.32", "2.34", "2.36", "2.38"});
  CHECK(labels({"", Quantity::kNumber, -0.1, 0.25}, 4) == Labels{"-0.1", "0", "0.1", "0.2"});
  CHECK(labels({"", Quantity::kNumber, 0, 3e-4}, 3) == Labels{"0", "0.0001", "0.0002", "0.0003"});
  CHECK(labels({"", Quantity::kNumber, 1.9, 11, true}, 6) == Labels{"2", "3", "4", "5", "6", "8", "10"});
  CHECK(labels({"", Quantity::kNumber, 0.02, 3000, true}, 5) == Labels{"0.1", "1", "10", "100", "1e+03"});
  CHECK(labels({"", Quantity::kDuration, 0, 7200}, 4) == Labels{"0", "0.5 h", "1 h", "1.5 h", "2 h"});
  CHECK(labels({"", Quantity::kDuration, 0, 0.004}, 4) == Labels{"0", "1 ms", "2 ms", "3 ms", "4 ms"});
  CHECK(labels({"", Quantity::kClock, 1795424400, 1795424400 + 86400.0}, 4) == Labels{"12:00", "18:00", "Nov 24", "06:00"});
  CHECK(labels({"", Quantity::kPercent, 0, 0.45}, 4) == Labels{"0 %", "20 %", "40 %"});
  CHECK(labels({"", Quantity::kBytes, 0, 4.0 * 1024 * 1024 * 1024}, 4) == Labels{"0", "1 GiB", "2 GiB", "3 GiB", "4 GiB"});
  for (const Quantity quantity : {Quantity::kNumber, Quantity::kCount, Quantity::kDuration, Quantity::kClock, Quantity::kBytes, Quantity::kPercent})
    for (const bool log : {false, true})
      for (const double low : {1e-9, 0.037, 1.0, 812.0, 1.7e9})
        for (const double factor : {1.000001, 1.3, 7.0, 2e4}) {
          const Axis axis{"", quantity, low, low * factor, log};
          if (quantity == Quantity::kClock && low * factor > 1e11) continue;
          const std::vector<Tick> ticks = ticks_of(axis, 6);
          CAPTURE(static_cast<int>(quantity), log, low, factor, ticks.size());
          CHECK(ticks.size() <= 20);
          for (const Tick& tick : ticks) CHECK((axis.place(tick.value) > -1e-6 && axis.place(tick.value) < 1 + 1e-6));
        }
  // A range of zero, and one that is not finite, give an axis all the same.
  CHECK(fitted_axis("", Quantity::kNumber, 3, 3).low < 3);
  CHECK(fitted_axis("", Quantity::kNumber, kNaN, kNaN).high == Approx(1.04));
  CHECK_FALSE(fitted_axis("", Quantity::kNumber, -1, 100, true).log);
  CHECK(fitted_axis("", Quantity::kNumber, 2, 2, true).high > 2);
  // A logarithmic axis of counts does not begin at 0, however far its ends are apart.
  const Axis scales = fitted_axis("", Quantity::kCount, 64, 65536, true), counts = fitted_axis("", Quantity::kCount, 64, 65536);
  CHECK((scales.log && scales.low == 64 && scales.high == 65536));
  CHECK((!counts.log && counts.low == 0));
  CHECK(grouped(1234567) == "1,234,567");
  CHECK(grouped(-123) == "-123");
  CHECK(grouped(-123456) == "-123,456");
}

TEST_CASE("report: an axis of values that no run has gets few ticks or none, and ends") {
  constexpr double kLargest = std::numeric_limits<double>::max();
  for (const Quantity quantity : {Quantity::kNumber, Quantity::kCount, Quantity::kDuration, Quantity::kPercent, Quantity::kBytes})
    for (const auto& [low, high] : std::vector<std::pair<double, double>>{{-kLargest, kLargest},
                                                                          {0, kLargest},
                                                                          {-kLargest, -kLargest / 2},
                                                                          {1e308, std::nextafter(1e308, kLargest)},
                                                                          {1e17, 1e17 + 16},
                                                                          {5e-324, 1e-323}})
      for (const bool log : {false, true}) CHECK(ticks_of(fitted_axis("x", quantity, low, high, log), 6).size() < 1000);
}

TEST_CASE("report: busy times of ranks are kept in few bins in which a slow rank stays visible") {
  RankStepTimes times;
  for (int64_t step = 1; step <= 10000; ++step) {
    std::vector<double> seconds(6, 2.0 + 0.001 * static_cast<double>(step % 7));  // slow steps of all ranks do not show
    seconds[4] *= step > 5000 ? 1.5 : 1;
    seconds[5] = kNaN;
    times.add(step, seconds);
  }
  CHECK(times.count() == 10000);
  CHECK(times.bins().size() <= RankStepTimes::kMostBins);
  CHECK(times.bins().size() > RankStepTimes::kMostBins / 2);
  CHECK(times.imbalance() == Approx(0.5 * 0.5 / 1.1).epsilon(0.01));
  int64_t covered = 0, last = 0;
  for (const RankStepTimes::Bin& bin : times.bins()) {
    REQUIRE(bin.first_step == last + 1);
    last = bin.last_step;
    REQUIRE(bin.count[0] == bin.last_step - bin.first_step + 1);
    covered += bin.count[0];
    if (bin.first_step <= 5000 && bin.last_step > 5000) continue;
    REQUIRE(bin.ratio[4] / static_cast<double>(bin.count[4]) == Approx(bin.first_step > 5000 ? 1.5 : 1.0));
    REQUIRE(bin.ratio[1] / static_cast<double>(bin.count[1]) == Approx(1.0));
  }
  CHECK(covered == 10000);
  CHECK(times.ranks()[4].slowest == 10000);
  CHECK(times.ranks()[4].high == Approx(3.009));
  CHECK(times.ranks()[5].count == 0);

  RankStepTimes many;  // one slow rank of 1,000
  for (int64_t step = 1; step <= 300; ++step) {
    std::vector<double> seconds(1000, 1.0);
    seconds[777] = 1.3;
    many.add(step, seconds);
  }
  PlotNumbers numbers;
  const std::string html = heat_map_html(many, numbers);
  const json heat = json::parse(numbers.json())["plots"][0]["heat"];
  CHECK(heat["ranks_per_row"] == 8);
  REQUIRE(heat["rows"] == 125);
  const std::string cells = heat["cells"];
  const size_t columns = heat["steps"].size();
  CHECK(columns <= 120);
  CHECK(heat["steps"][columns - 1][1] == 300);
  for (size_t row = 0; row < 125; ++row) CHECK(cells[row * columns] == (row == 97 ? 'o' : 'Z'));  // 1.3 and 1.0 in steps of 0.02 from 0.5
  CHECK(count(html, "class=\"h7\"") == 1);
  CHECK(html.size() < 20000);
}

TEST_CASE("report: busy times of ranks are read from the events of a run") {
  const Scratch scratch;
  const std::string event = R"({"event":"ranks","step":STEP,"steps":3,"step_seconds":[2.0,2.0,2.0],"busy_seconds":[1.0,1.5,null]})";
  const RunRecord run = read_run(write_run(scratch, "a",
                                           step_line(1, 5.5) + replaced(event, "STEP", "3") + "\n" + replaced(event, "STEP", "6") + "\n" +
                                               R"({"event":"ranks","step":7,"steps":1,"step_seconds":[2.0,2.0,2.0]})" + "\n" +
                                               R"({"event":"ranks","step":8,"steps":99,"busy_seconds":["a",1.5,{}]})" + "\n"));
  CHECK(run.skipped_lines == 0);
  CHECK(run.events.empty());  // they are no lines of the time line
  CHECK(run.ranks.count() == 3);
  CHECK(run.ranks.imbalance() == Approx(2 * 0.4 / 3));
  REQUIRE(run.ranks.bins().size() == 3);
  CHECK(run.ranks.bins()[1].first_step == 4);
  CHECK(run.ranks.bins()[1].last_step == 6);
  CHECK(run.ranks.bins()[2].first_step == 8);  // of a number of steps that cannot be right, the last one
  REQUIRE(run.ranks.ranks().size() == 3);
  CHECK(run.ranks.ranks()[0].seconds == 2.0);
  CHECK(run.ranks.ranks()[1].slowest == 3);
  CHECK(run.ranks.ranks()[2].count == 0);
  const std::string page = page_of({run});
  CHECK(count(page, "3 ranks, 3 measurements; the imbalance") == 1);
}

TEST_CASE("report: of more than eight ranks the slowest eight are listed, and of more than twenty traced steps the newest twenty") {
  const Scratch scratch;
  std::string metrics;
  for (int step = 1; step <= 25; ++step)
    metrics +=
        step_line(step, 3) + concat(R"({"event":"ranks","step":)", step, R"(,"steps":1,"busy_seconds":[1,1.1,1.2,1.3,1.4,1.5,1.6,1.7,1.8,1.9]})",
                                    "\n", R"({"event":"exposed","step":)", step, R"(,"step_seconds":0.5,"compute":0.3})", "\n");
  const RunRecord run = read_run(write_run(scratch, "a", metrics));
  const std::string page = page_of({run});
  const auto row = [&](int rank) { return page.find(concat("<th scope=\"row\">rank ", rank, "</th><td>")); };
  CHECK(row(9) < row(8));
  CHECK(row(3) < row(2));
  CHECK(row(2) != page.npos);
  CHECK(row(1) == page.npos);
  const Bars causes = cause_bars(run).value();
  REQUIRE(causes.rows.size() == 20);
  CHECK(causes.rows.front().label == "step 6");
  CHECK(causes.rows.back().label == "step 25");
}

TEST_CASE("report: texts of a run cannot leave their place in the page") {
  const Scratch scratch;
  const std::string hostile = "</title><script>alert('1')</script>&\"<img src=x onerror=alert(2)>\x1b[31m";
  const std::string quoted = json(hostile).dump(-1, ' ', true);
  const std::string yaml =
      replaced(kRunYaml, "name: NAME", "name: \"</title><script>alert('1')</script>&\\\"<img src=x onerror=alert(2)>\\x1b[31m\"");
  std::string metrics = concat(R"({"event":"start","step":0,"steps":4,"layout":{)", quoted, ":1}}\n");
  metrics += concat(R"({"event":)", quoted, R"(,"field":)", quoted, "}\n");
  metrics += concat(R"({"event":"sample","step":1,"prompt":)", quoted, R"(,"text":)", quoted, "}\n");
  metrics += concat(R"({"event":"memory","step":2,"forecast":[{"parameters":5,"peak":9}],"measured":[{"parameters":5,"peak":9,)", quoted, ":3}]}\n");
  metrics += concat(R"({"event":"exposed","step":2,)", quoted, ":0.5}\n");
  metrics += step_line(1, 3) + step_line(2, 2);
  metrics += concat(R"({"step":2,"validation_loss":2.5,"validation":{)", quoted, ":2.5}}\n");
  const std::string a = write_run(scratch, "a", metrics, yaml), b = write_run(scratch, "b", metrics, yaml);
  scratch.write("a/environment.json", concat("{\"version\": ", quoted, ", ", json(hostile + "key").dump(-1, ' ', true), ": 1}"));
  for (const std::vector<std::string>& paths : {std::vector{a}, {a, b}}) {
    std::vector<RunRecord> runs;
    for (const std::string& path : paths) runs.push_back(read_run(path));
    const std::string page = page_of(runs);
    CHECK(count(page, "<script") == 2);  // the numbers and the page's own script
    CHECK(count(page, "</script") == 2);
    CHECK(count(page, "<img") == 0);
    CHECK(count(page, "alert(2)>") == 0);
    CHECK(count(page, "\x1b") == 0);
    CHECK(count(page, "&lt;img src=x") > 5);
    CHECK(count(page, "</title>") == 1);
    CHECK_NOTHROW(numbers_of(page));
    for (const NamedPlot& plot : all_plots(views_of(runs))) CHECK(count(plot_svg(plot.plot), "<script") == 0);
    for (const Bars& bars : memory_bars(runs[0])) CHECK(count(bars_svg(bars), "<script") == 0);
    CHECK(count(bars_svg(*cause_bars(runs[0])), "<script") == 0);
  }
  CHECK(markup("a<b>&\"'\xff") == "a&lt;b&gt;&amp;&quot;&#39;\\xff");
}

TEST_CASE("report: the page asks for nothing, and has its numbers in few hundred kilobytes for 100,000 steps") {
  const Scratch scratch;
  std::string metrics = R"({"event":"start","step":0,"steps":100000,"forecast":{"step_seconds":0.4,"step_low":0.3,"step_high":0.6}})"
                        "\n";
  for (int64_t step = 1; step <= 100000; ++step) metrics += step_line(step, 2 + 8.0 / static_cast<double>(step) + (step == 70001 ? 20 : 0));
  const RunRecord run = read_run(write_run(scratch, "long", metrics));
  const std::string page = page_of({run});
  CHECK(page.size() < 300000);
  for (const char* outside : {"http:", "https:", "src=", "url(", "@import", "//cdn"}) {
    CAPTURE(outside);
    CHECK(count(page, outside) == 0);
  }
  CHECK(count(page, "href=") == count(page, "href=\"data:,\""));
  CHECK_THAT(page, Catch::Matchers::Contains("default-src 'none'"));
  const json numbers = numbers_of(page);
  bool spike = false;
  for (const json& array : numbers["arrays"]) {
    CHECK(array.size() <= 400);
    for (const json& value : array) spike = spike || (value.is_number() && std::abs(value.get<double>() - 22) < 0.01);
  }
  CHECK(spike);
  for (const json& plot : numbers["plots"])
    for (const json& curve : plot["curves"])
      CHECK(numbers["arrays"][curve["x"].get<size_t>()].size() == numbers["arrays"][curve["y"].get<size_t>()].size());
  CHECK_THAT(page, Catch::Matchers::Contains("forecast"));
}

TEST_CASE("report: loss is drawn over steps, tokens and training time, with restarts where they were") {
  const Scratch scratch;
  std::string metrics = R"({"event":"start","step":0,"steps":6)" + timed(0, 0) + "}\n";
  for (int64_t step = 1; step <= 3; ++step) metrics += step_line(step, 6 - static_cast<double>(step), timed(0, step));
  metrics += R"({"event":"start","step":3,"steps":6)" + timed(5, 0) + "}\n";
  for (int64_t step = 4; step <= 6; ++step) metrics += step_line(step, 6 - 0.5 * static_cast<double>(step), timed(5, step));
  metrics += R"({"step":6,"validation_loss":2.75)" + timed(5, 9) + "}\n";
  const std::vector<RunRecord> runs{read_run(write_run(scratch, "a", metrics))};
  const std::vector<RunView> views = views_of(runs);
  const auto plot = [&](ProgressAxis axis) { return loss_plot(views, axis).value(); };
  CHECK(plot(ProgressAxis::kSteps).curves[0].x == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(plot(ProgressAxis::kTokens).curves[0].x == std::vector<double>{128, 256, 384, 512, 640, 768});
  CHECK(plot(ProgressAxis::kTime).curves[0].x == std::vector<double>{0.5, 1, 1.5, 2, 2.5, 3});
  CHECK(plot(ProgressAxis::kSteps).curves[0].y == std::vector<double>{5, 4, 3, 4, 3.5, 3});
  REQUIRE(plot(ProgressAxis::kTokens).marks.size() == 1);
  CHECK(plot(ProgressAxis::kTokens).marks[0].x == 384);
  REQUIRE(plot(ProgressAxis::kTokens).curves.size() == 2);
  CHECK(plot(ProgressAxis::kTokens).curves[1].x == std::vector<double>{768});
  CHECK(plot(ProgressAxis::kTime).curves[1].x == std::vector<double>{3});
  CHECK(plot(ProgressAxis::kTime).curves[1].y == std::vector<double>{2.75});

  const std::vector<Job> jobs = jobs_of(runs[0]);
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].end - jobs[0].begin == 3);
  CHECK(jobs[1].begin - jobs[0].begin == 300);
  CHECK(jobs[1].end - jobs[1].begin == 9);
  CHECK(jobs[1].step == 3);
  const Plot line = time_line_plot(views[0]).value();
  REQUIRE(line.shades.size() == 1);
  CHECK(line.shades[0].begin == jobs[0].end);
  CHECK(line.shades[0].end == jobs[1].begin);
}

TEST_CASE("report: steps whose tokens or time are not recorded are left out of the curves over them") {
  const Scratch scratch;
  const std::string metrics = step_line(1, 5) +
                              R"({"step":2,"loss":4.5})"
                              "\n" +
                              R"({"step":3,"loss":null,"tokens":384})"
                              "\n" +
                              step_line(4, 4, timed(0, 4));
  const std::vector<RunRecord> runs{read_run(write_run(scratch, "a", metrics))};
  const std::vector<RunView> views = views_of(runs);
  CHECK(loss_plot(views, ProgressAxis::kSteps)->curves[0].x == std::vector<double>{1, 2, 3, 4});
  CHECK(loss_plot(views, ProgressAxis::kTokens)->curves[0].x == std::vector<double>{128, 384, 512});
  CHECK(std::isnan(loss_plot(views, ProgressAxis::kTokens)->curves[0].y[1]));
  CHECK(time_line_plot(views[0])->curves[0].y == std::vector<double>{4});
  const std::string page = page_of(runs);
  for (const char* wrong : {"nan", "inf", "-9223372036854775808"}) {
    CAPTURE(wrong);
    CHECK(count(page.substr(page.find("<main>"), page.find("<script") - page.find("<main>")), wrong) == 0);
  }
}

/// The first line of a job of 9 steps, with the forecast of its layout.
static std::string forecast_start(int64_t step, double seconds) {
  return concat(R"({"event":"start","step":)", step, R"(,"steps":9,"forecast":{"step_seconds":)", seconds, R"(,"step_low":)", 0.5 * seconds,
                R"(,"step_high":)", 2 * seconds, "}}\n");
}

TEST_CASE("report: throughput is drawn beside the forecast of each job's layout") {
  const Scratch scratch;
  std::string metrics = forecast_start(0, 0.25);
  for (int64_t step = 1; step <= 9; ++step) {
    if (step == 4) metrics += forecast_start(3, 0.25);  // a restart of the same layout
    if (step == 7) metrics += forecast_start(6, 0.5);   // another layout
    metrics += step_line(step, 3);
  }
  const std::vector<RunRecord> runs{read_run(write_run(scratch, "a", metrics))};
  const std::vector<RunView> views = views_of(runs);
  const Plot plot = throughput_plot(views, ProgressAxis::kTokens).value();
  REQUIRE(plot.bands.size() == 2);
  CHECK(plot.bands[0].name == "forecast");
  CHECK(plot.bands[0].low == 256);  // 128 tokens a step
  CHECK(plot.bands[0].value == 512);
  CHECK(plot.bands[0].high == 1024);
  CHECK(plot.bands[0].end == 6 * 128);
  CHECK(plot.bands[1].begin == 6 * 128);
  CHECK(plot.bands[1].value == 256);
  CHECK((plot.y.low == 0 && plot.y.high > 1024));
  const std::vector<Fact> facts = facts_of(views[0]);
  CHECK(std::ranges::find(facts, std::string("tokens per second"), &Fact::name)->remark == "median; 100.0 % of the forecast, 256");
}

TEST_CASE("report: the speed is compared with the newest forecast over the steps that were made with it") {
  const Scratch scratch;
  // 100 tokens/s in the six steps of the first layout, 200 in the three of the second, whose forecast is 256.
  std::string metrics = forecast_start(0, 0.25);
  for (int64_t step = 1; step <= 9; ++step) {
    if (step == 7) metrics += forecast_start(6, 0.5);
    metrics += replaced(replaced(step_line(step, 3), "256.0", step < 7 ? "100.0" : "200.0"), R"("step_seconds":0.5)",
                        step < 7 ? R"("step_seconds":1.28)" : R"("step_seconds":0.64)");
  }
  const std::vector<RunRecord> runs{read_run(write_run(scratch, "a", metrics))};
  const std::vector<Fact> facts = facts_of(views_of(runs)[0]);
  const Fact& speed = *std::ranges::find(facts, std::string("tokens per second"), &Fact::name);
  CHECK(speed.text == "100");
  CHECK(speed.remark == "median; 78.1 % of the forecast, 256");
}

TEST_CASE("report: suspected data ranks are counted over the steps of the history") {
  const Scratch scratch;
  const auto with = [](const std::string& suspects) { return concat(",\"suspects\":{", suspects, "}"); };
  std::vector<RunRecord> runs;
  runs.push_back(read_run(write_run(scratch, "a",
                                    step_line(1, 5, with("")) + step_line(2, 5, with(R"("7":null,"3":4.5)")) + step_line(3, 5, with(R"("1":9)")) +
                                        step_line(3, 5, with(R"("3":12.25)")) + step_line(4, 5, with(R"("3":2.5)")) +
                                        step_line(4, 5, with(R"("3":1.5)")) + step_line(5, 5, with(R"("x":3,"-1":3,"12345678901":3)")))));
  const std::vector<Suspect> suspects = suspects_of(runs[0]);
  REQUIRE(suspects.size() == 2);  // step 3 was made again, and what is damaged is not read
  CHECK((suspects[0].rank == 3 && suspects[0].steps == 3 && suspects[0].farthest == 12.25 && suspects[0].left_out == 0));
  CHECK((suspects[1].rank == 7 && suspects[1].steps == 1 && suspects[1].farthest == 0 && suspects[1].left_out == 1));
  const std::vector<Fact> facts = facts_of(views_of(runs)[0]);
  const auto fact = std::ranges::find(facts, std::string("suspected data ranks"), &Fact::name);
  CHECK(fact->text == "2");
  CHECK(fact->remark ==
        "data rank 3 in 3 of 5 steps, up to 12.25 median distances away; data rank 7 in 1 of 5 steps, without a finite gradient in 1");
}

TEST_CASE("report: spikes do not flatten a curve, and wide ranges are logarithmic") {
  const Scratch scratch;
  const auto loss_axis = [&](const std::string& name, const auto& loss) {
    std::string metrics;
    for (int64_t step = 1; step <= 8000; ++step) metrics += step_line(step, loss(step));
    const std::vector<RunRecord> runs{read_run(write_run(scratch, name, metrics))};
    return loss_plot(views_of(runs), ProgressAxis::kSteps)->y;
  };
  const Axis spiked = loss_axis("spiked", [](int64_t step) { return 2 + 1.0 / static_cast<double>(step) + (step == 4444 ? 500 : 0); });
  CHECK(spiked.high < 150);
  const Axis falling = loss_axis("falling", [](int64_t step) { return step < 300 ? 11.0 : 2.5; });
  CHECK(falling.log);
  CHECK((falling.low > 1.5 && falling.low < 2.5 && falling.high > 11 && falling.high < 20));
  const Axis flat = loss_axis("flat", [](int64_t step) { return 3.0 - 1e-4 * static_cast<double>(step); });
  CHECK_FALSE(flat.log);
  CHECK((flat.low > 2.1 && flat.high < 3.1));
  const Axis constant = loss_axis("constant", [](int64_t) { return 3.0; });
  CHECK((constant.low < 3 && constant.high > 3));
}

TEST_CASE("report: values that differ from the defaults are marked, also where the default depends on other keys") {
  const Scratch scratch;
  const auto row = [&](const std::vector<ConfigRow>& rows, const std::string& key) { return *std::ranges::find(rows, key, &ConfigRow::key); };
  const std::string other = replaced(replaced(kRunYaml, "kv_heads: 4", "kv_heads: 2"), "seed: 1234", "seed: 7") + "future:\n  key: [a, b]\n";
  const RunRecord a = read_run(write_run(scratch, "a", "")), b = read_run(write_run(scratch, "b", "", other));
  const RunRecord* const both[] = {&a, &b};
  const std::vector<ConfigRow> rows = config_rows(both);
  CHECK_FALSE(row(rows, "run.seed").differs[0]);
  CHECK(row(rows, "run.seed").differs[1]);
  CHECK_FALSE(row(rows, "run.seed").same);
  CHECK(row(rows, "run.seed").default_text == "1234");
  CHECK_FALSE(row(rows, "run.name").differs[0]);
  CHECK_FALSE(row(rows, "model.kv_heads").differs[0]);  // auto is heads
  CHECK(row(rows, "model.kv_heads").default_text == "auto (4)");
  CHECK(row(rows, "model.hidden_size").differs[0]);
  CHECK(row(rows, "training.precision").same);
  CHECK_FALSE(row(rows, "training.precision").differs[0]);
  CHECK(row(rows, "data.train").differs[0]);
  CHECK(row(rows, "future.key").values == std::vector<std::string>{"", "[a, b]"});
  CHECK(rows.back().key == "future.key");
  const std::string page = page_of({a, b});
  CHECK_THAT(page, Catch::Matchers::Contains("What differs in the configuration"));
  // auto is worked out for each run: 8 of 8 heads are the default of the second one.
  const RunRecord wide =
      read_run(write_run(scratch, "wide", "", replaced(replaced(kRunYaml, "kv_heads: 4", "kv_heads: 8"), "  heads: 4", "  heads: 8")));
  const RunRecord* const narrow_and_wide[] = {&a, &wide};
  const ConfigRow kv_heads = row(config_rows(narrow_and_wide), "model.kv_heads");
  CHECK(kv_heads.values == std::vector<std::string>{"4", "8"});
  CHECK(kv_heads.differs == std::vector<bool>{false, false});
  // A later run that says auto itself has the default, whatever that is in the first one.
  const RunRecord left_open = read_run(write_run(scratch, "left-open", "", replaced(kRunYaml, "kv_heads: 4", "kv_heads: auto")));
  const RunRecord* const given_and_open[] = {&wide, &left_open};
  CHECK(row(config_rows(given_and_open), "model.kv_heads").differs == std::vector<bool>{false, false});
}

TEST_CASE("report: of more evaluations than rows the last of each group is shown, and so that of the end") {
  const Scratch scratch;
  std::string metrics = step_line(1, 5);
  for (int step = 1; step <= 41; ++step) metrics += concat(R"({"step":)", step, R"(,"validation_loss":)", 4 + step / 64.0, "}\n");
  const std::string page = page_of({read_run(write_run(scratch, "a", metrics))});
  CHECK_THAT(page, Catch::Matchers::Contains("<tr><th scope=\"row\">41</th><td>"));
}

TEST_CASE("report: CSV has every step with its exact figures, and names that cannot become formulas") {
  const Scratch scratch;
  const std::string metrics = step_line(1, 5.5, timed(0, 1)) + R"({"step":2,"loss":0.30000000000000004,"grad_norm":null,"tokens":256})" + "\n" +
                              R"({"step":2,"validation_loss":1.25})" + "\n";
  const std::vector<RunRecord> runs{read_run(write_run(scratch, "a", metrics, replaced(kRunYaml, "name: NAME", "name: '=cmd()\"x'")))};
  CHECK(
      csv_of(views_of(runs)) ==
      "run,step,time,elapsed_seconds,loss,grad_norm,learning_rate,tokens,step_seconds,tokens_per_second,model_tflops,mfu,loss_scale,validation_loss\n"
      "\"'=cmd()\"\"x\",1,2026-11-23T09:10:11.000Z,0.5,5.5,0.5,0.001,128,0.5,256,0.25,,,\n"
      "\"'=cmd()\"\"x\",2,,0.5,0.30000000000000004,,,256,,,,,,1.25\n");
}

TEST_CASE("report: runs of equal names are told apart by their directories") {
  const Scratch scratch;
  const std::string yaml = replaced(kRunYaml, "name: NAME", "name: same");
  const std::vector<RunRecord> runs{read_run(write_run(scratch, "a", "", yaml)), read_run(write_run(scratch, "b", "", yaml))};
  CHECK(labels_of(runs) == std::vector<std::string>{scratch / "a", scratch / "b"});
  CHECK(labels_of(std::span(runs).first(1)) == std::vector<std::string>{"same"});
  CHECK(read_run((scratch / "a") + "/").directory == scratch / "a");
}

namespace {

/// A run of steps of 1 s that end from 1001 on, each with its number as its loss and 128 tokens.
RunRecord run_in_memory(int64_t steps) {
  RunRecord run;
  run.directory = "runs/x";
  for (int64_t number = 1; number <= steps; ++number) {
    const auto value = static_cast<double>(number);
    run.steps.step.push_back(number);
    run.steps.time.push_back(1000 + value);
    run.steps.elapsed_seconds.push_back(value);
    const std::array<double, kFigureNames.size()> figures{value, 1, 0.001, 128 * value, 1, 128, 1, kNaN, kNaN};
    for (size_t i = 0; i < figures.size(); ++i) run.steps.figures[i].push_back(figures[i]);
    run.steps.suspects.emplace_back();
  }
  return run;
}

std::vector<double>& column_of(RunRecord& run, Figure figure) { return run.steps.figures[static_cast<size_t>(figure)]; }

EventRecord event_of(const std::string& kind, int64_t step, double time = kNaN,
                     const nlohmann::ordered_json& fields = nlohmann::ordered_json::object()) {
  return {kind, step, time, fields};
}

Fact fact_of(const RunRecord& run, const std::string& name) {
  const std::vector<Fact> facts = facts_of(RunView(run, "x"));
  const auto found = std::ranges::find(facts, name, &Fact::name);
  REQUIRE(found != facts.end());
  return *found;
}

}  // namespace

TEST_CASE("report: the status of a run is the strongest word that its events allow") {
  using Kinds = std::vector<std::string>;
  for (const auto& [steps, wanted, kinds, status] :
       std::vector<std::tuple<int64_t, int64_t, Kinds, std::string>>{{0, 0, {}, "no steps"},
                                                                     {0, 6, {}, "no steps"},
                                                                     {3, 0, {}, "unfinished"},
                                                                     {5, 6, {}, "unfinished"},
                                                                     {6, 6, {}, "finished"},
                                                                     {7, 6, {}, "finished"},
                                                                     {5, 6, {"early_stop"}, "stopped early"},
                                                                     {6, 6, {"early_stop"}, "finished"},
                                                                     {5, 6, {"early_stop", "anomaly_stop"}, "stopped at an anomaly"},
                                                                     {6, 6, {"anomaly_stop"}, "stopped at an anomaly"},
                                                                     {6, 6, {"diverged", "anomaly_stop", "early_stop"}, "diverged"}}) {
    RunRecord run = run_in_memory(steps);
    if (wanted > 0)
      for (const int64_t first : {wanted - 1, wanted}) run.events.push_back(event_of("start", 0, kNaN, {{"steps", first}}));  // the last one counts
    for (const std::string& kind : kinds) run.events.push_back(event_of(kind, steps));
    CAPTURE(steps, wanted, kinds);
    CHECK(fact_of(run, "status").text == status);
    CHECK(fact_of(run, "steps").text == std::to_string(steps));
    CHECK(fact_of(run, "steps").remark == (wanted > 0 ? "of 6" : ""));
    CHECK(fact_of(run, "restarts").text == (wanted > 0 ? "1" : "0"));
  }
}

TEST_CASE("report: the training loss is the mean of a hundredth of the steps, of ten at least and of a thousand at most") {
  for (const auto& [steps, remark] : std::vector<std::pair<int64_t, std::string>>{{0, ""},
                                                                                  {1, "of the last step"},
                                                                                  {2, "mean of the last 2 steps"},
                                                                                  {10, "mean of the last 10 steps"},
                                                                                  {11, "mean of the last 10 steps"},
                                                                                  {1099, "mean of the last 10 steps"},
                                                                                  {1100, "mean of the last 11 steps"},
                                                                                  {99'999, "mean of the last 999 steps"},
                                                                                  {100'000, "mean of the last 1,000 steps"},
                                                                                  {100'100, "mean of the last 1,000 steps"}})
    CHECK(fact_of(run_in_memory(steps), "training loss").remark == remark);
  CHECK(fact_of(run_in_memory(0), "training loss").text == "–");
  CHECK(fact_of(run_in_memory(2), "training loss").text == "1.5");
  CHECK(fact_of(run_in_memory(11), "training loss").text == "6.5");  // steps 2 to 11
  CHECK(fact_of(run_in_memory(1100), "training loss").text == "1095");
}

TEST_CASE("report: the best evaluation, the wall clock and the peaks of memory are those of the right one of several") {
  RunRecord run = run_in_memory(2);
  CHECK(fact_of(run, "best validation loss").text == "–");
  for (const auto& [step, loss] : {std::pair(5, kNaN), {10, 3.5}, {15'000, 3.25}, {20'000, 3.25}, {25'000, 9.0}})
    run.evaluations.push_back({step, loss, {}, kNaN});
  CHECK(fact_of(run, "best validation loss").text == "3.25");
  CHECK(fact_of(run, "best validation loss").remark == "at step 15,000");

  // Two steps of 1 s, and 2 s from the start on; steps that took more than all of the time are all of it; an event 8 s later.
  CHECK(fact_of(run, "wall-clock time").text == "–");
  CHECK(fact_of(run, "goodput").text == "–");
  run.evaluations.clear();
  run.events.push_back(event_of("start", 0, 1000));
  CHECK(fact_of(run, "wall-clock time").text == "2 s");
  for (double& seconds : run.steps.elapsed_seconds) seconds *= 2;
  CHECK(fact_of(run, "wall-clock time").remark == "from the first start to the last event; 100.0 % of it in steps");
  CHECK(fact_of(run, "training time").text == "4 s");
  run.events.push_back(event_of("note", 2, 1010));
  CHECK(fact_of(run, "wall-clock time").text == "10 s");
  CHECK(fact_of(run, "wall-clock time").remark == "from the first start to the last event; 40.0 % of it in steps");
  run.events.front().time = 1010;
  CHECK(fact_of(run, "wall-clock time").remark == "from the first start to the last event");  // of no time there are no shares

  const auto peaks = [](const std::vector<int>& values) {
    nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
    for (const int value : values) ranks.push_back({{"peak", value}});
    return ranks;
  };
  const auto titles = [&](const std::vector<int>& forecast, const std::vector<int>& measured) {
    RunRecord one = run_in_memory(1);
    one.events.push_back(event_of("memory", 1, kNaN, {{"forecast", peaks(forecast)}, {"measured", peaks(measured)}}));
    std::vector<std::string> all;
    for (const Bars& bars : memory_bars(one)) all.push_back(bars.title);
    return all;
  };
  CHECK(titles({1}, {2}) == std::vector<std::string>{"Peak memory"});
  CHECK(titles({1, 1}, {2}) == std::vector<std::string>{"Peak memory of pipeline rank 0"});
  CHECK(titles({1, 1, 1}, {9, 8, 7}).size() == 3);
  CHECK(titles({9, 1, 1, 1, 1}, {5, 9, 4, 7, 8}) ==
        std::vector<std::string>{"Peak memory of pipeline rank 1", "Peak memory of pipeline rank 3", "Peak memory of pipeline rank 4"});
}

TEST_CASE("report: causes of traced steps have one color in all of them, and of more than nine the first nine are drawn") {
  RunRecord run = run_in_memory(2);
  nlohmann::ordered_json fields{{"step_seconds", 99}, {"a_b_c", 1.0}, {"zero", 0}, {"text", "x"}};
  for (int cause = 1; cause <= 9; ++cause) fields[concat("c", cause)] = cause;
  run.events = {event_of("exposed", 1, kNaN, fields), event_of("exposed", 2, kNaN, {{"c9", 4}, {"c8", 2.5}, {"a_b_c", 3}})};
  const Bars bars = cause_bars(run).value();
  REQUIRE(bars.key.size() == 9);
  CHECK(bars.key[0] == std::pair(size_t{0}, std::string("a b c")));
  CHECK(bars.key[8] == std::pair(size_t{8}, std::string("c8")));
  REQUIRE(bars.rows.size() == 2);
  CHECK(bars.rows[0].bars[0].segments.size() == 9);
  const std::vector<Segment>& second = bars.rows[1].bars[0].segments;
  REQUIRE(second.size() == 2);
  CHECK((second[0].color == 8 && second[0].value == 2.5));
  CHECK((second[1].color == 0 && second[1].value == 3));
}

TEST_CASE("report: a suspected rank has distances and steps without one side by side, and ranks of equal counts their order") {
  RunRecord run = run_in_memory(3);
  run.steps.suspects = {{{4, 2.5}, {2, kNaN}}, {{4, kNaN}, {2, 1.5}}, {{9, 3.0}}};
  CHECK(fact_of(run, "suspected data ranks").remark ==
        "data rank 2 in 2 of 3 steps, up to 1.5 median distances away, without a finite gradient in 1; data rank 4 in 2 of 3 steps, up to 2.5 median "
        "distances away, without a finite gradient in 1; data rank 9 in 1 of 3 steps, up to 3 median distances away");
}

TEST_CASE("report: bins, medians and means of the last values at their boundaries") {
  const std::vector<double> values{10, 11, 12, 13, 14, 15};
  CHECK(middles_of(values, std::vector<Bin>{{0, 3}, {3, 5}, {5, 6}}) == std::vector<double>{11, 13, 15});
  CHECK(median_of(std::vector<double>{4, 1, 3, 2}) == 3);
  CHECK(std::isnan(mean_of_last(values, 0)));
  CHECK(mean_of_last(values, 3) == 14);
  CHECK(mean_of_last(values, 99) == 12.5);

  RankStepTimes times;
  for (int64_t step = 1; step <= 240; ++step) times.add(step, std::vector<double>{1, 2, 4, 8});
  CHECK(times.bins().size() == 240);
  CHECK(times.ranks()[0].ratio == Approx(240 / 4.0));  // of two medians the larger one
  CHECK(times.imbalance() == Approx((8 - 1) / 3.75));
  times.add(241, std::vector<double>{1, 2, 4, 8});
  REQUIRE(times.bins().size() == 121);
  CHECK((times.bins()[0].first_step == 1 && times.bins()[0].last_step == 2 && times.bins()[119].last_step == 240));
  CHECK((times.bins()[120].first_step == 241 && times.bins()[120].count[3] == 1 && times.bins()[119].count[3] == 2));
  times.add(242, std::vector<double>{1, 2, 4, 8});
  times.add(243, std::vector<double>{1, 2, 4, 8});
  CHECK(times.bins().size() == 122);

  RankStepTimes growing;  // ranks that join, and two that are equally slow
  growing.add(1, std::vector<double>{1, 2});
  growing.add(2, std::vector<double>{1, 1, 1, 5});
  growing.add(3, std::vector<double>{2, 2});
  REQUIRE(growing.ranks().size() == 4);
  std::vector<std::vector<double>> figures;
  for (const RankStepTimes::Rank& one : growing.ranks())
    figures.push_back({static_cast<double>(one.count), one.seconds, one.low, one.high, static_cast<double>(one.slowest)});
  CHECK(figures == std::vector<std::vector<double>>{{3, 4, 1, 2, 1}, {3, 5, 1, 2, 2}, {1, 1, 1, 1, 0}, {1, 5, 5, 5, 1}});
}

TEST_CASE("report: axes are logarithmic from a factor of three of losses and ten of norms on, and other figures begin at zero") {
  const auto axis_of = [](Figure figure, double low, double high) {
    RunRecord run = run_in_memory(2);
    column_of(run, figure) = {high, low};
    const std::vector<RunView> views{RunView(run, "x")};
    return figure == Figure::kLoss ? loss_plot(views, ProgressAxis::kSteps)->y : figure_plot(views, figure, ProgressAxis::kSteps)->y;
  };
  CHECK(axis_of(Figure::kLoss, 2, 6).log);
  CHECK_FALSE(axis_of(Figure::kLoss, 2, 5.99).log);
  CHECK(axis_of(Figure::kLoss, 2, 6).label == "loss in nats per token");
  CHECK(axis_of(Figure::kGradNorm, 1, 10).log);
  CHECK_FALSE(axis_of(Figure::kGradNorm, 1, 9.99).log);
  CHECK(axis_of(Figure::kGradNorm, 8, 9).low > 7);
  CHECK(axis_of(Figure::kGradNorm, 8, 9).label == "before clipping");
  for (const Figure figure : {Figure::kLearningRate, Figure::kMfu, Figure::kModelTflops}) {
    const Axis axis = axis_of(figure, 0.1, 1000);
    CHECK((axis.low == 0 && axis.high > 1000 && !axis.log && axis.label.empty()));
    CHECK(axis_of(figure, 900, 1000).low == 0);
  }
}

TEST_CASE("report: of several runs each has its own curves, restarts, forecasts and file names") {
  std::vector<RunRecord> runs{run_in_memory(60), run_in_memory(60)};
  const auto axis = ProgressAxis::kTokens;
  // The second run has 200 tokens a step, which takes 4 s; the first 100 a second in steps of 1 s. Forecasts may differ in one figure only.
  for (int64_t step = 1; step <= 60; ++step) {
    const auto i = static_cast<size_t>(step - 1);
    column_of(runs[0], Figure::kTokensPerSecond)[i] = 100;
    column_of(runs[1], Figure::kTokensPerSecond)[i] = 50;
    column_of(runs[1], Figure::kStepSeconds)[i] = 4;
  }
  column_of(runs[1], Figure::kLossScale)[3] = 8;
  runs[1].ranks.add(1, std::vector<double>{1, 2});
  const auto forecast = [](double middle, double low, double high) {
    return nlohmann::ordered_json{{"forecast", {{"step_seconds", middle}, {"step_low", low}, {"step_high", high}}}};
  };
  runs[0].events = {event_of("start", 0, 1000, forecast(2, 1, 4)), event_of("start", 2, 1002, forecast(2, 0.5, 4))};
  runs[1].events = {event_of("start", 0, 1000, forecast(4, 2, 8)), event_of("start", 1, 1001, forecast(4, 2, 16)),
                    event_of("start", 3, 1003, forecast(4, 2, 16)), event_of("start", 4, 1004, forecast(0, 2, 16)),
                    event_of("start", 5, 1005, {{"forecast", {{"step_seconds", 4}, {"step_low", 2}}}})};
  const std::vector<RunView> views{RunView(runs[0], "a"), RunView(runs[1], "b")};
  const Plot plot = throughput_plot(views, axis).value();
  struct Expected {
    std::string name;
    size_t run;
    double low, value, high, begin, end;
  };
  const double left = plot.x.low, right = plot.x.high;
  const std::vector<Expected> bands{{"a, forecast", 0, 25, 50, 100, left, 2 * 128},
                                    {"", 0, 25, 50, 200, 2 * 128, right},
                                    {"b, forecast", 1, 25, 50, 100, left, 128},
                                    {"", 1, 12.5, 50, 100, 128, right}};
  REQUIRE(plot.bands.size() == bands.size());
  for (size_t i = 0; i < bands.size(); ++i) {
    const Band& band = plot.bands[i];
    const Expected& expected = bands[i];
    CAPTURE(i, band.low, band.value, band.high, band.begin, band.end);
    CHECK((band.name == expected.name && band.run == expected.run && band.color == expected.run));
    CHECK((band.low == expected.low && band.value == expected.value && band.high == expected.high));
    CHECK((band.begin == expected.begin && band.end == expected.end));
  }
  CHECK((plot.y.low == 0 && plot.y.high == Approx(200 * 1.04)));
  CHECK((plot.curves[0].name == "a" && plot.curves[1].name == "b"));
  const Plot scale = figure_plot(views, Figure::kLossScale, axis).value();
  REQUIRE(scale.curves.size() == 1);
  CHECK((scale.curves[0].run == 1 && scale.curves[0].color == 1 && scale.curves[0].name == "b"));
  CHECK((scale.x.label == "tokens" && figure_plot(views, Figure::kLossScale, ProgressAxis::kTime)->x.label == "training time"));
  std::vector<std::string> names;
  for (const NamedPlot& one : all_plots(views)) names.push_back(one.name);
  CHECK(names == std::vector<std::string>{"loss-steps", "loss-tokens", "loss-time", "learning-rate", "gradient-norm", "throughput", "loss-scale",
                                          "time-line-1", "time-line-2", "ranks-2"});
  names.clear();
  for (const NamedPlot& one : all_plots(std::span(views).last(1))) names.push_back(one.name);
  CHECK((names[names.size() - 2] == "time-line" && names.back() == "ranks"));
  CHECK(throughput_plot(std::span(views).last(1), axis)->bands[0].name == "forecast");

  // Fifty restarts of a run can be told apart, more cannot.
  for (RunRecord& run : runs) run.events.clear();
  for (const auto& [run, count] : {std::pair(size_t{0}, 51), {size_t{1}, 50}})
    for (int64_t step = 0; step <= count; ++step) runs[run].events.push_back(event_of("start", step));
  const Plot restarts = loss_plot(views, ProgressAxis::kSteps).value();
  REQUIRE(restarts.marks.size() == 50);
  CHECK((restarts.marks.front().x == 1 && restarts.marks.back().x == 50 && restarts.marks.front().run == 1 && restarts.marks.back().run == 1));
}

TEST_CASE("report: curves of more points than pixels are binned with their ranges, without points whose place is unknown") {
  RunRecord run = run_in_memory(402);
  column_of(run, Figure::kTokens)[0] = kNaN;
  const std::vector<RunView> views{RunView(run, "x")};
  const Curve curve = loss_plot(views, ProgressAxis::kTokens)->curves.at(0);
  REQUIRE(curve.x.size() == 200);  // of 201 bins
  CHECK((curve.x[0] == 3 * 128 && curve.y[0] == 3.5));
  REQUIRE((curve.low.size() == 200 && curve.high.size() == 200));
  CHECK((curve.low[0] == 3 && curve.high[0] == 4 && curve.low[199] == 401 && curve.high[199] == 402));
  const RunRecord fewer = run_in_memory(400);
  CHECK(loss_plot(std::vector<RunView>{RunView(fewer, "x")}, ProgressAxis::kSteps)->curves[0].low.empty());
  // Evaluations have dots up to a hundred, and bins from more than eight hundred on.
  for (const auto& [evaluations, points, dots, binned] :
       {std::tuple(100, 100, true, false), {101, 101, false, false}, {800, 800, false, false}, {801, 267, false, true}}) {
    RunRecord evaluated = run_in_memory(801);
    for (int64_t step = 1; step <= evaluations; ++step) evaluated.evaluations.push_back({step, static_cast<double>(step), {}, kNaN});
    const Curve validation = loss_plot(std::vector<RunView>{RunView(evaluated, "x")}, ProgressAxis::kSteps)->curves.at(1);
    CAPTURE(evaluations);
    CHECK((std::ssize(validation.x) == points && validation.dots == dots && validation.low.empty() != binned && validation.dashed));
    if (binned) CHECK((validation.x[1] == 5 && validation.y[1] == 5 && validation.low[1] == 4 && validation.high[1] == 6));
  }
  // A set that is evaluated from the second evaluation on has no point at the first one.
  RunRecord later = run_in_memory(9);
  later.evaluations = {{3, 7, {}, kNaN}, {6, 5, {{"code", 4}}, kNaN}, {9, 3, {{"code", 2}}, kNaN}};
  const Plot losses = *loss_plot(std::vector<RunView>{RunView(later, "x")}, ProgressAxis::kSteps);
  const auto code = std::ranges::find_if(losses.curves, [](const Curve& curve) { return curve.name.ends_with("validation: code"); });
  REQUIRE(code != losses.curves.end());
  for (size_t i = 0; i < code->y.size(); ++i) CHECK((std::isnan(code->y[i]) || code->y[i] == (code->x[i] == 6 ? 4 : 2)));
  CHECK(std::ranges::count_if(code->y, [](double loss) { return std::isfinite(loss); }) == 2);
  // Two ranks are in a bin: the slower mean is drawn, with the range of both.
  for (const size_t ranks : {800, 801}) {
    RunRecord many;
    for (const double slow : {5.0, 3.0}) {
      std::vector<double> seconds(ranks, 1.0);
      seconds[2] = 0.5;
      seconds[3] = slow;
      many.ranks.add(slow > 4 ? 1 : 2, seconds);
    }
    const Curve busy = rank_plot(RunView(many, "x"))->curves.at(0);
    REQUIRE(busy.x.size() == (ranks == 800 ? 800 : 401));
    const size_t place = ranks == 800 ? 3 : 1;
    CHECK((busy.x[place] == (ranks == 800 ? 3 : 2) && busy.y[place] == 4 && busy.high[place] == 5 && busy.low[place] == (ranks == 800 ? 3 : 0.5)));
    CHECK(busy.x.back() == static_cast<double>(ranks - 1));
  }
}

TEST_CASE("report: rows, columns and shades of a heat map at their limits") {
  const auto heat_of = [](const RankStepTimes& times) {
    PlotNumbers numbers;
    heat_map_html(times, numbers);
    return json::parse(numbers.json())["plots"][0]["heat"];
  };
  for (const auto& [ranks, rows, in_row] : {std::tuple(128, 128, 1), {129, 65, 2}}) {
    RankStepTimes times;
    times.add(1, std::vector<double>(static_cast<size_t>(ranks), 1.0));
    const json heat = heat_of(times);
    CHECK((heat["rows"] == rows && heat["ranks_per_row"] == in_row && heat["ranks"] == ranks));
  }
  for (const auto& [steps, columns, last] : {std::tuple(120, 120, 120), {121, 61, 121}}) {
    RankStepTimes times;
    for (int64_t step = 1; step <= steps; ++step) times.add(step, std::vector<double>{1, 1});
    const json heat = heat_of(times);
    CHECK(heat["steps"].size() == static_cast<size_t>(columns));
    CHECK(heat["steps"].back() == json{last, last});
  }
  // The outermost shades are the smallest of a few round spans that has the slowest rank.
  for (const auto& [slower, percent] : {std::pair(0.039, 4),
                                        {0.041, 8},
                                        {0.079, 8},
                                        {0.081, 20},
                                        {0.199, 20},
                                        {0.201, 40},
                                        {0.399, 40},
                                        {0.401, 80},
                                        {0.799, 80},
                                        {0.801, 160},
                                        {1.59, 160},
                                        {1.61, 400},
                                        {9.0, 400}}) {
    RankStepTimes times;
    for (const int64_t step : {1, 2}) times.add(step, std::vector<double>{1, 1, 1 + slower});
    PlotNumbers numbers;
    const std::string html = heat_map_html(times, numbers);
    CAPTURE(slower);
    CHECK_THAT(html, Catch::Matchers::Contains(concat("<i class=\"band h8\"></i>+", percent, " %</li>")) &&
                         Catch::Matchers::Contains(concat("<i class=\"band h0\"></i>−", percent, " %</li>")) &&
                         Catch::Matchers::Contains("<i class=\"band h4\"></i>0</li>"));
    if (percent == 4) CHECK(count(html, "<path class=\"h8\"") == 1);
  }
}

TEST_CASE("report: the last hundred events are listed, and more are counted") {
  const Scratch scratch;
  for (const auto& [events, words] : std::vector<std::pair<int, std::string>>{{1, "1 event<"}, {100, "100 events<"}, {101, "the last 100 of 101<"}}) {
    std::string metrics = step_line(1, 3) + R"({"event":"checkpoint","step":1})" + "\n" + R"({"event":"memory","step":1})" + "\n";
    for (int i = 1; i <= events; ++i) metrics += concat(R"({"event":"note","step":1,"number":")", i, ".\"}\n");
    const std::string page = page_of({read_run(write_run(scratch, "a", metrics))});
    CHECK_THAT(page, Catch::Matchers::Contains("<summary>Events: " + words));
    CHECK(count(page, "<th scope=\"row\">note</th>") == static_cast<size_t>(std::min(events, 100)));
    CHECK(count(page, concat(";", events, ".&quot;")) == 1);
    CHECK(count(page, ";1.&quot;") == (events <= 100 ? 1 : 0));
  }
}

TEST_CASE("report: a value that only the last of three runs has other than its default is marked there") {
  const Scratch scratch;
  std::vector<RunRecord> runs;
  for (const char* seed : {"1234", "1234", "7"})
    runs.push_back(read_run(write_run(scratch, concat("run", runs.size()), "", replaced(kRunYaml, "1234", seed))));
  const RunRecord* const three[] = {&runs[0], &runs[1], &runs[2]};
  const std::vector<ConfigRow> rows = config_rows(three);
  const ConfigRow& seeds = *std::ranges::find(rows, std::string("run.seed"), &ConfigRow::key);
  CHECK_FALSE(seeds.same);
  CHECK(seeds.differs == std::vector<bool>{false, false, true});
  CHECK(seeds.values == std::vector<std::string>{"1234", "1234", "7"});
}

TEST_CASE("report: memory and causes are read from their events, also from ones of another shape") {
  const Scratch scratch;
  const std::string memory = R"({"event":"memory","step":2,"forecast":[{"parameters":100,"peak":150},{"parameters":300,"peak":350}],)"
                             R"("measured":[{"parameters":110,"peak":160},{"parameters":290,"peak":360}]})"
                             "\n";
  const RunRecord run = read_run(write_run(scratch, "a",
                                           step_line(1, 3) + step_line(2, 3) +
                                               R"({"event":"exposed","step":2,"step_seconds":0.5,"compute":0.3,"pipeline_bubble":0.2,"tensor":0})"
                                               "\n" +
                                               memory));
  const std::vector<Bars> bars = memory_bars(run);
  REQUIRE(bars.size() == 2);
  CHECK(bars[1].title == "Peak memory of pipeline rank 1");
  REQUIRE(bars[1].rows.size() == 2);
  CHECK(bars[1].rows[0].label == "parameters");
  CHECK(bars[1].rows[0].bars[0].segments[0].value == 300);
  CHECK(bars[1].rows[0].bars[1].segments[0].value == 290);
  CHECK(bars[1].rows[1].label == "peak of the sum");
  for (const auto& [first, last] : {std::pair(3, 2), std::pair(2, 3)}) {  // MiB
    const std::string peaks = concat(R"([{"peak":)", first << 20, R"(},{"peak":)", last << 20, "}]");
    const RunRecord two = read_run(
        write_run(scratch, "two", concat(step_line(1, 3), R"({"event":"memory","step":1,"forecast":)", peaks, R"(,"measured":)", peaks, "}\n")));
    const std::vector<Fact> facts = facts_of(RunView(two, "two"));
    const auto peak = std::ranges::find(facts, std::string("peak memory"), &Fact::name);
    REQUIRE(peak != facts.end());
    CHECK(peak->text == "3 MiB");
    CHECK(peak->remark == "of a rank; forecast 3 MiB");
  }
  const Bars causes = cause_bars(run).value();
  CHECK(causes.key == std::vector<std::pair<size_t, std::string>>{{0, "compute"}, {1, "pipeline bubble"}});
  CHECK(causes.rows[0].label == "step 2");
  for (const char* other : {R"({"event":"memory","step":2})", R"({"event":"memory","forecast":{},"measured":[1]})",
                            R"({"event":"memory","forecast":[1],"measured":["x",{}]})", R"({"event":"exposed"})", R"({"event":"start","forecast":7})",
                            R"({"event":"change","changes":[1]})", R"({"event":"sample","text":5})"}) {
    CAPTURE(other);
    const RunRecord odd = read_run(write_run(scratch, "odd", step_line(1, 3) + other + "\n"));
    CHECK(odd.skipped_lines == 0);
    CHECK_NOTHROW(page_of({odd}));
  }
}

}  // namespace trireme::report
