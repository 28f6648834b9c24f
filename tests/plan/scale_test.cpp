// Scaling curves from measured step times.
#include "trainer/bench/scale.h"

#include "tests/support/catch.h"

namespace trireme::bench {
namespace {

/// Steps of 1 s on one rank with a serial share of 20 %, and forecasts with one of 10 %, both longer by the factor `times`.
ScalePoint strong_point(int64_t ranks, double times = 1) {
  const auto n = static_cast<double>(ranks);
  return {.ranks = ranks, .seconds = times * (0.2 + 0.8 / n), .tokens = 1000, .forecast = times * (0.1 + 0.9 / n)};
}

/// The same work for each rank.
ScalePoint weak_point(int64_t ranks) {
  const auto n = static_cast<double>(ranks);
  return {.ranks = ranks, .seconds = n / (n - 0.25 * (n - 1)), .tokens = 1000 * n};
}

ScaleResult result_of(std::vector<ScalePoint> strong, std::vector<ScalePoint> weak) {
  ScaleResult result;
  result.strong = strong_curve(std::move(strong));
  result.weak = weak_curve(std::move(weak));
  result.figures = "built-in figures";
  return result;
}

}  // namespace

TEST_CASE("scale: the serial share of measured and of forecast steps") {
  const ScaleResult result = result_of({strong_point(1), strong_point(2), strong_point(4)}, {weak_point(1), weak_point(2), weak_point(4)});
  CHECK(*result.strong.serial_share == Approx(0.2));
  CHECK(*result.strong.forecast_serial_share == Approx(0.1));
  CHECK(*result.weak.serial_share == Approx(0.25));
  CHECK_FALSE(result.weak.forecast_serial_share);
  CHECK(result.strong.fitted == 3);
  CHECK(speedup_of(result.strong, result.strong.points[2]) == Approx(1 / 0.4));
  CHECK(speedup_of(result.weak, result.weak.points[1]) == Approx(1.75));
}

TEST_CASE("scale: the efficiency is that of the first number of ranks, which need not be 1") {
  const nlohmann::ordered_json json = scale_json(result_of({strong_point(2), strong_point(4)}, {weak_point(2), weak_point(4)}));
  CHECK(json["strong"]["points"][0]["efficiency"].get<double>() == Approx(1));
  CHECK(json["strong"]["points"][1]["efficiency"].get<double>() == Approx(0.6 / 0.4 / 2));
}

TEST_CASE("scale: ranks that share cores, and those left out, are in no fit") {
  ScalePoint shared = strong_point(4, 3), absent{.ranks = 8, .left_out = "training.global_batch_size=4: too small"};
  shared.shares_cores = true;
  const ScaleResult result = result_of({strong_point(1), strong_point(2), shared, absent}, {weak_point(1), absent});
  CHECK(*result.strong.serial_share == Approx(0.2));
  CHECK(result.strong.fitted == 2);
  CHECK_FALSE(result.weak.serial_share);
  const nlohmann::ordered_json json = scale_json(result);
  const auto& points = json["strong"]["points"];
  CHECK(points[2]["shares_cores"] == true);
  CHECK(points[1]["forecast_ratio"].get<double>() == Approx(0.55 / 0.6));
  CHECK(points[1]["efficiency"].get<double>() == Approx(1 / 0.6 / 2));
  CHECK(points[3]["step_seconds"].is_null());
  CHECK(points[3]["left_out"] == "training.global_batch_size=4: too small");
  CHECK(json["weak"]["serial_share"].is_null());
  const std::string text = scale_text(result);
  CHECK(text.find("oversubscribed") != text.npos);
  CHECK(text.find("no fit uses them") != text.npos);
  CHECK(text.find("two points determine it") != text.npos);
  CHECK(text.find("8 ranks: training.global_batch_size=4: too small") != text.npos);
  CHECK(text.find("warning") == text.npos);
}

TEST_CASE("scale: forecasts of some points only have no serial share, whichever point lacks one") {
  for (size_t without = 0; without < 3; ++without) {
    CAPTURE(without);
    std::vector<ScalePoint> points = {strong_point(1), strong_point(2), strong_point(4)};
    points[without].forecast.reset();
    const ScaleCurve curve = strong_curve(points);
    CHECK(*curve.serial_share == Approx(0.2));
    CHECK_FALSE(curve.forecast_serial_share);
  }
}

TEST_CASE("scale: a busy machine is said") {
  ScaleResult result = result_of({strong_point(1), strong_point(2)}, {weak_point(1), weak_point(2)});
  result.foreign_share = 0.4;
  CHECK(scale_text(result).find("other processes used 40.0 % of the cores") != std::string::npos);
  CHECK(scale_text(result).find("no fit uses them") == std::string::npos);
}

TEST_CASE("scale: the drawing shows every measured point, hollow where ranks share cores") {
  ScalePoint shared = strong_point(4);
  shared.shares_cores = true;
  const std::string svg = scale_svg(result_of({strong_point(1), strong_point(2), shared}, {weak_point(1), weak_point(2)}), "a <model> & more");
  const auto count = [&](const std::string& part) {
    size_t found = 0;
    for (size_t at = svg.find(part); at != svg.npos; at = svg.find(part, at + 1)) ++found;
    return found;
  };
  CHECK(svg.starts_with("<svg"));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(count("<circle") == 5);
  CHECK(count("class=\"hollow\"") == 1);
  CHECK(count("a &lt;model&gt; &amp; more") == 1);
  CHECK(count("nan") == 0);
  CHECK(scale_svg(result_of({strong_point(1)}, {}), "one").find("nan") == std::string::npos);
}

}  // namespace trireme::bench
