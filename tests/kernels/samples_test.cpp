#include "kernels/ops/samples.h"

#include <cmath>
#include <random>
#include <vector>

#include "kernels/ops/embedding.h"
#include "kernels/ops/optimizer.h"
#include "tests/support/catch.h"

namespace trireme {
namespace {

template <class T>
Tensor random_tensor(Context& ctx, const Shape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const Tensor made = Tensor::empty(ctx, shape, dtype_of<T>(), MemoryCategory::kWorkspace);
  for (int64_t i = 0; i < made.numel(); ++i) made.template data<T>()[i] = static_cast<T>(normal(random));
  return made;
}

template <class T>
void check_operations(Device device, int threads, double tolerance) {
  Arena arena(device);
  Context ctx{device, &arena, threads};
  const Tensor sum = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000}, (int64_t{1} << 17) + 5}) {
    const Tensor a = random_tensor<T>(ctx, {count}, 1), b = random_tensor<T>(ctx, {count}, 2);
    long double expected = 10;
    for (int64_t i = 0; i < count; ++i) expected += -2.0L * a.template data<T>()[i] * b.template data<T>()[i];
    sum.data<double>()[0] = 10;
    add_inner_product(ctx, a, b, -2, sum);
    CHECK(sum.data<double>()[0] == Approx(static_cast<double>(expected)).epsilon(1e-11).margin(1e-9));
  }

  // Three samples of 40 rows over 9 tokens, of which this rank has [2, 7): many rows share a token.
  constexpr int64_t kSamples = 3, kRows = 40, kColumns = 17, kFirst = 2, kVocabulary = 5;
  const Tensor tokens = Tensor::empty(ctx, {kSamples * kRows}, DType::kI32, MemoryCategory::kWorkspace);
  for (int64_t i = 0; i < tokens.numel(); ++i) tokens.data<int32_t>()[i] = static_cast<int32_t>(i * i / 2 % 9);
  const Tensor dy = random_tensor<T>(ctx, {kSamples * kRows, kColumns}, 3);
  const Tensor squares = Tensor::zeros(ctx, {kSamples}, DType::kF64, MemoryCategory::kWorkspace);
  squares.data<double>()[1] = 5;
  embedding_sample_squares(ctx, tokens, dy, kFirst, kVocabulary, squares);
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    const Tensor dw = Tensor::zeros(ctx, {kVocabulary, kColumns}, accumulator_of(dtype_of<T>()), MemoryCategory::kWorkspace);
    embedding_backward(ctx, tokens.rows(sample * kRows, kRows), dy.rows(sample * kRows, kRows), kFirst, kVocabulary, dw);
    sum.data<double>()[0] = sample == 1 ? 5 : 0;
    sum_of_squares(ctx, std::span(&dw, 1), sum);
    CHECK(squares.data<double>()[sample] == Approx(sum.data<double>()[0]).epsilon(tolerance));
  }

  // Rows 5 .. 85 of the same three samples: 35 of the first, all of the second, 5 of the third.
  const Tensor x = random_tensor<T>(ctx, {80, kColumns}, 4), before = random_tensor<T>(ctx, {80, kColumns}, 4);
  const Tensor factors = Tensor::empty(ctx, {kSamples}, DType::kF64, MemoryCategory::kWorkspace);
  for (int64_t s = 0; s < kSamples; ++s) factors.data<double>()[s] = 1.0 / static_cast<double>(1 << s);
  scale_sample_rows(ctx, x, kRows, 5, factors);
  for (int64_t m = 0; m < 80; ++m)
    for (int64_t c = 0; c < kColumns; ++c)
      CHECK(x.template data<T>()[m * kColumns + c] == before.template data<T>()[m * kColumns + c] / static_cast<T>(m < 35 ? 1 : m < 75 ? 2 : 4));
}

/// Rows of samples with a factor of 0 become zero, and may contain anything.
template <class T>
void check_dropped_samples() {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  const Tensor factors = Tensor::empty(ctx, {2}, DType::kF64, MemoryCategory::kWorkspace);
  factors.data<double>()[0] = 0;
  factors.data<double>()[1] = 0.5;
  for (const bool scales : {false, true}) {
    const Tensor x = Tensor::empty(ctx, {3, 2}, dtype_of<T>(), MemoryCategory::kWorkspace);  // rows 1 to 4 of two samples of 2 rows
    const double values[] = {std::nan(""), HUGE_VAL, 3, 4, 5, 6};
    for (int64_t i = 0; i < 6; ++i) x.template data<T>()[i] = static_cast<T>(values[i]);
    (scales ? scale_sample_rows : clear_sample_rows)(ctx, x, 2, 1, factors);
    const double factor = scales ? 0.5 : 1;
    const double expected[] = {0, 0, 3 * factor, 4 * factor, 5 * factor, 6 * factor};
    for (int64_t i = 0; i < 6; ++i) CHECK(static_cast<double>(x.template data<T>()[i]) == expected[i]);
  }
}

}  // namespace

TEST_CASE("rows of a sample with a factor of 0 become zero, whatever they contain") {
  check_dropped_samples<double>();
  check_dropped_samples<float>();
  check_dropped_samples<bfloat16>();
}

TEST_CASE("operations on samples equal their definitions on every CPU device") {
  check_operations<double>(Device::kReference, 1, 1e-12);
  check_operations<float>(Device::kReference, 1, 1e-5);
  check_operations<float>(Device::kCpu, 1, 1e-5);
  check_operations<float>(Device::kCpu, 3, 1e-5);
}

TEST_CASE("a clip factor shortens to the limit, never lengthens, and is 0 for squares that are not finite") {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  const auto vector = [&](std::vector<double> values) {
    const Tensor made = Tensor::empty(ctx, {std::ssize(values)}, DType::kF64, MemoryCategory::kWorkspace);
    std::ranges::copy(values, made.data<double>());
    return made;
  };
  const Tensor factors = vector({0, 0, 0, 0, 0, 0});
  clip_factors(ctx, vector({-1e-9, 4, 9, 100, HUGE_VAL, std::nan("")}), 3, false, factors);
  const double* const f = factors.data<double>();
  CHECK(f[0] == 1);
  CHECK(f[1] == 1);
  CHECK(f[2] == 1);
  CHECK(f[3] == Approx(0.3));
  CHECK(f[4] == 0);
  CHECK(f[5] == 0);
  clip_factors(ctx, vector({9, 9.01, 36, 37, 100, 1e12}), 3, true, factors);
  CHECK(std::vector<double>(f, f + 6) == std::vector<double>{1, 0.5, 0.5, 0.25, 0.25, 0x1p-19});
}

}  // namespace trireme
