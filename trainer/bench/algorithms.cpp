#include "trainer/bench/algorithms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include "parallel/comm/stepwise.h"
#include "parallel/comm/thread.h"
#include "parallel/comm/transfer.h"
#include "trainer/files/printable.h"
#include "trainer/files/table.h"
#include "trainer/plan/link_fit.h"

namespace trireme::bench {
namespace {

constexpr std::array kVerbs{std::pair("all_reduce", CollectiveVerb::kAllReduce), std::pair("reduce_scatter", CollectiveVerb::kReduceScatter),
                            std::pair("all_gather", CollectiveVerb::kAllGather)};

/// The three verbs in place on a buffer of `part` numbers for each rank.
class Verbs {
 public:
  Verbs(Context& ctx, const Communicator& world, int64_t part)
      : bench_(ctx), whole_(random_tensor(bench_.ctx(), {part * world.size()}, DType::kF32, 1)), part_(whole_.flat(world.rank() * part, part)) {}

  Context& ctx() { return bench_.ctx(); }
  double bytes() const { return static_cast<double>(whole_.bytes()); }
  /// A maximum, because repeated sums would overflow.
  void call(Communicator& comm, CollectiveVerb verb) {
    switch (verb) {
      case CollectiveVerb::kAllReduce: return comm.all_reduce(ctx(), whole_, ReduceOp::kMax).wait(ctx());
      case CollectiveVerb::kReduceScatter: return comm.reduce_scatter(ctx(), whole_, part_, ReduceOp::kMax).wait(ctx());
      case CollectiveVerb::kAllGather: return comm.all_gather(ctx(), part_, whole_).wait(ctx());
    }
  }

 private:
  Workbench bench_;
  Tensor whole_, part_;
};

/// The median of the fastest round on the slowest rank.
double agreed(Communicator& world, const Timing& timing) { return all_reduce_scalar(world, timing.median, ReduceOp::kMax); }

std::vector<MessageCosts::Range> ranges_of(const std::vector<SizeSample>& samples) {
  constexpr double kInstant = 1e18;  // bytes/s, for a range in which the size costs nothing
  std::vector<MessageCosts::Range> ranges;
  for (const SizeRange& range : fit_ranges(samples)) ranges.push_back({range.first, range.alpha, range.beta > 0 ? 1 / range.beta : kInstant});
  return ranges;
}

std::vector<int> all_ranks(int n) {
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

MessageCosts measure_message_costs(Context& ctx, Communicator& world, double largest, Effort effort, int64_t rounds) {
  effort.world = &world;
  const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
  constexpr double kLeast = 64, kInstant = 1e-9;
  std::vector<double> sizes;
  for (double bytes = kLeast; bytes <= std::max(largest, 4 * kLeast); bytes *= 2) sizes.push_back(bytes);
  std::vector<Timing> messages(sizes.size()), steps(sizes.size());
  const auto keep = [](Timing& kept, const Timing& timing, int64_t round) { kept = round == 0 ? timing : fastest_of(kept, timing); };
  for (int64_t round = 0; round < rounds; ++round)
    for (size_t row = 0; row < sizes.size(); ++row) {
      Workbench bench(ctx);
      const auto count = static_cast<int64_t>(sizes[row]) / size_of(DType::kF32);
      const Tensor a = random_tensor(bench.ctx(), {count}, DType::kF32, 1), b = random_tensor(bench.ctx(), {count}, DType::kF32, 2);
      const auto exchange = [&](const Tensor& out, const Tensor& in) {
        world.exchange(bench.ctx(), std::vector<PointToPoint>{{PointToPoint::Kind::kRecv, in, previous}, {PointToPoint::Kind::kSend, out, next}})
            .wait(bench.ctx());
      };
      // What is sent was received or summed just before, as in the steps of an algorithm: it lies in the sender's cache, or not at all in one.
      keep(messages[row], measure(bench.ctx(), effort, [&](int64_t i) { i % 2 == 0 ? exchange(a, b) : exchange(b, a); }), round);
      const std::array operands{static_cast<const std::byte*>(a.raw()), static_cast<const std::byte*>(b.raw())};
      const auto step = [&](int64_t) {
        exchange(a, b);
        reduce_in_order(DType::kF32, ReduceOp::kMax, operands, static_cast<std::byte*>(a.raw()), count);
      };
      keep(steps[row], measure(bench.ctx(), effort, step), round);
    }
  std::vector<SizeSample> of_messages, of_sums;
  for (size_t row = 0; row < sizes.size(); ++row) {
    const double message = agreed(world, messages[row]), step = agreed(world, steps[row]);
    of_messages.push_back({sizes[row], message});
    of_sums.push_back({sizes[row], std::max(kInstant, step - message)});
  }
  MessageCosts costs{.ranges = ranges_of(of_messages), .sums = ranges_of(of_sums)};
  // What remains of the smallest all_reduce is the operation's own.
  const auto comm =
      stepwise(world.group(all_ranks(n), "start"), {.algorithm = CollectiveAlgorithm::kRecursiveDoubling, .within = costs, .between = costs});
  Workbench bench(ctx);
  const Tensor smallest = random_tensor(bench.ctx(), {static_cast<int64_t>(kLeast) / size_of(DType::kF32)}, DType::kF32, 1);
  Timing whole;
  for (int64_t round = 0; round < rounds; ++round)
    keep(whole, measure(bench.ctx(), effort, [&](int64_t) { comm->all_reduce(bench.ctx(), smallest, ReduceOp::kMax).wait(bench.ctx()); }), round);
  const double modelled = collective_seconds(CollectiveAlgorithm::kRecursiveDoubling, CollectiveVerb::kAllReduce, n, kLeast, costs);
  costs.start = std::max(0.0, agreed(world, whole) - modelled);
  return costs;
}

nlohmann::ordered_json bench_algorithms(Context& ctx, Communicator& world, const std::vector<CollectiveAlgorithm>& algorithms,
                                        const std::vector<int64_t>& sizes, const MessageCosts& costs, Effort effort, int64_t rounds) {
  effort.world = &world;
  const int n = world.size();
  struct Measured {
    const char* algorithm;
    std::optional<CollectiveAlgorithm> own;
    std::unique_ptr<Communicator> comm;  ///< null: `world`
  };
  std::vector<Measured> kinds;
  kinds.push_back({"library", std::nullopt, nullptr});
  for (const CollectiveAlgorithm algorithm : algorithms)
    kinds.push_back({name_of(algorithm), algorithm,
                     stepwise(world.group(all_ranks(n), name_of(algorithm)), {.algorithm = algorithm, .within = costs, .between = costs})});
  std::vector<Timing> fastest;
  std::vector<double> bytes;
  for (int64_t round = 0; round < rounds; ++round) {
    size_t row = 0;
    for (const auto& [operation, verb] : kVerbs)
      for (const int64_t size : sizes) {
        const int64_t part = (size + n * size_of(DType::kF32) - 1) / (n * size_of(DType::kF32));
        Verbs verbs(ctx, world, part);
        for (const Measured& kind : kinds) {
          Communicator& comm = kind.comm ? *kind.comm : world;
          const Timing timing = measure(verbs.ctx(), effort, [&, of = verb](int64_t) { verbs.call(comm, of); });
          if (round == 0) {
            fastest.push_back(timing);
            bytes.push_back(verbs.bytes());
          }
          fastest[row] = fastest_of(fastest[row], timing);
          ++row;
        }
      }
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  size_t row = 0;
  for (const auto& [operation, verb] : kVerbs) {
    const double on_link = (verb == CollectiveVerb::kAllReduce ? 2.0 : 1.0) * (n - 1) / n;
    for (size_t size = 0; size < sizes.size(); ++size)
      for (const Measured& kind : kinds) {
        const Timing& timing = fastest[row];
        const double rate = bytes[row] / timing.median / 1e9;
        nlohmann::ordered_json model, error;
        if (kind.own) {
          const double seconds = collective_seconds(*kind.own, verb, n, bytes[row], costs);
          model = seconds * 1e6;
          error = seconds / timing.median - 1;
        }
        rows.push_back({{"operation", operation},
                        {"algorithm", kind.algorithm},
                        {"bytes", static_cast<int64_t>(bytes[row])},
                        {"microseconds", timing.median * 1e6},
                        {"least", timing.least * 1e6},
                        {"most", timing.most * 1e6},
                        {"algorithm_gb_per_second", rate},
                        {"bus_gb_per_second", rate * on_link},
                        {"model_microseconds", model},
                        {"error", error}});
        ++row;
      }
  }
  return rows;
}

std::string algorithms_text(const nlohmann::ordered_json& rows) {
  std::map<std::string, nlohmann::ordered_json> worst;  // by operation and algorithm: the row with the largest error
  for (const auto& row : rows) {
    if (row["error"].is_null()) continue;
    nlohmann::ordered_json& most = worst[concat(row["operation"].get<std::string>(), " by ", row["algorithm"].get<std::string>())];
    if (most.is_null() || std::abs(row["error"].get<double>()) > std::abs(most["error"].get<double>())) most = row;
  }
  std::string text = table_of(rows);
  for (const auto& [what, row] : worst)
    text += concat("largest error of the model of ", what, ": ", std::round(1000 * row["error"].get<double>()) / 10, " % at ",
                   row["bytes"].get<int64_t>(), " bytes\n");
  return text;
}

void on_rank_threads(int ranks, const std::function<void(Communicator& world)>& body) {
  ThreadWorld shared(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Communicator> world = shared.communicator(rank);  // outlives the abort, so that ranks do not report a deadlock first
      try {
        body(*world);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        shared.abort(concat("rank ", rank, " failed: ", printable(error)));
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace trireme::bench
