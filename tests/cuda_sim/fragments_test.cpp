// The fragments of mma.m16n8k16 and ldmatrix against NVIDIA's own tables of them in CuTe (CUTLASS 3, include/cute/atom). The simulated instructions and
// the kernels both come from the PTX manual, so that a passage misread for both would show in no result.
#include <cmath>
#include <numeric>

#include "kernels/core/bfloat16.h"
#include "kernels/core/float16.h"
#include "tests/cuda_sim/fragment_layout.h"
#include "tests/cuda_sim/test_device.h"

using namespace cuda_sim;
namespace kernels = kernels_under_test;

namespace {

constexpr int kLanes = 32;

// mma_traits_sm80.hpp, SM80_16x8x16_F32BF16BF16F32_TN, which is also that of fp16: a [16,16] at row + 16 column, b [16,8] at column + 8 row,
// d [16,8] at row + 16 column.
const FragmentLayout kA{{{4, 8}, {32, 1}}, {{2, 2, 2}, {16, 8, 128}}};
const FragmentLayout kB{{{4, 8}, {16, 1}}, {{2, 2}, {8, 64}}};
const FragmentLayout kD{{{4, 8}, {32, 1}}, {{2, 2}, {16, 8}}};
// copy_traits_sm75.hpp, SM75_U32x4_LDSM_N and SM75_U16x8_LDSM_T: bits of a register at bits of 32 rows of 128.
const FragmentLayout kLdmatrix{{{32}, {32}}, {{32, 4}, {1, 1024}}};
const FragmentLayout kLdmatrixTransposed{{{4, 8}, {256, 16}}, {{16, 2, 4}, {1, 128, 1024}}};

std::vector<float> random_integers(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.below(31)) - 15;
  return values;
}

/// The registers of all lanes: two elements of 16 bits each.
std::vector<uint32_t> packed(const std::vector<float>& matrix, const FragmentLayout& layout, int values, bool half) {
  const auto bits_of = [half](float value) { return uint32_t{half ? trireme::float16(value).bits : trireme::bfloat16(value).bits}; };
  std::vector<uint32_t> registers;
  for (int lane = 0; lane < kLanes; ++lane)
    for (int value = 0; value < values; value += 2)
      registers.push_back(bits_of(matrix[layout.at(lane, value)]) | bits_of(matrix[layout.at(lane, value + 1)]) << 16);
  return registers;
}

}  // namespace

TEST_CASE("mma multiplies the elements that CuTe's tables assign to the registers") {
  const bool half = GENERATE(false, true);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    reset(seed);
    const TestStream stream;
    Random random(seed);
    const std::vector<float> a = random_integers(random, 256), b = random_integers(random, 128), sums = random_integers(random, 128);
    std::vector<float> registers;
    for (int lane = 0; lane < kLanes; ++lane)
      for (int value = 0; value < 4; ++value) registers.push_back(sums[kD.at(lane, value)]);
    const DeviceArray<uint32_t> device_a(packed(a, kA, 8, half)), device_b(packed(b, kB, 4, half));
    const DeviceArray<float> device_d(registers);
    CUDA_OK(kernels::mma(device_a.get(), device_b.get(), device_d.get(), half, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    const std::vector<float> result = device_d.host();
    for (int lane = 0; lane < kLanes; ++lane)
      for (int value = 0; value < 4; ++value) {
        const size_t at = kD.at(lane, value), row = at % 16, column = at / 16;
        float want = sums[at];
        for (size_t k = 0; k < 16; ++k) want += a[row + 16 * k] * b[column + 8 * k];
        INFO("lane " << lane << ", register " << value << ": row " << row << ", column " << column);
        CHECK(result[static_cast<size_t>(lane * 4 + value)] == want);
      }
  }
}

TEST_CASE("ldmatrix loads the elements of CuTe's tables, plain and transposed") {
  reset(1);
  const TestStream stream;
  std::vector<uint16_t> rows(256);
  std::iota(rows.begin(), rows.end(), uint16_t{0});
  const DeviceArray<uint16_t> from(rows);
  const DeviceArray<uint32_t> loaded(128);
  for (const bool transposed : {false, true}) {
    CUDA_OK(kernels::ldmatrix(from.get(), loaded.get(), transposed, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    const std::vector<uint32_t> registers = loaded.host();
    const FragmentLayout& layout = transposed ? kLdmatrixTransposed : kLdmatrix;
    for (int lane = 0; lane < kLanes; ++lane)
      for (int value = 0; value < 8; ++value) {
        const uint32_t got = registers[static_cast<size_t>(lane * 4 + value / 2)] >> value % 2 * 16 & 0xFFFF;
        INFO((transposed ? "transposed, " : "") << "lane " << lane << ", element " << value);
        CHECK(got == layout.at(lane, value * 16) / 16);
      }
  }
}

TEST_CASE("on request mma truncates and ex2 is wrong in the last two bits, as on GPUs") {
  const bool hardware = GENERATE(false, true);
  INFO((hardware ? "rounded as on GPUs" : "rounded well"));
  Options options;
  options.hardware_rounding = hardware;
  reset(0, options);
  const TestStream stream;
  // Row 0 is 1 + 3/4 of a unit in the last place, row 1 its negative, row 2 exact.
  std::vector<float> a(256, 0.0F), registers(128, 0.0F);
  a[0] = 1, a[0 + 16 * 5] = 3 * 0x1p-25F;
  a[1] = -1, a[1 + 16 * 5] = -3 * 0x1p-25F;
  a[2] = 1, a[2 + 16 * 5] = 0x1p-23F;
  const DeviceArray<uint32_t> device_a(packed(a, kA, 8, false)), device_b(packed(std::vector<float>(128, 1.0F), kB, 4, false));
  const DeviceArray<float> device_d(registers);
  CUDA_OK(kernels::mma(device_a.get(), device_b.get(), device_d.get(), false, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  registers = device_d.host();
  for (int lane = 0; lane < kLanes; ++lane)
    for (int value = 0; value < 4; ++value) {
      const size_t row = kD.at(lane, value) % 16;
      const float rounded = hardware ? 1 : 1 + 0x1p-23F, want[] = {rounded, -rounded, 1 + 0x1p-23F};
      CHECK(registers[static_cast<size_t>(lane * 4 + value)] == (row < 3 ? want[row] : 0));
    }

  std::vector<float> x;
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) / 37);
  const DeviceArray<float> device_x(x), device_y(x.size());
  CUDA_OK(kernels::exp2(device_x.get(), device_y.get(), static_cast<int>(x.size()), stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  const std::vector<float> y = device_y.host();
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(x[i])), unit = std::ldexp(1.0, std::ilogb(exact) - 23);
    largest = std::max(largest, std::abs(y[i] - exact) / unit);
    if (x[i] == 0) CHECK(y[i] == 1);
  }
  CHECK(largest > (hardware ? 1.5 : 0.25));
  CHECK(largest <= (hardware ? 2.51 : 0.51));
  reset();
}
