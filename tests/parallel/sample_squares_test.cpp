#include "parallel/tensor/sample_squares.h"

#include <random>

#include "kernels/ops/matmul.h"
#include "parallel/comm/null.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

template <class T>
Tensor random_tensor(Context& ctx, const Shape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const Tensor made = Tensor::empty(ctx, shape, dtype_of<T>(), MemoryCategory::kActivations);
  for (int64_t i = 0; i < made.numel(); ++i) made.template data<T>()[i] = static_cast<T>(static_cast<float>(normal(random)));
  return made;
}

/// |dy^T x|^2 of the rows [begin, begin + rows).
template <class T>
double squares_by_hand(const Tensor& dy, const Tensor& x, int64_t begin, int64_t rows) {
  double squares = 0;
  for (int64_t f = 0; f < dy.dim(1); ++f)
    for (int64_t d = 0; d < x.dim(1); ++d) {
      double sum = 0;
      for (int64_t t = begin; t < begin + rows; ++t)
        sum += static_cast<double>(dy.template data<T>()[t * dy.dim(1) + f]) * static_cast<double>(x.template data<T>()[t * x.dim(1) + d]);
      squares += sum * sum;
    }
  return squares;
}

template <class T>
void check_products(Device device, double tolerance) {
  Arena arena(device);
  Context ctx{device, &arena, 1};
  NullCommunicator tensor(0, 1, "tensor");
  const Region region(tensor, false);
  Param weight;
  weight.specs.push_back({.name = "weight"});
  constexpr int64_t kSamples = 3;
  // Few rows, for which products of rows are cheaper; and many.
  for (const auto& [rows, outputs, inputs] : {std::tuple<int64_t, int64_t, int64_t>(4, 40, 30), {50, 12, 20}, {1, 8, 8}, {16, 16, 16}}) {
    CAPTURE(rows, outputs, inputs);
    const Tensor dy = random_tensor<T>(ctx, {kSamples * rows, outputs}, 1), x = random_tensor<T>(ctx, {kSamples * rows, inputs}, 2);
    SampleSquares squares(ctx, region, kSamples, rows, dtype_of<T>());
    squares.add_product(ctx, weight, dy, x);
    for (int64_t s = 0; s < kSamples; ++s)
      CHECK(squares.values().data<double>()[s] == Approx(squares_by_hand<T>(dy, x, s * rows, rows)).epsilon(tolerance));
  }
  Param copy = weight;
  copy.specs.front().is_primary_copy = false;
  const Tensor dy = random_tensor<T>(ctx, {4, 3}, 1);
  SampleSquares squares(ctx, region, 1, 4, dtype_of<T>());
  squares.add_product(ctx, copy, dy, dy);
  CHECK(squares.values().data<double>()[0] == 0);  // another rank counts it
}

}  // namespace

TEST_CASE("sample squares: the norm of a product is the same from its rows as from itself") {
  check_products<double>(Device::kReference, 1e-12);
  check_products<float>(Device::kCpu, 1e-5);
  check_products<bfloat16>(Device::kCpu, 1e-5);  // sums are in fp32
}

TEST_CASE("sample squares: rows that cross samples count for each") {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  NullCommunicator tensor(0, 1, "tensor");
  const Region region(tensor, false);
  Param bias;
  bias.specs.push_back({.name = "bias", .dims = 1, .shape = {2, 1}, .box = {{0, 0}, {2, 1}}, .local = {2, 1}});
  const Tensor dy = random_tensor<double>(ctx, {6, 2}, 5);  // rows 3 to 9 of 4 samples of 4 rows
  SampleSquares squares(ctx, region, 4, 4, DType::kF64);
  squares.add_rows(ctx, {6, 4, 3}, {&bias}, [&](int64_t begin, int64_t count, const std::vector<Tensor>& gradients) {
    bias_backward(ctx, dy.rows(begin, count), gradients.front());
  });
  const double* const values = dy.data<double>();
  const auto squares_of = [&](int64_t begin, int64_t end) {
    double squares_of_sums = 0;
    for (int64_t c = 0; c < 2; ++c) {
      double sum = 0;
      for (int64_t row = begin; row < end; ++row) sum += values[row * 2 + c];
      squares_of_sums += sum * sum;
    }
    return squares_of_sums;
  };
  CHECK(squares.values().data<double>()[0] == Approx(squares_of(0, 1)).epsilon(1e-12));
  CHECK(squares.values().data<double>()[1] == Approx(squares_of(1, 5)).epsilon(1e-12));
  CHECK(squares.values().data<double>()[2] == Approx(squares_of(5, 6)).epsilon(1e-12));
  CHECK(squares.values().data<double>()[3] == 0);
}

}  // namespace trireme::test
