#include "trainer/bench/comm.h"

#include <array>

namespace trireme::bench {

nlohmann::ordered_json bench_comm(Context& ctx, Communicator& world, const std::vector<int64_t>& sizes, Effort effort) {
  effort.world = &world;
  const int n = world.size(), rank = world.rank();
  const double passed_on = static_cast<double>(n - 1) / n;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const int64_t bytes : sizes) {
    const int64_t part = (bytes + n * size_of(DType::kF32) - 1) / (n * size_of(DType::kF32));
    Workbench bench(ctx);
    const Tensor whole = random_tensor(bench.ctx(), {part * n}, DType::kF32, 1), mine = random_tensor(bench.ctx(), {part}, DType::kF32, 2);
    const Tensor received = random_tensor(bench.ctx(), {part * n}, DType::kF32, 3);
    const std::vector<int64_t> counts(static_cast<size_t>(n), part);
    const std::array<PointToPoint, 2> ring{PointToPoint{PointToPoint::Kind::kSend, whole, (rank + 1) % n},
                                           PointToPoint{PointToPoint::Kind::kRecv, received, (rank + n - 1) % n}};
    const auto add = [&](const char* operation, double share_on_link, const std::function<Work()>& start) {
      const Timing timing = measure(bench.ctx(), effort, [&](int64_t) { start().wait(bench.ctx()); });
      const double rate = static_cast<double>(whole.bytes()) / timing.median / 1e9;
      rows.push_back({{"operation", operation},
                      {"bytes", whole.bytes()},
                      {"microseconds", timing.median * 1e6},
                      {"algorithm_gb_per_second", rate},
                      {"bus_gb_per_second", rate * share_on_link}});
    };
    // Maximum, because repeated sums would overflow.
    add("all_reduce", 2 * passed_on, [&] { return world.all_reduce(bench.ctx(), whole, ReduceOp::kMax); });
    add("all_gather", passed_on, [&] { return world.all_gather(bench.ctx(), mine, whole); });
    add("reduce_scatter", passed_on, [&] { return world.reduce_scatter(bench.ctx(), whole, mine, ReduceOp::kSum); });
    add("all_to_all", passed_on, [&] { return world.all_to_all(bench.ctx(), whole, received); });
    add("all_to_all_v", passed_on, [&] { return world.all_to_all_v(bench.ctx(), whole, counts, received, counts); });
    add("send_receive", 1, [&] { return world.exchange(bench.ctx(), ring); });
  }
  return rows;
}

}  // namespace trireme::bench
