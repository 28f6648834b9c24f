// Kernels on the simulated machine: threads of a block, warps, shared memory, and the errors that must be detected.
#include <cmath>
#include <numeric>
#include <set>

#include "tests/cuda_sim/test_device.h"

using namespace cuda_sim;
namespace kernels = kernels_under_test;
using kernels::Defect;

TEST_CASE("Every thread of a grid runs once") {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    reset(seed);
    TestStream stream;
    DeviceArray<int> counts(std::vector<int>{0});
    DeviceArray<float> x(std::vector<float>(1000, 1.0f));
    CUDA_OK(kernels::count(counts.get(), 37, 96, stream));
    CUDA_OK(kernels::add_one(x.get(), 1000, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(counts.host()[0] == 37 * 96);
    CHECK(x.host() == std::vector<float>(1000, 2.0f));
    CHECK(statistics().kernels == 2);
  }
}

TEST_CASE("A block reduces through shuffles, shared memory and a barrier") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    reset(seed);
    TestStream stream;
    std::vector<float> values(777);
    std::iota(values.begin(), values.end(), 1.0f);
    const DeviceArray<float> x(values);
    DeviceArray<float> sum(1);
    for (const int threads : {32, 64, 256, 1024}) {
      CUDA_OK(kernels::block_sum(x.get(), sum.get(), 777, threads, stream));
      CUDA_OK(cudaStreamSynchronize(stream));
      CHECK(sum.host()[0] == 777 * 778 / 2);
      CUDA_OK(kernels::tree_sum(x.get(), sum.get(), 777, 1024, 0, stream));
      CUDA_OK(cudaStreamSynchronize(stream));
      CHECK(sum.host()[0] == 777 * 778 / 2);
    }
  }
}

TEST_CASE("A missing barrier produces a wrong sum") {
  const int forget = GENERATE(1, 2);
  int wrong = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    reset(seed);
    TestStream stream;
    const DeviceArray<float> x(std::vector<float>(256, 1.0f));
    DeviceArray<float> sum(1);
    CUDA_OK(kernels::tree_sum(x.get(), sum.get(), 256, 256, forget, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    wrong += sum.host()[0] != 256;
  }
  CHECK(wrong >= 6);
}

TEST_CASE("Blocks and threads run in an order drawn from the seed") {
  std::set<std::vector<int>> block_orders, thread_orders;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    reset(seed);
    TestStream stream;
    DeviceArray<int> counter(std::vector<int>{0}), blocks(16), threads(16);
    CUDA_OK(kernels::orders(counter.get(), blocks.get(), threads.get(), stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    block_orders.insert(blocks.host());
    std::vector<int> order = threads.host();
    const int first = *std::min_element(order.begin(), order.end());
    for (int& at : order) at -= first;
    thread_orders.insert(order);
  }
  CHECK(block_orders.size() == 8);
  CHECK(thread_orders.size() >= 4);
}

TEST_CASE("Blocks that take their places by a ticket run in turn, and a wait for a block that has not run is reported") {
  constexpr unsigned kBlocks = 6;
  uint32_t expected = 0;
  for (uint32_t place = 0; place < kBlocks; ++place) expected = 31 * expected + place;
  int reported = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (const bool by_ticket : {true, false}) {
      reset(seed);
      TestStream stream;
      DeviceArray<uint32_t> counters(std::vector<uint32_t>{0, 0}), sum(std::vector<uint32_t>{0});
      (void)kernels::in_turn(counters.get(), sum.get(), kBlocks, by_ticket, stream);
      const cudaError_t error = cudaStreamSynchronize(stream);
      if (by_ticket) {
        CHECK(error == cudaSuccess);
        CHECK(sum.host()[0] == expected);
      } else if (error != cudaSuccess) {
        ++reported;
        CHECK(error == cudaErrorLaunchFailure);
        REQUIRE(errors().size() == 1);
        CHECK_THAT(errors()[0], Catch::Contains("in_turn_kernel") && Catch::Contains("for a block that has not run: the counter is "));
      }
    }
  }
  CHECK(reported >= 6);
  reset();
}

TEST_CASE("A counter between blocks that was not cleared before the launch is reported") {
  for (const uint32_t stale : {0U, 1U, 6U}) {
    reset();
    TestStream stream;
    DeviceArray<uint32_t> counters(std::vector<uint32_t>{0, stale}), sum(std::vector<uint32_t>{0});
    (void)kernels::in_turn(counters.get(), sum.get(), 6, true, stream);
    const cudaError_t error = cudaStreamSynchronize(stream);
    CHECK((error == cudaSuccess) == (stale == 0));
    if (stale == 0) continue;
    REQUIRE(errors().size() == 1);
    CHECK_THAT(errors()[0], Catch::Contains("in_turn_kernel") && Catch::Contains("to 1, which is " + std::to_string(stale) + " already"));
  }
  reset();
}

TEST_CASE("On request a large launch runs its first and last block and some between, the same in each launch of its size") {
  Options options;
  options.sampled_blocks = 20;
  constexpr unsigned kBlocks = 100000;
  std::vector<std::vector<int>> ran;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    reset(seed, options);
    TestStream stream;
    const DeviceArray<int> few(std::vector<int>(4096, 0)), many(std::vector<int>(kBlocks, 0));
    CUDA_OK(kernels::mark_blocks(few.get(), 4096, stream));
    CUDA_OK(kernels::mark_blocks(many.get(), kBlocks, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(few.host() == std::vector<int>(4096, 1));
    ran.push_back(many.host());
    CHECK(std::accumulate(ran.back().begin(), ran.back().end(), 0) == 22);
    CHECK((ran.back().front() == 1 && ran.back().back() == 1));
    CHECK(ran.back() == ran.front());
  }
  reset();
}

TEST_CASE("On request only chosen launches of each kernel run") {
  Options options;
  options.sampled_launches = {0, 3};
  reset(0, options);
  TestStream stream;
  const DeviceArray<int> counts(std::vector<int>(1, 0)), marks(std::vector<int>(5, 0));
  for (int i = 0; i < 5; ++i) {
    CUDA_OK(kernels::count(counts.get(), 1, 1, stream));
    CUDA_OK(kernels::mark_blocks(marks.get() + i, 1, stream));
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  CHECK(counts.host() == std::vector<int>{2});
  CHECK(marks.host() == std::vector<int>{1, 0, 0, 1, 0});
  reset();
}

TEST_CASE("Shuffles and votes follow CUDA's definition") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    reset(seed);
    TestStream stream;
    DeviceArray<int> out(32 * 8);
    DeviceArray<unsigned> voted(4);
    CUDA_OK(kernels::shuffles(out.get(), stream));
    CUDA_OK(kernels::votes(voted.get(), stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    const std::vector<int> got = out.host();
    for (int t = 0; t < 32; ++t) {
      const int* const own = got.data() + t * 8;
      CHECK(own[0] == 5);
      CHECK(own[1] == t / 8 * 8 + 5);
      CHECK(own[2] == (t < 3 ? t : t - 3));
      CHECK(own[3] == (t > 28 ? t : t + 3));
      CHECK(own[4] == (t ^ 9));
      CHECK(own[5] == (t % 8 < 3 ? t : t - 3));
      CHECK(own[6] == (t % 8 > 4 ? t : t + 3));
      if (t < 10) CHECK(own[7] == t + 10);
      if (t >= 20) CHECK(own[7] == -7);
    }
    CHECK(voted.host() == std::vector<unsigned>{0xaaaaaaaau, 0, 1, 0xc000u});
  }
}

TEST_CASE("Fresh shared memory is poisoned in every block") {
  reset(3);
  TestStream stream;
  DeviceArray<float> y(64);
  CUDA_OK(kernels::read_shared(y.get(), 128, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  for (const float value : y.host()) CHECK(std::isnan(value));
}

TEST_CASE("Divergent synchronisation is reported with block and thread") {
  struct Row {
    Defect wrong;
    const char* text;
  };
  const Row row =
      GENERATE(Row{Defect::kMaskTooSmall, "not in its own mask"}, Row{Defect::kMaskTooLarge, "returned"}, Row{Defect::kLanesApart, "shuffle"},
               Row{Defect::kHalfAtBarrier, "__syncthreads"}, Row{Defect::kBarrierAndShuffle, "__syncwarp"}, Row{Defect::kDivides, "divides"});
  for (uint64_t seed = 0; seed < 8; ++seed) {
    reset(seed);
    TestStream stream;
    const DeviceArray<float> x(std::vector<float>(64, 1.0f));
    CUDA_OK(kernels::launch_defective(Defect::kNothing, x.get(), 64, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    (void)kernels::launch_defective(row.wrong, x.get(), 64, stream);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);  // sticky
    REQUIRE(errors().size() == 1);
    CHECK_THAT(errors()[0],
               Catch::Contains(row.text) && Catch::Contains("wrong_kernel") && Catch::Contains("thread (") && Catch::Contains("block (0,0,0)"));
  }
  reset();
  CHECK(cudaGetLastError() != cudaErrorLaunchTimeout);
}

TEST_CASE("Out-of-bounds accesses of kernels are detected") {
  // 64 floats end at the end of the allocation's last page; after 65 floats there are bytes that are checked when the memory is freed.
  CHECK(run_in_child([] {
          TestStream stream;
          float* x = nullptr;
          CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&x), 256));
          (void)kernels::launch_defective(Defect::kBehindGlobal, x, 64, stream);
          return cudaStreamSynchronize(stream);
        }) == cudaErrorIllegalAddress);
  CHECK(run_in_child([] {
          TestStream stream;
          float* x = nullptr;
          CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&x), 65 * 4));
          (void)kernels::launch_defective(Defect::kBehindGlobal, x, 65, stream);
          const cudaError_t error = cudaStreamSynchronize(stream);
          return error != cudaSuccess ? error : cudaFree(x);
        }) == cudaErrorIllegalAddress);
  for (const Defect wrong : {Defect::kBehindShared, Defect::kStackOverflow})
    CHECK(run_in_child([wrong] {
            TestStream stream;
            float* x = nullptr;
            CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&x), 256));
            (void)kernels::launch_defective(wrong, x, 64, stream);
            return cudaStreamSynchronize(stream);
          }) == cudaErrorIllegalAddress);
}

TEST_CASE("Misaligned accesses of 16 bytes are reported with kernel and place, in global and shared memory") {
  const auto [wrong, memory] = GENERATE(table<Defect, std::string>({{Defect::kMisalignedLoad, "global"},
                                                                    {Defect::kMisalignedStore, "global"},
                                                                    {Defect::kMisalignedCarve, "shared"},
                                                                    {Defect::kMisalignedCopy, "shared"}}));
  INFO(memory << " memory, defect " << static_cast<int>(wrong));
  reset();
  TestStream stream;
  const DeviceArray<float> x(std::vector<float>(64, 1.0f));
  (void)kernels::launch_defective(wrong, x.get(), 64, stream);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorMisalignedAddress);
  REQUIRE(errors().size() == 1);
  CHECK_THAT(errors()[0], Catch::Contains("wrong_kernel") && Catch::Contains("aligned") && Catch::Contains("kernels_under_test.cu"));
  reset();
}

TEST_CASE("Launches outside the limits are rejected") {
  reset();
  TestStream stream;
  CHECK(kernels::with_shape({1, 1, 1}, {1024, 1, 1}, 0, stream) == cudaSuccess);
  CHECK(kernels::with_shape({1, 1, 1}, {1024, 2, 1}, 0, stream) == cudaErrorInvalidConfiguration);
  CHECK(kernels::with_shape({1, 1, 1}, {1, 1, 65}, 0, stream) == cudaErrorInvalidConfiguration);
  CHECK(kernels::with_shape({1, 65536, 1}, {1, 1, 1}, 0, stream) == cudaErrorInvalidConfiguration);
  CHECK(kernels::with_shape({0, 1, 1}, {1, 1, 1}, 0, stream) == cudaErrorInvalidConfiguration);
  CHECK(kernels::with_shape({1, 1, 1}, {1, 1, 1}, 0, reinterpret_cast<cudaStream_t>(uintptr_t{77})) == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaSuccess);
  CUDA_OK(cudaStreamSynchronize(stream));
}

TEST_CASE("Shared memory above 48 KB is refused until the kernel has opted in to it on that device") {
  reset();
  TestStream stream;
  const auto launch = [](size_t bytes, cudaStream_t on) { return kernels::with_shape({1, 1, 1}, {32, 1, 1}, bytes, on); };
  CHECK(launch(48 << 10, stream) == cudaSuccess);
  CHECK(launch((48 << 10) + 1, stream) == cudaErrorInvalidValue);
  CHECK(kernels::allow_shared((227 << 10) + 1) == cudaErrorInvalidValue);
  CUDA_OK(kernels::allow_shared(100 << 10));
  CHECK(launch(100 << 10, stream) == cudaSuccess);
  CHECK(launch((100 << 10) + 1, stream) == cudaErrorInvalidValue);
  CUDA_OK(kernels::allow_shared(227 << 10));
  CHECK(launch(227 << 10, stream) == cudaSuccess);
  CUDA_OK(cudaStreamSynchronize(stream));

  CUDA_OK(cudaSetDevice(1));
  {
    TestStream other;
    CHECK(launch(100 << 10, other) == cudaErrorInvalidValue);
  }
  CUDA_OK(cudaSetDevice(0));

  // Static memory counts.
  DeviceArray<float> y(64);
  CUDA_OK(kernels::read_shared(y.get(), (48 << 10) - 128, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(kernels::read_shared(y.get(), 48 << 10, stream));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidValue);
  CHECK_THAT(errors().at(0), Catch::Contains("read_shared_kernel") && Catch::Contains("shared memory"));
  reset();
}

TEST_CASE("An asynchronous copy is visible after its wait, and not reliably before") {
  std::vector<float> values(256);
  std::iota(values.begin(), values.end(), 1.0f);
  int early_second = 0, early_all = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    reset(seed);
    TestStream stream;
    const DeviceArray<float> x(values);
    DeviceArray<float> y(256), first(256), none(256);
    CUDA_OK(kernels::async_copy(x.get(), y.get(), 0, 50, stream));
    CUDA_OK(kernels::async_copy(x.get(), first.get(), 1, 64, stream));
    CUDA_OK(kernels::async_copy(x.get(), none.get(), -1, 64, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    std::vector<float> want = values;
    std::fill(want.begin() + 200, want.end(), 0.0f);
    CHECK(y.host() == want);
    const std::vector<float> half = first.host();
    CHECK(std::equal(half.begin(), half.begin() + 128, values.begin()));
    early_second += half != values;
    early_all += none.host() != values;
  }
  CHECK(early_second >= 3);
  CHECK(early_all >= 3);
}
