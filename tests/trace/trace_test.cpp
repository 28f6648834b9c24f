// The trace itself, on kernels whose races and requests are known.
#include "tests/trace/trace.h"

#include "tests/cuda_sim/test_device.h"
#include "tests/trace/access_patterns.h"
#include "tests/trace/async_patterns.h"
#include "tests/trace/barrier_patterns.h"

using namespace cuda_trace;
using access_patterns::Order;
using access_patterns::Turn;
using async_patterns::Lack;
namespace kernels = kernels_under_test;

namespace {

/// The one launch that `body` queues, under the given seed.
template <class Body>
Launch traced(uint64_t seed, Body&& body) {
  cuda_sim::set_seed(seed);
  const TestStream stream;
  start();
  CUDA_OK(body(static_cast<cudaStream_t>(stream)));
  CUDA_OK(cudaStreamSynchronize(stream));
  std::vector<Launch> launches = stop();
  REQUIRE(launches.size() == 1);
  return launches[0];
}

/// True if the launch races; it must do so under every seed or under none.
template <class Body>
bool races(Body&& body) {
  int found = 0;
  constexpr int kSeeds = 6;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) found += !traced(seed, body).races.empty();
  CHECK((found == 0 || found == kSeeds));
  return found > 0;
}

/// Texts of the races that each seed finds, of all seeds together.
template <class Body>
std::string reports(Body&& body) {
  std::string texts;
  for (uint64_t seed = 0; seed < 6; ++seed)
    for (const Race& race : traced(seed, body).races) texts += race.what + "\n";
  return texts;
}

}  // namespace

TEST_CASE("a coalesced request of a warp is four sectors, and one of every second word eight") {
  cuda_sim::reset();
  const DeviceArray<float> x(std::vector<float>(256, 1.0F));
  DeviceArray<float> y(128);
  for (const int stride : {1, 2, 8}) {
    const Launch launch = traced(0, [&](cudaStream_t stream) { return access_patterns::strided_load(x.get(), y.get(), stride, stream); });
    CHECK_THAT(launch.kernel, Catch::Contains("strided_load_kernel"));
    const Traffic& loads = launch.of(Kind::kGlobalLoad);
    CHECK(loads.requests == 1);
    CHECK(loads.bytes == 128);
    CHECK(loads.units == 4 * stride);
    CHECK(loads.excess() == stride);
    CHECK(launch.of(Kind::kGlobalStore).units == 4);
    CHECK(launch.bytes_read == 128);
    CHECK(launch.bytes_written == 128);
  }
  const Launch vectors = traced(0, [&](cudaStream_t stream) { return access_patterns::vector_copy(x.get(), y.get(), stream); });
  for (const Kind kind : {Kind::kGlobalLoad, Kind::kGlobalStore}) {
    CHECK(vectors.of(kind).requests == 1);
    CHECK(vectors.of(kind).units == 16);
    CHECK(vectors.of(kind).excess() == 1);
  }
}

TEST_CASE("lanes that share a bank take one pass after another") {
  cuda_sim::reset();
  DeviceArray<float> y(32);
  for (const auto& [stride, passes] : {std::pair(32, 32), {33, 1}, {34, 2}, {36, 4}}) {
    const Launch launch = traced(0, [&](cudaStream_t stream) { return access_patterns::shared_column(y.get(), stride, stream); });
    INFO("stride " << stride);
    CHECK(launch.of(Kind::kSharedLoad).requests == 1);
    CHECK(launch.of(Kind::kSharedLoad).units == passes);
    CHECK(launch.of(Kind::kSharedStore).requests == 32);
    CHECK(launch.of(Kind::kSharedStore).excess() == 1);
  }
}

TEST_CASE("races within a block are found under every schedule, and ordered accesses are none") {
  cuda_sim::reset();
  DeviceArray<float> y(64);
  const auto exchange = [&](Order between, int apart) {
    return races([&](cudaStream_t stream) { return access_patterns::exchange(y.get(), between, apart, stream); });
  };
  const auto overwrite = [&](Order between) {
    return races([&](cudaStream_t stream) { return access_patterns::overwrite(y.get(), between, stream); });
  };
  CHECK_FALSE(exchange(Order::kNothing, 0));
  for (const Order order : {Order::kNothing, Order::kShuffle, Order::kHalfOfTheWarp}) {
    CHECK(exchange(order, 1));
    CHECK(overwrite(order));
  }
  CHECK(exchange(Order::kWholeWarp, 32));  // a barrier of a warp orders only that warp
  CHECK_FALSE(exchange(Order::kWholeWarp, 1));
  CHECK_FALSE(overwrite(Order::kWholeWarp));
  CHECK_FALSE(exchange(Order::kBarrier, 1));
  CHECK_FALSE(exchange(Order::kBarrier, 32));
  CHECK_FALSE(overwrite(Order::kBarrier));

  const DeviceArray<float> x(std::vector<float>(256, 1.0F));
  for (const int forget : {0, 1, 2}) {
    INFO("forgets barrier " << forget);
    CHECK(races([&](cudaStream_t stream) { return kernels::tree_sum(x.get(), y.get(), 256, 256, forget, stream); }) == (forget != 0));
  }
}

TEST_CASE("a report of a race names both places") {
  cuda_sim::reset();
  DeviceArray<float> y(64);
  const Launch launch = traced(1, [&](cudaStream_t stream) { return access_patterns::exchange(y.get(), Order::kNothing, 1, stream); });
  REQUIRE(!launch.races.empty());
  const std::string text = text_of(launch.races[0]);
  CHECK_THAT(text, Catch::Contains("shared memory, threads ") && Catch::Contains("earlier: ") && Catch::Contains("later: "));
}

TEST_CASE("bytes of cp.async are ordered by the wait of their thread and a barrier") {
  cuda_sim::reset();
  const DeviceArray<float> x(std::vector<float>(256, 1.0F));
  DeviceArray<float> y(256);
  for (const int wait : {0, 1, -1}) {  // groups that may be left; -1: no wait
    INFO("wait " << wait);
    CHECK(races([&](cudaStream_t stream) { return kernels::async_copy(x.get(), y.get(), wait, 64, stream); }) == (wait != 0));
  }
  const Launch launch = traced(0, [&](cudaStream_t stream) { return kernels::async_copy(x.get(), y.get(), 0, 50, stream); });
  CHECK(launch.bytes_read == 50 * 16);  // the others are filled with zeros
  CHECK(launch.of(Kind::kSharedStore).bytes == 64 * 16);
  CHECK(launch.of(Kind::kSharedStore).excess() == 1);
}

TEST_CASE("blocks conflict at a byte that one of them writes without an atomic") {
  cuda_sim::reset();
  DeviceArray<float> x(2);
  DeviceArray<int> counts(std::vector<int>{0});
  CHECK(races([&](cudaStream_t stream) { return access_patterns::two_blocks(x.get(), false, stream); }));
  CHECK_FALSE(races([&](cudaStream_t stream) { return access_patterns::two_blocks(x.get(), true, stream); }));
  CHECK(races([&](cudaStream_t stream) { return access_patterns::block_reads_block(x.get(), stream); }));
  CHECK_FALSE(races([&](cudaStream_t stream) { return kernels::count(counts.get(), 3, 64, stream); }));
}

// With three blocks the third is ordered behind the first through the second.
TEST_CASE("a release and a wait order two blocks, from the barrier before the release to the barrier after the wait") {
  cuda_sim::reset();
  DeviceArray<float> x(64);
  DeviceArray<uint32_t> counters(2);
  for (const unsigned blocks : {2U, 3U}) {
    for (const Turn turn : {Turn::kOrdered, Turn::kNoWait, Turn::kReadsBeforeBarrier, Turn::kReleasesBeforeBarrier}) {
      INFO(blocks << " blocks, defect " << static_cast<int>(turn));
      const bool found = races([&](cudaStream_t stream) {
        CUDA_OK(cudaMemsetAsync(counters.get(), 0, 2 * sizeof(uint32_t), stream));
        return access_patterns::in_turn(x.get(), counters.get(), turn, blocks, stream);
      });
      CHECK(found == (turn != Turn::kOrdered));
    }
  }
}

struct LackOf {
  Lack lack;
  const char* report;  ///< null: no race
};

TEST_CASE("operands of products are ordered by fence_proxy_async and a barrier before, and by the wait and a barrier behind") {
  cuda_sim::reset();
  const DeviceArray<float> x(std::vector<float>(2048, 1.0F));
  DeviceArray<float> d(128 * 32);
  const bool by_copies = GENERATE(false, true), named = GENERATE(false, true);
  const LackOf of = GENERATE(LackOf{Lack::kNothing, nullptr}, LackOf{Lack::kCopyWait, "cp.async without a wait, then wgmma"},
                             LackOf{Lack::kProxyFence, "write without fence_proxy_async, then wgmma"},
                             LackOf{Lack::kProxyFenceFirst, "write without fence_proxy_async, then wgmma"},
                             LackOf{Lack::kOneProxyFence, "write without fence_proxy_async, then wgmma"},
                             LackOf{Lack::kBarrier, "write, fence_proxy_async without a barrier, then wgmma"},
                             LackOf{Lack::kWait, "wgmma without a wait, then write"}, LackOf{Lack::kCommit, "wgmma without a wait, then write"},
                             LackOf{Lack::kWaitForAll, "wgmma without a wait, then write"}, LackOf{Lack::kBarrierAfterWait, "warpgroup 0"},
                             LackOf{Lack::kOwnWarpgroup, nullptr});
  if (of.lack == Lack::kCopyWait && !by_copies) return;
  INFO((by_copies ? "cp.async" : "stores") << (named ? ", named barriers" : "") << ", lack " << static_cast<int>(of.lack));
  const auto body = [&](cudaStream_t stream) { return async_patterns::operands(x.get(), d.get(), of.lack, by_copies, named, stream); };
  CHECK(races(body) == (of.report != nullptr));
  if (of.report != nullptr) CHECK_THAT(reports(body), Catch::Contains(of.report));
}

TEST_CASE("operands that another warpgroup writes are ordered by named barriers of all four warps that multiply") {
  cuda_sim::reset();
  const DeviceArray<float> x(std::vector<float>(2048, 1.0F));
  DeviceArray<float> d(128 * 32);
  const bool by_copies = GENERATE(false, true);
  const LackOf of = GENERATE(LackOf{Lack::kNothing, nullptr}, LackOf{Lack::kCopyWait, "cp.async without a wait, then wgmma"},
                             LackOf{Lack::kProxyFence, "write without fence_proxy_async, then wgmma"},
                             LackOf{Lack::kProxyFenceFirst, "write without fence_proxy_async, then wgmma"}, LackOf{Lack::kBarrier, "wgmma"},
                             LackOf{Lack::kProxyFenceLate, "write, fence_proxy_async without a barrier, then wgmma"},
                             LackOf{Lack::kWait, "wgmma without a wait, then write"}, LackOf{Lack::kBarrierAfterWait, "warpgroup 0"},
                             LackOf{Lack::kWarpBefore, "write, fence_proxy_async without a barrier, then wgmma"},
                             LackOf{Lack::kWarpAfterWait, "wgmma and a wait without a barrier, then write"});
  if (of.lack == Lack::kCopyWait && !by_copies) return;
  INFO((by_copies ? "cp.async" : "stores") << ", lack " << static_cast<int>(of.lack));
  const auto body = [&](cudaStream_t stream) { return async_patterns::passed_operands(x.get(), d.get(), of.lack, by_copies, stream); };
  CHECK(races(body) == (of.report != nullptr));
  if (of.report != nullptr) CHECK_THAT(reports(body), Catch::Contains(of.report));
}

TEST_CASE("named barriers order what a warp did before it arrives, before what the warps of the phase that wait do behind it") {
  cuda_sim::reset();
  using barrier_patterns::Between;
  const DeviceArray<float> x(std::vector<float>(4 * 64, 1.0F));
  DeviceArray<float> y(4 * 64);
  using barrier_patterns::Lack;
  for (const bool by_copies : {false, true})
    for (const Lack lack : {Lack::kNothing, Lack::kRead, Lack::kReadsLast, Lack::kWritesFirst, Lack::kArrivesFirst, Lack::kArrivesInstead}) {
      INFO((by_copies ? "cp.async" : "stores") << ", lack " << static_cast<int>(lack));
      CHECK(races([&](cudaStream_t stream) { return barrier_patterns::ring(x.get(), y.get(), lack, by_copies, stream); }) ==
            (lack != Lack::kNothing));
    }
  for (const Between between : {Between::kOwn, Between::kOther, Between::kChain, Between::kBroken, Between::kSameWarp, Between::kArriving}) {
    INFO("between " << static_cast<int>(between));
    const bool ordered = between == Between::kOwn || between == Between::kChain || between == Between::kSameWarp;
    CHECK(races([&](cudaStream_t stream) { return barrier_patterns::pairs(y.get(), between, stream); }) != ordered);
  }
}

TEST_CASE("of many warps that have read, each must arrive before a write behind a named barrier") {
  cuda_sim::reset();
  DeviceArray<float> y(160);
  for (const int forgotten : {0, 1, 2, 3, 4}) {
    INFO("without warp " << forgotten);
    CHECK(races([&](cudaStream_t stream) { return barrier_patterns::readers(y.get(), forgotten, stream); }) == (forgotten != 0));
  }
}

TEST_CASE("named barriers carry the order between blocks from and to the threads that wait and release") {
  cuda_sim::reset();
  using barrier_patterns::Turn;
  DeviceArray<float> x(32);
  DeviceArray<uint32_t> counters(2);
  for (const unsigned blocks : {2U, 3U}) {
    for (const Turn turn : {Turn::kOrdered, Turn::kNoWait, Turn::kLoadsBeforeBarrier, Turn::kArrivesBeforeStore}) {
      INFO(blocks << " blocks, defect " << static_cast<int>(turn));
      const bool found = races([&](cudaStream_t stream) {
        CUDA_OK(cudaMemsetAsync(counters.get(), 0, 2 * sizeof(uint32_t), stream));
        return barrier_patterns::in_turn(x.get(), counters.get(), turn, blocks, stream);
      });
      CHECK(found == (turn != Turn::kOrdered));
    }
  }
}

TEST_CASE("what a bulk operation reads is ordered as operands of products, by its own thread too") {
  cuda_sim::reset();
  DeviceArray<float> x(std::vector<float>(64, 1.0F)), y(1);
  const bool add = GENERATE(false, true), named = GENERATE(false, true);
  const LackOf of =
      GENERATE(LackOf{Lack::kNothing, nullptr}, LackOf{Lack::kProxyFence, "write without fence_proxy_async, then bulk operation"},
               LackOf{Lack::kProxyFenceFirst, "write without fence_proxy_async, then bulk operation"},
               LackOf{Lack::kOneProxyFence, "write without fence_proxy_async, then bulk operation"},
               LackOf{Lack::kBarrier, "write, fence_proxy_async without a barrier, then bulk operation"},
               LackOf{Lack::kWait, "bulk operation without a wait, then write"}, LackOf{Lack::kCommit, "bulk operation without a wait, then write"},
               LackOf{Lack::kBarrierAfterWait, "bulk operation and a wait without a barrier, then write"}, LackOf{Lack::kOwnWarpgroup, nullptr});
  INFO((add ? "bulk_add" : "bulk_store") << (named ? ", named barriers" : "") << ", lack " << static_cast<int>(of.lack));
  const auto body = [&](cudaStream_t stream) { return async_patterns::bulk(x.get(), add, of.lack, named, stream); };
  CHECK(races(body) == (of.report != nullptr));
  if (of.report != nullptr) CHECK_THAT(reports(body), Catch::Contains(of.report));
  CHECK_FALSE(races([&](cudaStream_t stream) { return async_patterns::bulk_of_warp(x.get(), stream); }));
}

TEST_CASE("what a bulk operation writes is ordered by its wait and a barrier, and behind stores by a barrier") {
  cuda_sim::reset();
  DeviceArray<float> x(64), y(1);
  for (const Lack lack : {Lack::kNothing, Lack::kWait, Lack::kBarrierAfterWait})
    CHECK(races([&](cudaStream_t stream) { return async_patterns::load_stored(x.get(), y.get(), lack, stream); }) == (lack != Lack::kNothing));
  for (const Lack lack : {Lack::kNothing, Lack::kBarrier})
    CHECK(races([&](cudaStream_t stream) { return async_patterns::add_to_stored(x.get(), lack, stream); }) == (lack != Lack::kNothing));
}

TEST_CASE("bulk additions of blocks do not conflict, and a release behind their wait orders them before other accesses") {
  cuda_sim::reset();
  using async_patterns::Turn;
  DeviceArray<float> x(std::vector<float>(64, 0.0F)), y(64);
  DeviceArray<uint32_t> counters(2);
  for (const Turn turn : {Turn::kOrdered, Turn::kUnorderedAdditions, Turn::kUnorderedStore, Turn::kReleasesBeforeWait, Turn::kLoadsBeforeBarrier}) {
    INFO("turn " << static_cast<int>(turn));
    const bool found = races([&](cudaStream_t stream) {
      CUDA_OK(cudaMemsetAsync(counters.get(), 0, 2 * sizeof(uint32_t), stream));
      return async_patterns::in_turn(x.get(), y.get(), counters.get(), turn, 3, stream);
    });
    CHECK(found == (turn != Turn::kOrdered && turn != Turn::kUnorderedAdditions));
    if (turn == Turn::kOrdered) CHECK(y.host() == std::vector<float>(64, 3.0F));
  }
}

TEST_CASE("a bulk operation is one request of its bytes, and an addition loads them too") {
  cuda_sim::reset();
  DeviceArray<float> x(std::vector<float>(68, 0.0F));
  for (const bool add : {false, true}) {
    for (const bool aligned : {true, false}) {
      const Launch launch =
          traced(0, [&](cudaStream_t stream) { return async_patterns::bulk(x.get() + (aligned ? 0 : 4), add, Lack::kNothing, false, stream); });
      for (const Kind kind : {Kind::kGlobalStore, Kind::kGlobalLoad}) {
        const bool counts = add || kind == Kind::kGlobalStore;
        CHECK(launch.of(kind).requests == (counts ? 1 : 0));
        CHECK(launch.of(kind).bytes == (counts ? 256 : 0));
        CHECK(launch.of(kind).units == (!counts ? 0 : aligned ? 8 : 9));
      }
      CHECK(launch.bytes_written == 256);
      CHECK(launch.bytes_read == (add ? 256 : 0));
      CHECK(launch.of(Kind::kSharedLoad).requests == 0);
    }
  }
}

TEST_CASE("only launches between start and stop are recorded") {
  cuda_sim::reset();
  DeviceArray<float> x(2);
  const TestStream stream;
  CUDA_OK(access_patterns::two_blocks(x.get(), true, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  start();
  CHECK(stop().empty());
}
