// `bench comm --algorithm` on threads: rows, bandwidths and the model's error.
#include "trainer/bench/algorithms.h"

#include <set>

#include "tests/support/catch.h"

namespace trireme {
namespace {

TEST_CASE("bench algorithms: each algorithm stands beside the library and beside its model") {
  nlohmann::ordered_json rows;
  MessageCosts costs;
  bench::on_rank_threads(3, [&](Communicator& world) {
    Arena arena(Device::kCpu);
    Context ctx{Device::kCpu, &arena, 1};
    const bench::Effort effort{.batch_seconds = 1e-5, .seconds = 1e-4, .world = nullptr};
    const MessageCosts measured = bench::measure_message_costs(ctx, world, 8192, effort, 1);
    const std::vector<CollectiveAlgorithm> all(kCollectiveAlgorithms.begin(), kCollectiveAlgorithms.end());
    const nlohmann::ordered_json result = bench::bench_algorithms(ctx, world, all, {1000, 8192}, measured, effort, 2);
    if (world.rank() != 0) return;
    rows = result;
    costs = measured;
  });
  REQUIRE(rows.size() == 3 * 2 * 6);
  std::set<std::string> algorithms;
  for (const auto& row : rows) {
    CAPTURE(row.dump());
    const std::string algorithm = row["algorithm"];
    algorithms.insert(algorithm);
    const double bytes = row["bytes"], seconds = row["microseconds"].get<double>() / 1e6;
    CHECK((bytes == 1008 || bytes == 8196));  // whole numbers for each of three ranks
    CHECK(row["least"].get<double>() <= row["microseconds"].get<double>());
    CHECK(row["microseconds"].get<double>() <= row["most"].get<double>());
    CHECK(row["algorithm_gb_per_second"].get<double>() == Approx(bytes / seconds / 1e9));
    const double passed_on = row["operation"] == "all_reduce" ? 4.0 / 3 : 2.0 / 3;
    CHECK(row["bus_gb_per_second"].get<double>() == Approx(passed_on * bytes / seconds / 1e9));
    CHECK(row["error"].is_null() == (algorithm == "library"));
    if (algorithm == "ring" && row["operation"] == "all_gather")
      CHECK(row["model_microseconds"].get<double>() == Approx(1e6 * (costs.start + 2 * costs.message(bytes / 3))));
    if (algorithm != "library") CHECK(row["error"].get<double>() == Approx(row["model_microseconds"].get<double>() / seconds / 1e6 - 1));
  }
  CHECK(algorithms.size() == 6);
  CHECK(bench::algorithms_text(rows).find("largest error of the model of all_reduce by ring: ") != std::string::npos);
}

TEST_CASE("bench algorithms: an error of one rank ends all") {
  CHECK_THROWS_AS(bench::on_rank_threads(2,
                                         [](Communicator& world) {
                                           if (world.rank() == 1) throw ConfigError("wrong");
                                           world.barrier();
                                         }),
                  ConfigError);
}

}  // namespace
}  // namespace trireme
