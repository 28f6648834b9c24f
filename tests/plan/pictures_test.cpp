#include <algorithm>
#include <array>
#include <numeric>
#include <regex>

#include "kernels/core/check.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulate.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"
#include "tests/support/trace_file.h"
#include "trainer/plan/svg.h"
#include "trainer/plan/world_trace.h"

namespace trireme::test {
namespace {

double unit_seconds(const Action& action) {
  return action.type == ActionType::kForward ? 1 : action.type == ActionType::kBackward ? 2 : is_compute(action.type) ? 1 : 0;
}

struct DrawnBox {
  std::string classes;
  double x, y, width;
};

/// Elements of a picture. read_picture also checks that the tags are nested properly.
struct Picture {
  std::vector<DrawnBox> boxes;
  std::vector<double> rows;  ///< y of the row backgrounds
  std::vector<std::string> numbers, texts;
};

Picture read_picture(const std::string& svg) {
  static const std::regex tag(R"(<(/?)([a-z]+)([^<>]*?)(/?)>([^<>]*))"),
      box(R"re( class="([^"]+)" x="([^"]+)" y="([^"]+)" width="([^"]+)" height="20")re");
  Picture picture;
  std::vector<std::string> open;
  size_t at = 0;
  for (std::sregex_iterator one(svg.begin(), svg.end(), tag), none; one != none; ++one) {
    const std::smatch& m = *one;
    REQUIRE(static_cast<size_t>(m.position()) == at);
    at += static_cast<size_t>(m.length());
    if (m[1] == "/") {
      REQUIRE(!open.empty());
      REQUIRE(open.back() == m[2]);
      open.pop_back();
    } else if (m[4] != "/") {
      open.push_back(m[2]);
    }
    const std::string attributes = m[3];
    std::smatch fields;
    if (m[2] == "rect" && m[1] != "/" && std::regex_search(attributes, fields, box)) {
      const DrawnBox drawn{fields[1], std::stod(fields[2]), std::stod(fields[3]), std::stod(fields[4])};
      drawn.classes == "idle" ? picture.rows.push_back(drawn.y) : picture.boxes.push_back(drawn);
    }
    if (m[2] == "text" && m[1] != "/") (attributes.find(R"(class="n")") != attributes.npos ? picture.numbers : picture.texts).push_back(m[5]);
  }
  CHECK(at == svg.size());
  CHECK(open.empty());
  return picture;
}

bool any_contains(const std::vector<std::string>& texts, const std::string& part) {
  return std::ranges::any_of(texts, [&](const std::string& text) { return text.find(part) != text.npos; });
}

}  // namespace

TEST_CASE("the picture of a pipeline is to scale: one row per rank, one box per micro-batch, idle time blank") {
  constexpr int p = 4, m = 6;
  const Simulation run = simulate(one_forward_one_backward(p, m), unit_seconds);
  const Picture picture = read_picture(pipeline_svg(run.ranks, "a < b & c"));
  REQUIRE(picture.rows.size() == p);
  CHECK(picture.boxes.size() == 2 * m * p);
  CHECK(any_contains(picture.texts, "a &lt; b &amp; c: 0 s to 27.00 s of a step of 27.00 s"));
  const double second = 1400 / 27.0;
  for (size_t row = 0; row < p; ++row) {
    std::vector<DrawnBox> boxes;
    std::ranges::copy_if(picture.boxes, std::back_inserter(boxes), [&](const DrawnBox& box) { return box.y == picture.rows[row]; });
    REQUIRE(boxes.size() == 2 * m);
    for (size_t i = 0; i < boxes.size(); ++i) {
      const TimelineEvent& event = run.ranks[row][i];
      CHECK(boxes[i].x == Approx(190 + second * event.begin).margin(0.01));
      CHECK(boxes[i].width == Approx(second * (event.end - event.begin)).margin(0.01));
      CHECK(boxes[i].classes == (event.action.type == ActionType::kForward ? "F" : "B"));
    }
  }
  CHECK(any_contains(picture.texts, "pipeline 3: 33.3 % idle"));
  CHECK(std::ranges::count(picture.numbers, "5") == 2 * p);
  CHECK(any_contains(picture.texts, "B: backward"));
  CHECK(!any_contains(picture.texts, "W: "));
}

TEST_CASE("parts of a stage are one box, a rank's second stage is lighter, and I and W have their own colors") {
  const std::vector<StageUnits> units = toy_units(4, 3, false, true);
  const Simulation run = simulate(lower(zb_v(2, 5), units, {}), unit_seconds);
  const Picture picture = read_picture(pipeline_svg(run.ranks));
  for (const char* classes : {"F", "F s1", "I", "I s1"}) CHECK(std::ranges::count(picture.boxes, classes, &DrawnBox::classes) == 2 * 5);
  CHECK(std::ranges::count(picture.boxes, "W", &DrawnBox::classes) >= 5);
  CHECK(any_contains(picture.texts, "W: weight gradient"));
  CHECK(any_contains(picture.texts, "lighter: "));
}

TEST_CASE("drawing a step in which no rank computes is an error") {
  CHECK_THROWS_AS(pipeline_svg({}), ConfigError);
  CHECK_THROWS_AS(pipeline_svg({{}, {}}), ConfigError);
  CHECK_THROWS_AS(pipeline_svg({{{{ActionType::kForward, 0, 0}, 0, 0}}}), ConfigError);
}

TEST_CASE("a picture stays under 1 MB and reports where it was cut") {
  for (const int p : {16, 128}) {
    const std::string svg = pipeline_svg(simulate(interleaved_1f1b(p, 3, 2 * p), unit_seconds).ranks);
    CHECK(svg.size() < 1000000);
    const Picture picture = read_picture(svg);
    CHECK(picture.rows.size() == static_cast<size_t>(p));
    CHECK(any_contains(picture.texts, ", cut at ") == (p == 128));
    CHECK(picture.boxes.size() > 3000);
    for (const DrawnBox& box : picture.boxes) CHECK(box.x + box.width <= 1590.01);
  }
}

TEST_CASE("a picture of very many ranks shows only the first ones, even if all begin at once") {
  std::vector<Timeline> ranks(5000);
  for (Timeline& timeline : ranks)
    for (int m = 0; m < 8; ++m) timeline.push_back({{ActionType::kForward, 0, m}, 1.0 * m, m + 0.5});
  const std::string svg = pipeline_svg(ranks);
  CHECK(svg.size() < 1000000);
  const Picture picture = read_picture(svg);
  CHECK(picture.rows.size() == 500);
  CHECK(any_contains(picture.texts, ", the first 500 of 5000 ranks"));
  CHECK(any_contains(picture.texts, ", cut at "));
}

TEST_CASE("ranks to trace are given as single ranks, ranges and groups") {
  const MeshShape mesh{4, 1, 3, 2};
  CHECK(ranks_named("7", mesh) == std::vector<int>{7});
  CHECK(ranks_named("3-5,1,4-6", mesh) == std::vector<int>{1, 3, 4, 5, 6});
  CHECK(ranks_named("pipeline:7", mesh) == std::vector<int>{1, 7, 13, 19});
  CHECK(ranks_named("tensor:7,shard:7", mesh) == std::vector<int>{6, 7, 9, 11});
  CHECK(ranks_named("embedding:1", mesh) == std::vector<int>{1, 19});
  for (const char* wrong : {"", "24", "-1", "2-", "3-2", "x", "pipeline:", "pipelines:3", "pipeline:24", "1,,2", "1 ", "0x1"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(ranks_named(wrong, mesh), ConfigError);
  }
}

TEST_CASE("an oversized trace is rejected before the simulation, with the remedy") {
  ActionList list(600);
  const std::vector<const ActionList*> lists(16384, &list);
  std::vector<int> ranks(1666);
  std::iota(ranks.begin(), ranks.end(), 0);
  CHECK_NOTHROW(check_trace_size(lists, ranks));
  ranks.push_back(16383);
  CHECK_THROWS_WITH(check_trace_size(lists, ranks), Catch::Contains("1667 ranks would have 1000200 events") && Catch::Contains("--ranks"));
}

TEST_CASE("a Chrome trace of some ranks of a world has only their rows, and arrows only between them") {
  const MeshShape mesh{4, 1, 3, 2};
  const std::vector<StageUnits> units = toy_units(4, 2, false);
  const ActionLists plan = lower(one_forward_one_backward(4, 5), units, {.unshard_each_use = true});
  const WorldCosts costs{[](const Action& a) { return is_receive(a.type) ? 0.25 : unit_seconds(a); }, [](const Action&) { return 0.75; }};
  const std::vector<int> all = ranks_named("pipeline:7", mesh);
  const WorldSimulation run = simulate_world(lists_of_ranks(plan, mesh), mesh, units, costs, all);
  const TraceFile whole = read_trace(chrome_trace(run, mesh));
  CHECK(whole.problem == "");
  REQUIRE(whole.processes.size() == 4);
  CHECK(whole.processes.at(1) == "rank 7: pipeline 1, replicate 0, shard 0, tensor 1");
  CHECK(whole.arrows == 2 * 3 * 5);
  for (int row = 0; row < 4; ++row)
    CHECK(whole.busy.at({row, "compute"}) == Approx(1e6 * run.ranks[static_cast<size_t>(all[static_cast<size_t>(row)])].compute));

  const TraceFile apart = read_trace(chrome_trace(simulate_world(lists_of_ranks(plan, mesh), mesh, units, costs, {1, 7, 8, 19}), mesh));
  CHECK(apart.problem == "");
  CHECK(apart.processes.size() == 4);
  CHECK(apart.arrows == 2 * 5);  // ranks 1 and 7
}

}  // namespace trireme::test
