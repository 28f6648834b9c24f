#include "trainer/bench/comm.h"

#include <algorithm>
#include <array>
#include <functional>

namespace trireme::bench {

namespace {

using Start = std::function<Work()>;

/// An operation, and the share of the buffer that each rank sends.
struct Measured {
  const char* name;
  double share_on_link;
};

/// Calls of the operations on a buffer of `part` numbers for each rank, in the order of kOperations.
class Operations {
 public:
  Operations(Context& ctx, Communicator& world, int64_t part)
      : bench_(ctx),
        world_(world),
        whole_(random_tensor(bench_.ctx(), {part * world.size()}, DType::kF32, 1)),
        mine_(random_tensor(bench_.ctx(), {part}, DType::kF32, 2)),
        received_(random_tensor(bench_.ctx(), {part * world.size()}, DType::kF32, 3)),
        counts_(static_cast<size_t>(world.size()), part),
        ring_{PointToPoint{PointToPoint::Kind::kSend, whole_, (world.rank() + 1) % world.size()},
              PointToPoint{PointToPoint::Kind::kRecv, received_, (world.rank() + world.size() - 1) % world.size()}} {}

  Context& ctx() { return bench_.ctx(); }
  double bytes() const { return static_cast<double>(whole_.bytes()); }
  std::vector<Start> starts() {
    return {[this] { return world_.all_reduce(ctx(), whole_, ReduceOp::kMax); },  // maximum, because repeated sums would overflow
            [this] { return world_.all_gather(ctx(), mine_, whole_); },
            [this] { return world_.reduce_scatter(ctx(), whole_, mine_, ReduceOp::kSum); },
            [this] { return world_.all_to_all(ctx(), whole_, received_); },
            [this] { return world_.all_to_all_v(ctx(), whole_, counts_, received_, counts_); },
            [this] { return world_.exchange(ctx(), ring_); }};
  }

 private:
  Workbench bench_;
  Communicator& world_;
  Tensor whole_, mine_, received_;
  std::vector<int64_t> counts_;
  std::array<PointToPoint, 2> ring_;
};

}  // namespace

nlohmann::ordered_json bench_comm(Context& ctx, Communicator& world, const std::vector<int64_t>& sizes, Effort effort, int64_t rounds) {
  effort.world = &world;
  const int n = world.size();
  const double passed_on = static_cast<double>(n - 1) / n;
  const std::array<Measured, 6> operations{{{"all_reduce", 2 * passed_on},
                                            {"all_gather", passed_on},
                                            {"reduce_scatter", passed_on},
                                            {"all_to_all", passed_on},
                                            {"all_to_all_v", passed_on},
                                            {"send_receive", 1}}};
  std::vector<Timing> best;
  std::vector<double> bytes;
  for (int64_t round = 0; round < rounds; ++round) {
    size_t row = 0;
    for (const int64_t size : sizes) {
      const int64_t part = (size + n * size_of(DType::kF32) - 1) / (n * size_of(DType::kF32));
      Operations calls(ctx, world, part);
      for (const Start& start : calls.starts()) {
        const Timing timing = measure(calls.ctx(), effort, [&](int64_t) { start().wait(calls.ctx()); });
        if (round == 0) {
          best.push_back(timing);
          bytes.push_back(calls.bytes());
        }
        best[row] = fastest_of(best[row], timing);
        ++row;
      }
    }
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t row = 0; row < best.size(); ++row) {
    const Measured& operation = operations[row % operations.size()];
    const double rate = bytes[row] / best[row].median / 1e9;
    rows.push_back({{"operation", operation.name},
                    {"bytes", static_cast<int64_t>(bytes[row])},
                    {"microseconds", best[row].median * 1e6},
                    {"low", best[row].low * 1e6},
                    {"high", best[row].high * 1e6},
                    {"algorithm_gb_per_second", rate},
                    {"bus_gb_per_second", rate * operation.share_on_link}});
  }
  return rows;
}

}  // namespace trireme::bench
