// Products of warpgroups against plain products and NVIDIA's own layouts in CuTe (CUTLASS 3, include/cute), bulk operations, named barriers and the
// exchange of registers, and the errors of all.
#include <cmath>
#include <string>

#include "kernels/core/bfloat16.h"
#include "kernels/core/float16.h"
#include "tests/cuda_sim/fragment_layout.h"
#include "tests/cuda_sim/test_device.h"
#include "tests/cuda_sim/warpgroup.h"
#include "tests/cuda_sim/warpgroup_kernels.h"

using namespace cuda_sim;
namespace kernels = warpgroup_kernels;
using kernels::Defect, kernels::BarrierDefect, kernels::RegistersDefect;

namespace {

constexpr int kThreads = 128, kRows = 64, kDepth = 64;

// mma_traits_sm90_gmma.hpp, CLayout_64xN, at row + 64 column; ALayout_64x16 is that of 16 columns.
FragmentLayout results_of(int columns) { return {{{4, 8, 4}, {128, 1, 16}}, {{2, 2, columns / 8}, {64, 8, 512}}}; }

std::vector<float> random_integers(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.below(31)) - 15;
  return values;
}

uint16_t bits_of(float value, bool half) { return half ? trireme::float16(value).bits : trireme::bfloat16(value).bits; }

std::vector<uint16_t> bits_of(const std::vector<float>& values, bool half) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(bits_of(value, half));
  return bits;
}

/// A in registers: [step][thread][8].
std::vector<uint16_t> fragments_of(const std::vector<float>& a, bool half) {
  const FragmentLayout layout = results_of(16);
  std::vector<uint16_t> fragments;
  for (int step = 0; step < kDepth / 16; ++step)
    for (int thread = 0; thread < kThreads; ++thread)
      for (int value = 0; value < 8; ++value) {
        const size_t at = layout.at(thread, value), row = at % kRows, k = at / kRows + static_cast<size_t>(step) * 16;
        fragments.push_back(bits_of(a[row * kDepth + k], half));
      }
  return fragments;
}

/// The results of launch_defective: all of `value`?
bool all_equal(const DeviceArray<float>& d, float value) {
  const std::vector<float> host = d.host();
  return std::all_of(host.begin(), host.end(), [&](float x) { return x == value; });
}

constexpr int kResults = kThreads * 32;

}  // namespace

TEST_CASE("operands in shared memory lie where CuTe's canonical layouts have them") {
  constexpr int kChunk = 8;  // T of make_gmma_desc in mma_traits_sm90_gmma.hpp, for elements of 16 bits
  const bool transposed = GENERATE(false, true);
  const int extent = GENERATE(64, 128), start = GENERATE(0, 1024, 96 * 1024), stride = GENERATE(1024, 3072), leading = GENERATE(8192, 17 * 1024);
  const int begin = start + (transposed ? 0 : GENERATE(0, 32, 96));
  const uint64_t descriptor =
      static_cast<uint64_t>(begin >> 4) | static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
  const SharedOperand operand(descriptor, transposed, extent);
  REQUIRE(operand.problem() == nullptr);
  // K-major: Swizzle<3,4,3> o ((8,n),(T,2)):((8T,SBO),(1,T)). MN-major: Swizzle<3,4,3> o ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO)).
  const Mode mn = transposed ? Mode{{kChunk, 8, extent / 64}, {1, kChunk, leading / 2}} : Mode{{8, extent / 8}, {8 * kChunk, stride / 2}};
  const Mode k = transposed ? Mode{{8, 2}, {8 * kChunk, stride / 2}} : Mode{{kChunk, 2}, {1, kChunk}};
  bool same = true;
  std::vector<uint32_t> chunks, want_chunks;
  for (int i = 0; i < extent; ++i)
    for (int j = 0; j < 16; ++j) {
      const int plain = begin + 2 * (mn.at(i) + k.at(j)), want = plain ^ (plain & 7 << 7) >> 3;
      same = same && operand.address(i, j) == static_cast<uint32_t>(want);
      if (want % 16 == 0) want_chunks.push_back(static_cast<uint32_t>(want));
    }
  CHECK(same);
  operand.each_chunk([&](uint32_t address) { chunks.push_back(address); });
  std::sort(chunks.begin(), chunks.end());
  std::sort(want_chunks.begin(), want_chunks.end());
  CHECK(chunks == want_chunks);
}

TEST_CASE("descriptors outside of the layouts are refused") {
  const auto descriptor = [](uint64_t start, uint64_t leading, uint64_t stride, uint64_t bits) {
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | bits;
  };
  constexpr uint64_t kSwizzle = uint64_t{1} << 62;
  const auto refused = [&](uint64_t of, bool transposed, int extent = 64) { return SharedOperand(of, transposed, extent).problem() != nullptr; };
  for (const bool transposed : {false, true}) {
    CHECK_FALSE(refused(descriptor(1024, 0, 1024, kSwizzle), transposed));
    for (const uint64_t mode : {0, 2, 3}) CHECK(refused(descriptor(1024, 0, 1024, mode << 62), transposed));
    for (const int bit : {14, 15, 30, 31, 46, 47, 48, 49, 50, 51, 52, 61})
      CHECK(refused(descriptor(1024, 0, 1024, kSwizzle | uint64_t{1} << bit), transposed));
    for (const uint64_t start : {16, 48, 80, 112, 128, 160, 512}) CHECK(refused(descriptor(1024 + start, 0, 1024, kSwizzle), transposed));
    for (const uint64_t start : {32, 64, 96}) CHECK(refused(descriptor(1024 + start, 0, 1024, kSwizzle), transposed) == transposed);
    CHECK(refused(descriptor(1024, 0, 512, kSwizzle), transposed));
    CHECK(refused(descriptor(1024, 8192 + 128, 1024, kSwizzle), transposed, 128) == transposed);  // otherwise without meaning
  }
}

TEST_CASE("products of warpgroups are those of the matrices, in each form") {
  kernels::Form form{};
  form.half = GENERATE(false, true);
  form.columns = GENERATE(64, 128);
  form.registers = GENERATE(false, true);
  form.transposed_a = !form.registers && GENERATE(false, true);
  form.transposed_b = GENERATE(false, true);
  form.add = GENERATE(false, true);
  constexpr int kGroups = 2;
  const auto columns = static_cast<size_t>(form.columns);
  const FragmentLayout layout = results_of(form.columns);
  INFO("half " << form.half << ", columns " << form.columns << ", registers " << form.registers << ", transposed " << form.transposed_a << " "
               << form.transposed_b << ", add " << form.add);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    reset(seed);
    const TestStream stream;
    Random random(seed);
    const std::vector<float> a = random_integers(random, kRows * kDepth), b = random_integers(random, kDepth * columns);
    const std::vector<float> before = random_integers(random, kGroups * kRows * columns);
    const DeviceArray<uint16_t> device_a(form.registers ? fragments_of(a, form.half) : bits_of(a, form.half)), device_b(bits_of(b, form.half));
    const DeviceArray<float> device_d(before);
    CUDA_OK(kernels::product(form, device_a.get(), device_b.get(), device_d.get(), kGroups, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    const std::vector<float> d = device_d.host();
    size_t wrong = 0;
    for (int thread = 0; thread < kGroups * kThreads; ++thread)
      for (int value = 0; value < form.columns / 2; ++value) {
        const size_t at = layout.at(thread % kThreads, value), row = at % kRows, column = at / kRows;
        const size_t place = static_cast<size_t>(thread) * columns / 2 + static_cast<size_t>(value);
        float want = form.add ? before[place] : 0;
        for (size_t k = 0; k < kDepth; ++k) want += a[row * kDepth + k] * b[k * columns + column];
        wrong += d[place] != want;
      }
    CHECK(wrong == 0);
    CHECK(errors().empty());
  }
}

TEST_CASE("on request products of warpgroups truncate as those of mma do") {
  Options options;
  options.hardware_rounding = GENERATE(false, true);
  reset(0, options);
  const TestStream stream;
  std::vector<float> a(kRows * kDepth, 0.0F);  // row 0 is 1 + 3/4 of a unit in the last place
  a[0] = 1, a[5] = 3 * 0x1p-25F;
  const DeviceArray<uint16_t> device_a(bits_of(a, false)), device_b(bits_of(std::vector<float>(kDepth * 64, 1.0F), false));
  const DeviceArray<float> device_d(std::vector<float>(kThreads * 32, 0.0F));
  CUDA_OK(kernels::product({false, 64, false, false, false, false}, device_a.get(), device_b.get(), device_d.get(), 1, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  CHECK(device_d.host()[0] == (options.hardware_rounding ? 1 : 1 + 0x1p-23F));
  reset();
}

TEST_CASE("wrong calls for products and bulk operations are reported with place, block and thread") {
  struct Row {
    Defect wrong;
    const char* text;
  };
  const Row row = GENERATE(
      Row{Defect::kHalfAWarpgroup, "threads that have returned or do not exist at wgmma_fence"}, Row{Defect::kReturned, "have returned"},
      Row{Defect::kReturnsMeanwhile, "returned"}, Row{Defect::kTwoPlaces, "while a thread of its warpgroup waits at wgmma_fence"},
      Row{Defect::kBarrierInstead, "as do all other threads"}, Row{Defect::kNoWgmmaFence, "has called no wgmma_fence since its last wgmma_wait"},
      Row{Defect::kNoSecondFence, "has called no wgmma_fence since its last wgmma_wait"},
      Row{Defect::kOtherOperand, "has another operand than other threads"}, Row{Defect::kOtherAdd, "adds, and other threads"},
      Row{Defect::kOtherSwizzle, "an operand A without the 128-byte swizzle"}, Row{Defect::kBaseOffset, "an operand A with a base offset"},
      Row{Defect::kSecondRow, "an operand B that does not begin at a multiple of 1,024 bytes"},
      Row{Defect::kAcrossRow, "an operand A that does not begin at a multiple of 1,024 bytes"}, Row{Defect::kStride, "an operand B with a stride"},
      Row{Defect::kBehindShared, "an operand B that is not in the dynamic shared memory"},

      Row{Defect::kStaticOperand, "not dynamic shared memory"},
      Row{Defect::kOtherShape, "some of the registers of a pending product of another shape"}, Row{Defect::kNoCommit, "returned before wgmma_commit"},
      Row{Defect::kNoWait, "returned before wgmma_wait"}, Row{Defect::kWaitTooWeak, "returned before wgmma_wait"},
      Row{Defect::kBulkSize, "no multiple of 16"}, Row{Defect::kBulkGlobal, "not 16-byte aligned"}, Row{Defect::kBulkShared, "not 16-byte aligned"},
      Row{Defect::kBulkOutside, "not in the shared memory of the block"}, Row{Defect::kBulkNoCommit, "returned before bulk_commit"},
      Row{Defect::kBulkNoWait, "returned before bulk_wait"});
  INFO("defect " << static_cast<int>(row.wrong) << ": " << row.text);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    reset(seed);
    TestStream stream;
    const DeviceArray<float> d(kResults);
    CUDA_OK(kernels::launch_defective(Defect::kNothing, d.get(), stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(all_equal(d, kDepth));
    (void)kernels::launch_defective(row.wrong, d.get(), stream);
    CHECK(cudaStreamSynchronize(stream) != cudaSuccess);
    REQUIRE(errors().size() == 1);
    CHECK_THAT(errors()[0],
               Catch::Contains(row.text) && Catch::Contains("wrong_") && Catch::Contains("thread (") && Catch::Contains("block (0,0,0)"));
  }
  reset();
}

TEST_CASE("results that are used before the wait are NaN, and an operand that is overwritten before it gives wrong results, under some seeds") {
  const Defect wrong = GENERATE(Defect::kReadsEarly, Defect::kWritesOperand, Defect::kWritesResults, Defect::kScalesResults);
  INFO("defect " << static_cast<int>(wrong));
  constexpr int kSeeds = 16;
  int found = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    reset(seed);
    TestStream stream;
    const DeviceArray<float> d(kResults);
    (void)kernels::launch_defective(wrong, d.get(), stream);
    const cudaError_t error = cudaStreamSynchronize(stream);
    if (wrong == Defect::kWritesResults || wrong == Defect::kScalesResults) {
      found += error != cudaSuccess;
      if (error != cudaSuccess) CHECK_THAT(errors().at(0), Catch::Contains("written registers of a pending product"));
      continue;
    }
    CHECK(error == cudaSuccess);
    const std::vector<float> results = d.host();
    found += !all_equal(d, kDepth);
    if (wrong == Defect::kReadsEarly) CHECK((results[0] == kDepth || std::isnan(results[0])));
  }
  CHECK((found >= 4 && found < kSeeds));
  reset();
}

TEST_CASE("a bulk operation is complete after its wait, and not reliably before") {
  int complete = 0;
  constexpr int kSeeds = 16;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    reset(seed);
    TestStream stream;
    const bool add = seed % 2 == 1;
    const DeviceArray<float> x(64);
    const DeviceArray<int> early(std::vector<int>{0});
    CUDA_OK(kernels::bulk(x.get(), add, early.get(), stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    const std::vector<float> values = x.host();
    for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == static_cast<float>((add ? 3 : 1) * i));
    complete += early.host()[0] == 63;
  }
  CHECK((complete >= 2 && complete <= kSeeds - 4));
  reset();
}

TEST_CASE("products of warpgroups need compute capability 9.0, and bulk operations 9.0 or more") {
  for (const int major : {8, 9, 10}) {
    Options options;
    options.major = major;
    reset(0, options);
    TestStream stream;
    const DeviceArray<float> d(kResults);
    (void)kernels::launch_defective(Defect::kNothing, d.get(), stream);
    CHECK((cudaStreamSynchronize(stream) == cudaSuccess) == (major == 9));
    if (major != 9) CHECK_THAT(errors().at(0), Catch::Contains("needs a GPU of compute capability 9.0"));
  }
  for (const int major : {8, 9, 10}) {
    Options options;
    options.major = major;
    reset(0, options);
    TestStream stream;
    const DeviceArray<float> x(64);
    const DeviceArray<int> early(std::vector<int>{0});
    (void)kernels::bulk(x.get(), true, early.get(), stream);
    CHECK((cudaStreamSynchronize(stream) == cudaSuccess) == (major >= 9));
  }
  reset();
}

TEST_CASE("a wait that leaves one group pending completes the groups before it") {
  constexpr int kSeeds = 16;
  int early = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    reset(seed);
    TestStream stream;
    const DeviceArray<float> first(kResults), second(kResults), both(kResults);
    CUDA_OK(kernels::two_groups(first.get(), second.get(), both.get(), stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(all_equal(first, kDepth));
    CHECK(all_equal(both, 2 * kDepth));
    early += !all_equal(second, kDepth);
  }
  CHECK((early >= 4 && early < kSeeds));
  reset();
}

TEST_CASE("two buffers that warps pass to others by named barriers hold what was written, and not if they are used again too early") {
  constexpr int kSeeds = 24;
  std::vector<float> x(kernels::kRingItems), want;
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  for (const float value : x) want.push_back(2 * value);
  int right = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const bool reuses_early : {false, true}) {
      reset(seed);
      const TestStream stream;
      const DeviceArray<float> device_x(x), y(x.size());
      CUDA_OK(kernels::ring(device_x.get(), y.get(), reuses_early, stream));
      CUDA_OK(cudaStreamSynchronize(stream));
      CHECK(errors().empty());
      if (reuses_early)
        right += y.host() == want;
      else
        CHECK(y.host() == want);
    }
  }
  CHECK(right < kSeeds);
  reset();
}

TEST_CASE("named barriers leave __syncthreads as it is, and the warps that have returned") {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    reset(seed);
    const TestStream stream;
    const DeviceArray<int> y(96);
    CUDA_OK(kernels::barrier_beside(y.get(), stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(y.host() == std::vector<int>(96, 1));
    for (const BarrierDefect allowed : {BarrierDefect::kNothing, BarrierDefect::kStaysOpen, BarrierDefect::kNothing})
      CUDA_OK(kernels::launch_barriers(allowed, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(errors().empty());
  }
  reset();
}

TEST_CASE("wrong calls of named barriers are reported with barrier and line") {
  struct Row {
    BarrierDefect wrong;
    const char* text;
  };
  const Row row = GENERATE(Row{BarrierDefect::kNumber0, "calls barrier 0, which is not one of 1 to 15, at barrier_sync in line "},
                           Row{BarrierDefect::kNumber16, "calls barrier 16, which is not one of 1 to 15, at barrier_arrive in line "},
                           Row{BarrierDefect::kNoThreads, "calls barrier 3 for 0 threads, which is no multiple of 32 up to the 128 of the block"},
                           Row{BarrierDefect::kPartOfAWarp, "for 100 threads, which is no multiple of 32 up to the 128 of the block"},
                           Row{BarrierDefect::kOutside, "for 160 threads, which is no multiple of 32 up to the 128 of the block"},
                           Row{BarrierDefect::kOtherCount, "have arrived for "},
                           Row{BarrierDefect::kOtherNumber, "with another number or count than other lanes of its warp at barrier_sync"},
                           Row{BarrierDefect::kTwoPlaces, "for a lane that waits for it at barrier_sync"},
                           Row{BarrierDefect::kLaneReturned, "returned"}, Row{BarrierDefect::kArrivesTwice, "calls barrier 3 again while it has "},
                           Row{BarrierDefect::kIncomplete, ", barrier 3 where 96 of 128 threads have arrived"},
                           Row{BarrierDefect::kAllReturned, ", barrier 3 where 96 of 128 threads have arrived"});
  INFO("defect " << static_cast<int>(row.wrong) << ": " << row.text);
  for (uint64_t seed = 0; seed < 8; ++seed) {
    reset(seed);
    const TestStream stream;
    (void)kernels::launch_barriers(row.wrong, stream);
    CHECK(cudaStreamSynchronize(stream) != cudaSuccess);
    REQUIRE(errors().size() == 1);
    CHECK_THAT(errors()[0], Catch::Contains(row.text) && Catch::Contains("barriers_kernel") && Catch::Contains("block (0,0,0)"));
  }
  reset();
}

TEST_CASE("a warpgroup that raises its registers waits until another one has given them up") {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    reset(seed);
    const TestStream stream;
    const DeviceArray<int> y(256);
    CUDA_OK(kernels::registers(RegistersDefect::kNothing, y.get(), stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(y.host() == std::vector<int>(256, 1));
  }
  struct Row {
    RegistersDefect wrong;
    const char* text;
    int major = 9;
  };
  for (const Row& row :
       {Row{RegistersDefect::kTooMany, "128 of 128 (one is thread ("}, Row{RegistersDefect::kRaisesDown, "from 168 to 160 at raise_registers"},
        Row{RegistersDefect::kLowersUp, "from 168 to 176 at lower_registers"}, Row{RegistersDefect::kPartOfGroup, "returned"},
        Row{RegistersDefect::kNothing, "needs a GPU of compute capability 9.0", 10}}) {
    INFO("defect " << static_cast<int>(row.wrong) << ": " << row.text);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Options options;
      options.major = row.major;
      reset(seed, options);
      const TestStream stream;
      const DeviceArray<int> y(256);
      (void)kernels::registers(row.wrong, y.get(), stream);
      CHECK(cudaStreamSynchronize(stream) != cudaSuccess);
      REQUIRE(errors().size() == 1);
      CHECK_THAT(errors()[0], Catch::Contains(row.text) && Catch::Contains("_registers in line "));
    }
  }
  reset();
}
