// `bench comm --algorithm` on threads: rows, bandwidths and the model's error.
#include "trainer/bench/algorithms.h"

#include <chrono>
#include <set>
#include <thread>

#include "parallel/comm/forwarding.h"
#include "tests/support/catch.h"
#include "trainer/bench/comm.h"

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

TEST_CASE("bench algorithms: the largest error of each model is named with its sign and size") {
  const auto row = [](const char* operation, int64_t bytes, const nlohmann::ordered_json& error) {
    return nlohmann::ordered_json{{"operation", operation},
                                  {"algorithm", error.is_null() ? "library" : "ring"},
                                  {"bytes", bytes},
                                  {"microseconds", 100.0},
                                  {"least", 90.0},
                                  {"most", 110.0},
                                  {"algorithm_gb_per_second", 1.0},
                                  {"bus_gb_per_second", 1.0},
                                  {"model_microseconds", error.is_null() ? error : nlohmann::ordered_json(50.0)},
                                  {"error", error}};
  };
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [bytes, error] : {std::pair(1024, 0.1), {4096, -0.5}, {65536, 0.25}}) rows.push_back(row("all_reduce", bytes, error));
  for (const auto& [bytes, error] : {std::pair(1024, 0.75), {4096, -0.125}}) rows.push_back(row("all_gather", bytes, error));
  rows.push_back(row("all_gather", 4096, nullptr));
  const std::string text = bench::algorithms_text(rows);
  CHECK(text.find("largest error of the model of all_reduce by ring: -50 % at 4096") != std::string::npos);
  CHECK(text.find("largest error of the model of all_gather by ring: 75 % at 1024") != std::string::npos);
}

TEST_CASE("bench comm: of several rounds the fastest counts, whether others were slow before it or after it") {
  /// All-reduces of the first round, or of all later ones, take 50 milliseconds longer. A round ends with exchanges.
  class SlowRounds final : public ForwardingCommunicator {
   public:
    SlowRounds(Communicator& inner, bool first) : ForwardingCommunicator(inner), first_(first) {}
    Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
      if (has_exchanged_ != first_) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return ForwardingCommunicator::all_reduce(ctx, buffer, op);
    }
    Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
      has_exchanged_ = true;
      return ForwardingCommunicator::exchange(ctx, messages);
    }

   private:
    std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>&) override { return made; }
    bool first_, has_exchanged_ = false;
  };
  for (const bool first : {true, false}) {
    CAPTURE(first);
    double seconds = 0;
    bench::on_rank_threads(2, [&](Communicator& world) {
      SlowRounds slow(world, first);
      Arena arena(Device::kCpu);
      Context ctx{Device::kCpu, &arena, 1};
      const nlohmann::ordered_json rows = bench::bench_comm(ctx, slow, {1 << 10}, {.batch_seconds = 1e-4, .seconds = 1e-3}, 3);
      if (world.rank() == 0) seconds = 1e-6 * rows[0]["microseconds"].get<double>();
    });
    CHECK((seconds > 0 && seconds < 0.05));
  }
}

TEST_CASE("bench comm: each size has figures of its own") {
  nlohmann::ordered_json rows;
  bench::on_rank_threads(2, [&](Communicator& world) {
    Arena arena(Device::kCpu);
    Context ctx{Device::kCpu, &arena, 1};
    const nlohmann::ordered_json result = bench::bench_comm(ctx, world, {1 << 12, 1 << 25}, {.batch_seconds = 1e-4, .seconds = 1e-3}, 2);
    if (world.rank() == 0) rows = result;
  });
  REQUIRE(rows.size() == 12);
  for (size_t i = 0; i < 6; ++i) {
    const auto &small = rows[i], &large = rows[6 + i];
    CAPTURE(small.dump(), large.dump());
    CHECK(small["operation"] == large["operation"]);
    CHECK(small["bytes"] == 1 << 12);
    CHECK(large["bytes"] == 1 << 25);
    CHECK(10 * small["low"].get<double>() < large["low"].get<double>());
    CHECK(10 * small["microseconds"].get<double>() < large["microseconds"].get<double>());
    CHECK(small["high"].get<double>() < large["low"].get<double>());
  }
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
